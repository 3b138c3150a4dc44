"""The ``Container`` kind: one Docker Engine container, kept running as declared."""

from __future__ import annotations

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from infra.providers.docker.names import name_problem
from infra.providers.docker.spec import (
    MUTABLE,
    ContainerFields,
    ContainerOutputs,
    comparable,
    find_host_uses,
    normalize,
)
from reconciler.provider import Capabilities
from reconciler.provider.kind import READY, Kind, Readiness
from reconciler.provider.lazy import lazy


def ready(fields: Fields, observed: ExternalObject) -> Readiness:
    """Return whether a container is usable: it is running, and its health check passes."""
    state, health = observed.outputs.get("state"), observed.outputs.get("health")
    if not fields.get("running", True):
        return Readiness(False, "Stopped", "the container is declared with running: false")
    if state == "restarting":
        return Readiness(
            False, "Restarting", "the container exited, and the Engine is restarting it"
        )
    if health == "starting":
        return Readiness(False, "Starting", "its health check has not passed yet")
    if health == "unhealthy":
        return Readiness(False, "Unhealthy", "its health check is failing")
    return READY


_immutable = {each.encode_name for each in msgspec.structs.fields(ContainerFields)} - MUTABLE

CONTAINER = Kind(
    name="Container",
    api_version="docker/v1",
    provider="docker",
    schema=ContainerFields,
    capabilities=Capabilities(
        idempotency_keys=False,
        deterministic_names=True,
        labels=True,
        conditional_writes=False,
        watch=True,
    ),
    connect=lazy("infra.providers.docker.containers:ContainersProvider", extra="docker"),
    normalize=normalize,
    comparable=comparable,
    name_problem=name_problem,
    outputs=ContainerOutputs,
    ready=ready,
    find_host_uses=find_host_uses,
    immutable=frozenset({*_immutable, "labels"}),
)
"""The ``Container`` kind."""
