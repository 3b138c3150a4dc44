"""The ``Container`` kind: one Docker Engine container, kept running as declared."""

from __future__ import annotations

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from infra.providers.docker.names import name_problem
from infra.providers.docker.spec import (
    ANONYMOUS_VOLUMES,
    MUTABLE,
    ContainerFields,
    ContainerOutputs,
    comparable,
    describe_data_loss,
    find_claims,
    find_host_uses,
    find_uses,
    guards_data,
    has_finished,
    inherit,
    normalize,
    settled_paths,
)
from reconciler.provider import Capabilities
from reconciler.provider.kind import READY, Kind, Readiness
from reconciler.provider.lazy import lazy


def ready(fields: Fields, observed: ExternalObject) -> Readiness:
    """Return whether a container runs and its health check passes, or its process succeeded."""
    state, health = observed.outputs.get("state"), observed.outputs.get("health")
    if not fields.get("running", True):
        return Readiness(False, "Stopped", "the container is declared with running: false")
    if has_finished(fields, observed.outputs):
        return _judge_exit(observed.outputs["exitCode"], fields)
    if state == "restarting":
        return Readiness(
            False, "Restarting", "the container exited, and the Engine is restarting it"
        )
    if health == "starting":
        return Readiness(False, "Starting", "its health check has not passed yet")
    if health == "unhealthy":
        return Readiness(False, "Unhealthy", "its health check is failing")
    return READY


def _judge_exit(exit_code: int, fields: Fields) -> Readiness:
    """Return whether a process that has finished succeeded."""
    if exit_code == 0:
        return Readiness(True, "Completed", "the process exited with 0")
    return Readiness(
        False,
        "Exited",
        f"the process exited with {exit_code}, and restart: {fields['restart']} does not start it "
        "again; read its log, then change the declaration to run it again",
    )


_immutable = {each.encode_name for each in msgspec.structs.fields(ContainerFields)} - {
    *MUTABLE,
    ANONYMOUS_VOLUMES,
}

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
    settled_paths=settled_paths,
    describe_data_loss=describe_data_loss,
    guards_data=guards_data,
    inherit=inherit,
    find_claims=find_claims,
    find_host_uses=find_host_uses,
    find_uses=find_uses,
    immutable=frozenset({*_immutable, "labels"}),
)
"""The ``Container`` kind."""
