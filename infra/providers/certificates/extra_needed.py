"""The libraries of certificates are an extra: kinds load without them, providers do not."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from infra.providers import extras
from reconciler.errors import ConfigurationError

_LIBRARIES = ("acme", "cryptography", "josepy", "requests", "OpenSSL")


@contextmanager
def extra_needed() -> Generator[None]:
    """Describe what to install if what is imported here needs a library that is not there."""
    if sys.platform == "win32":
        raise ConfigurationError("certificates are supported only on Linux and macOS")
    with extras.extra_needed("certificates", "certificates", _LIBRARIES):
        yield
