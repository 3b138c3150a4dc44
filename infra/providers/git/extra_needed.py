"""Git's libraries are an extra: the kind loads without them, its provider does not."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from reconciler.errors import ConfigurationError

_LIBRARIES = ("dulwich", "semantic_version", "urllib3")


@contextmanager
def extra_needed() -> Generator[None]:
    """Describe what to install if what is imported here needs a library that is not there."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _LIBRARIES:
            raise
        raise ConfigurationError(
            f"Git sources need {error.name}, which is not installed: pip install"
            " 'event-sourced-reconciler[git]' where the roles run"
        ) from None
