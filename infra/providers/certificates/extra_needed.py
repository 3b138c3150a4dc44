"""The libraries of certificates are an extra: kinds load without them, providers do not."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from reconciler.errors import ConfigurationError

_LIBRARIES = ("acme", "cryptography", "josepy", "requests", "OpenSSL")


@contextmanager
def extra_needed() -> Generator[None]:
    """Describe what to install if what is imported here needs a library that is not there."""
    if sys.platform == "win32":
        raise ConfigurationError("certificates are kept on Linux and macOS only")
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _LIBRARIES:
            raise
        raise ConfigurationError(
            f"certificates need {error.name}, which is not installed: pip install"
            " 'event-sourced-reconciler[certificates]' where the roles run"
        ) from None
