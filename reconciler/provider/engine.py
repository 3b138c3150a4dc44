"""Engines, which build the underlying kind for a definition that has no installed kind."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Protocol, cast

from events.kind_definition import KindDefinitionSpec
from events.manifest import InvalidManifestError
from reconciler.errors import ConfigurationError
from reconciler.provider.kind import Kind
from reconciler.provider.lazy import load

ENTRY_POINT_GROUP = "reconciler.engines"
REST = "rest"
COMPOSITION = "composition"


class Engine(Protocol):
    """Builds the underlying kind: how to call its API, and which fields its objects have."""

    def __call__(self, name: str, spec: KindDefinitionSpec) -> Kind:
        """Build the kind of a definition. Raises ``InvalidManifestError`` with a remedy."""
        ...


def load_engine(name: str) -> Engine:
    """Load an engine. Raises ``InvalidManifestError`` if it cannot be used here."""
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            return cast("Engine", load(entry.value, extra=name))
        except ConfigurationError as error:
            raise InvalidManifestError(f"spec.{name}: {error}") from None
    raise InvalidManifestError(
        f"spec.{name}: the engine {name!r} is not installed where the roles run; install its "
        "package"
    )
