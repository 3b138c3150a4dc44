"""The ``Deployment`` kind: identical containers with rolling updates.

The rules are those of Kubernetes. At least ``replicas - maxUnavailable`` containers are ready, and
at most ``replicas + maxSurge`` exist. Old containers that are not ready are removed first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from events.composition import MANIFESTS, STUCK, Child, blocker, children_of, content_of
from events.external import ExternalObject
from events.manifest import Fields, Manifest, Metadata
from events.names import ResourceKey
from reconciler.provider.kind import READY, STALLED, Progress, Readiness

CONTAINER: Final = "Container"
CONTAINER_API_VERSION: Final = "docker/v1"
MAX_REPLICAS: Final = 500
MAX_DEADLINE_SECONDS: Final = 7 * 86_400

_PARTS: Final = 3  # parts of a container's name

_encoder = msgspec.json.Encoder(order="deterministic")
_about = msgspec.Meta
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_REPLICAS)]


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Limits during a rolling update."""

    max_unavailable: Annotated[
        _Count,
        _about(
            description="At least replicas - maxUnavailable containers are ready during an update."
        ),
    ] = 0
    max_surge: Annotated[
        _Count, _about(description="At most replicas + maxSurge containers exist during an update.")
    ] = 1

    def __post_init__(self) -> None:
        if not (self.max_unavailable or self.max_surge):
            raise ValueError(
                "maxUnavailable and maxSurge: must not both be 0; set one of them to at least 1"
            )


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Template of the containers."""

    spec: Annotated[
        Fields, _about(description="Spec of each Container, with its providerConfigRef and policy.")
    ]
    labels: Annotated[dict[str, str], _about(description="Labels of each container.")] = {}


class DeploymentFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Replicas of a container, with rolling updates."""

    template: Annotated[Template, _about(description="Template of the containers.")]
    replicas: Annotated[_Count, _about(description="Number of containers.")] = 1
    strategy: Annotated[Strategy, _about(description="Limits during an update.")] = Strategy()
    progress_deadline_seconds: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=MAX_DEADLINE_SECONDS)],
        _about(
            description="Seconds without progress after which the Deployment is not ready, "
            "with reason Stalled."
        ),
    ] = 600.0
    paused: Annotated[
        bool,
        _about(
            description="Whether the rollout of a new template is paused. Changes to replicas "
            "still apply."
        ),
    ] = False
    port: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None,
        _about(
            description="Port that clients connect to on each container. Required for "
            "outputs.backends."
        ),
    ] = None


class DeploymentOutputs(msgspec.Struct, frozen=True, rename="camel"):
    """Counts of the containers, and the addresses of the ready ones."""

    replicas: Annotated[int, msgspec.Meta(description="Number of containers that exist.")]
    ready: Annotated[int, msgspec.Meta(description="Number of containers that are ready.")]
    updated: Annotated[
        int, msgspec.Meta(description="Number of containers with the newest template.")
    ]
    addresses: Annotated[
        list[str], msgspec.Meta(description="IP addresses of the ready containers.")
    ] = []
    backends: Annotated[
        list[dict[str, Any]],
        msgspec.Meta(
            description="Addresses and ports of the ready containers, as a Service and a "
            "Route accept them."
        ),
    ] = []
    children: Annotated[dict[str, Any], msgspec.Meta(description="Outcome of each container.")] = {}
    leaving: Annotated[
        list[str],
        msgspec.Meta(description="Withdrawn containers that still exist."),
    ] = []


class Replica(NamedTuple):
    """A container that exists, or must be created."""

    template: str
    number: int
    is_ready: bool = False


def template_hash(template: Mapping[str, Any]) -> str:
    """Return the digest of the declared template. A new release must not change it."""
    return hashlib.blake2b(_encoder.encode(template), digest_size=4).hexdigest()


def compose(key: ResourceKey, spec: Fields, observed: ExternalObject | None) -> Fields:
    """Return the containers that must exist now, for one step of a rolling update.

    While a rolling update is paused, the existing containers stay. Otherwise, ``replicas`` applies.
    """
    fields = msgspec.convert(spec, DeploymentFields)
    declared = template_hash(spec["template"])
    templates = {
        **_templates_of(key, observed),
        declared: _manifest(key, fields.template.spec, fields.template.labels),
    }
    replicas = (_replica(name, child) for name, child in children_of(observed).items())
    existing = [each for each in replicas if each is not None and each.template in templates]
    current_templates = {each.template for each in existing}
    newest = (
        next(iter(current_templates)) if fields.paused and len(current_templates) == 1 else declared
    )
    if fields.paused and len(current_templates) > 1:
        wanted = existing
    else:
        wanted = next_replicas(existing, newest, fields.replicas, fields.strategy)
    children = [
        _named(templates[each.template], f"{key.name}-{each.template}-{each.number}")
        for each in wanted
    ]
    rollout = {"replicas": fields.replicas, "template": newest, "port": fields.port}
    return {**content_of(children), "rollout": rollout}


