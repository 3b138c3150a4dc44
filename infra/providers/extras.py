"""Extras: a kind loads without the libraries of its extra, its provider does not."""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager

from reconciler.errors import ConfigurationError


@contextmanager
def extra_needed(extra: str, what: str, libraries: Collection[str]) -> Generator[None]:
    """Describe what to install if what is imported here needs a library that is not there."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in libraries:
            raise
        raise ConfigurationError(
            f"{what} require {error.name}, which is not installed; run pip install "
            f"'event-sourced-reconciler[{extra}]' where the roles run"
        ) from None
