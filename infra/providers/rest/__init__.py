"""Engine for kinds that are defined by an HTTP API (``rest`` in a ``KindDefinition``)."""

from __future__ import annotations

from infra.providers.rest.engine import rest_kind

__all__ = ["rest_kind"]