def next_replicas(
    existing: Sequence[Replica], newest: str, replicas: int, strategy: Strategy
) -> list[Replica]:
    """Return the containers that must exist next, from the existing ones and new ones."""
    new = sorted((each for each in existing if each.template == newest), key=_keep_order)[:replicas]
    old = [each for each in existing if each.template != newest]
    max_added = replicas + strategy.max_surge - len(new) - len(old) if old else replicas
    used = {each.number for each in new}
    free = (number for number in range(MAX_REPLICAS + len(used)) if number not in used)
    missing = max(0, min(replicas - len(new), max_added))
    added = [Replica(newest, number) for number in islice(free, missing)]
    return [*new, *added, *_remaining_old(old, new, replicas - strategy.max_unavailable)]


def _remaining_old(old: Sequence[Replica], new: Sequence[Replica], min_ready: int) -> list[Replica]:
    """Return the old containers that stay for now. Those that are not ready are removed first."""
    min_ready = max(0, min_ready)
    ready_new = sum(each.is_ready for each in new)
    max_removed = max(0, len(old) + len(new) - min_ready - (len(new) - ready_new))
    unready = [each for each in old if not each.is_ready]
    ready = sorted((each for each in old if each.is_ready), key=_keep_order)
    removed = min(len(unready), max_removed)
    spare = max(0, min(max_removed - removed, ready_new + len(ready) - min_ready))
    return [*unready[removed:], *ready[: len(ready) - spare]]


def ready(fields: Fields, existing: ExternalObject) -> Readiness:
    """Return whether all containers exist, are ready, and have the newest template."""
    rollout, children = fields["rollout"], children_of(existing)
    updated = {
        name: child for name, child in children.items() if _has_template(name, rollout["template"])
    }
    number, wanted = sum(map(_is_serving, updated.values())), rollout["replicas"]
    old = len(children) - len(updated) + len(existing.outputs.get("leaving", []))
    if number == wanted == len(updated) and not old:
        return READY
    progress = f"{number} of {wanted} containers are ready"
    progress += f", {old} with the old template remain" if old else ""
    for name, child in updated.items():
        if child.outcome in STUCK:
            why = f"{name} is {child.outcome}: {child.message or child.reason}"
            return Readiness(False, STALLED, f"{progress}; {why}")
    waiting = blocker(updated)
    return Readiness(False, "Progressing", f"{progress}; {waiting}" if waiting else progress)


def progress(spec: Fields, existing: ExternalObject) -> Progress | None:
    """Return a digest of the containers and their readiness, with the deadline."""
    deadline_seconds = spec.get("progressDeadlineSeconds")
    if deadline_seconds is None or spec["paused"]:  # a paused update has no deadline
        return None
    parts = [(name, _is_serving(each)) for name, each in sorted(children_of(existing).items())]
    content = _encoder.encode([parts, existing.outputs.get("leaving", [])])
    return Progress(hashlib.blake2b(content, digest_size=8).hexdigest(), deadline_seconds)


def summary(fields: Fields, children: Mapping[str, Child]) -> Fields:
    """Return the counts of the containers, and the addresses of the ready ones."""
    rollout: Mapping[str, Any] = fields.get("rollout", {})
    newest, port = rollout.get("template"), rollout.get("port")
    addresses = sorted(
        str(child.outputs["address"])
        for child in children.values()
        if _is_serving(child) and child.outputs.get("address")
    )
    return {
        "replicas": len(children),
        "ready": sum(map(_is_serving, children.values())),
        "updated": sum(_has_template(name, newest) for name in children),
        "addresses": addresses,
        "backends": [{"address": each, "port": port} for each in addresses] if port else [],
    }


def _keep_order(replica: Replica) -> tuple[bool, int]:
    """Return the sort key of the containers, from the first to keep to the first to remove."""
    return (not replica.is_ready, replica.number)


def _replica(name: str, child: Child | None = None) -> Replica | None:
    """Parse a container's name, ``…-<template>-<number>``. Return None for any other form."""
    _, _, rest = name.rpartition("/")
    parts = rest.rsplit("-", 2)
    if len(parts) != _PARTS or not parts[2].isdecimal():
        return None
    return Replica(parts[1], int(parts[2]), child is not None and _is_serving(child))


def _is_serving(child: Child) -> bool:
    """Return whether a container is ready and runs: a process that has finished serves nothing."""
    return child.ready and "exitCode" not in child.outputs


def _has_template(name: str, template: object) -> bool:
    replica = _replica(name)
    return replica is not None and replica.template == template


def _templates_of(key: ResourceKey, observed: ExternalObject | None) -> dict[str, Manifest]:
    """Return the manifest of each existing container's template, even if a client edited it."""
    if observed is None:
        return {}
    bodies: Mapping[str, Fields] = observed.fields.get(MANIFESTS, {})
    return {
        template_hash({"spec": body["spec"], "labels": body["labels"]}): _manifest(
            key, body["spec"], body["labels"]
        )
        for body in bodies.values()
    }


def _manifest(key: ResourceKey, spec: Fields, labels: dict[str, str]) -> Manifest:
    return Manifest(
        CONTAINER_API_VERSION, CONTAINER, Metadata(key.name, key.namespace, labels), spec
    )


def _named(manifest: Manifest, name: str) -> Manifest:
    metadata = msgspec.structs.replace(manifest.metadata, name=name)
    return msgspec.structs.replace(manifest, metadata=metadata)
