"""psycopg is an extra: kinds load without it, providers do not."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from reconciler.errors import ConfigurationError


@contextmanager
def psycopg_needed() -> Generator[None]:
    """Describe what to install if what is imported here needs psycopg, and it is not there."""
    try:
        yield
    except ImportError as error:
        if "psycopg" not in f"{error.name} {error}":
            raise
        raise ConfigurationError(
            "PostgreSQL requires psycopg, which is not installed (or finds no libpq); run pip "
            "install 'event-sourced-reconciler[postgres]' where the roles run"
        ) from None
