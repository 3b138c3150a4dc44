"""The ``Volume`` kind: a named Docker Engine volume and its data."""

from __future__ import annotations

from infra.providers.docker.names import name_problem
from infra.providers.docker.volume_spec import (
    VolumeFields,
    VolumeOutputs,
    describe_data_loss,
    find_host_uses,
    normalize,
)
from reconciler.provider import Capabilities
from reconciler.provider.kind import Kind
from reconciler.provider.lazy import lazy

VOLUME = Kind(
    name="Volume",
    api_version="docker/v1",
    provider="docker",
    schema=VolumeFields,
    capabilities=Capabilities(
        idempotency_keys=False,
        deterministic_names=True,
        labels=True,
        conditional_writes=False,
        watch=True,
    ),
    connect=lazy("infra.providers.docker.volumes:VolumesProvider", extra="docker"),
    normalize=normalize,
    name_problem=name_problem,
    outputs=VolumeOutputs,
    find_host_uses=find_host_uses,
    immutable=frozenset({"driver", "options", "labels"}),
    describe_data_loss=describe_data_loss,
)
"""The ``Volume`` kind."""
