"""The ``Deployment`` kind: identical containers with rolling updates.

The rules are those of Kubernetes. At least ``replicas - maxUnavailable`` containers are available,
and at most ``replicas + maxSurge`` exist. Old containers that are not available are removed first.
A container is available after it has been ready for ``minReadySeconds`` without interruption.
With ``autoRollback``, a failed update returns to the last template that was ready (ADR 0087).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from events.composition import (
    MANIFESTS,
    REFUSED,
    STUCK,
    Child,
    blocker,
    children_of,
    content_of,
)
from events.external import ExternalObject
from events.manifest import Fields, InvalidManifestError, Manifest, Metadata
from events.names import ResourceKey
from events.wording import plural
from reconciler.provider.kind import IS_STALLED, READY, STALLED, Progress, Readiness

CONTAINER: Final = "Container"
CONTAINER_API_VERSION: Final = "docker/v1"
MAX_REPLICAS: Final = 500
DEFAULT_MIN_READY_SECONDS: Final = 5.0
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
            description="At least replicas - maxUnavailable containers are available during an "
            "update."
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
    min_ready_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=MAX_DEADLINE_SECONDS)],
        _about(
            description="Seconds for which a container must be ready without interruption to be "
            "available. An update removes an old container only for an available new one."
        ),
    ] = DEFAULT_MIN_READY_SECONDS
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
    auto_rollback: Annotated[
        bool,
        _about(
            description="Whether a failed update returns to the template of the last containers "
            "that were all available. It stays there until another template is declared."
        ),
    ] = False
    port: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None,
        _about(
            description="Port that clients connect to on each container. Required for "
            "outputs.backends."
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.progress_deadline_seconds <= self.min_ready_seconds:
            raise ValueError(
                f"progressDeadlineSeconds: must be greater than minReadySeconds, which is "
                f"{self.min_ready_seconds:g}"
            )


class DeploymentOutputs(msgspec.Struct, frozen=True, rename="camel"):
    """Counts of the containers, and the addresses of the ready ones."""

    replicas: Annotated[int, msgspec.Meta(description="Number of containers that exist.")]
    ready: Annotated[int, msgspec.Meta(description="Number of containers that are ready.")]
    available: Annotated[int, msgspec.Meta(description="Number of containers that are available.")]
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


class Rollout(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What an object's content records about its update.

    ``failure``: why the update to ``template`` failed, if it was rolled back. ``last_ready``: hash
    of the template to return to. ``last_ready_template``: that template, if no container has it.
    """

    replicas: int
    template: str
    port: int | None
    available: Sequence[str]
    paused: bool = False
    failure: str = ""
    last_ready: str = ""
    last_ready_template: Template | None = None


class Replica(NamedTuple):
    """A container that exists, or must be created."""

    template: str
    number: int
    is_available: bool = False


def template_hash(template: Mapping[str, Any]) -> str:
    """Return the digest of the declared template. A new release must not change it."""
    return hashlib.blake2b(_encoder.encode(template), digest_size=4).hexdigest()


def compose(key: ResourceKey, spec: Fields, observed: ExternalObject | None) -> Fields:
    """Return the containers that must exist now, for one step of a rolling update.

    While a rolling update is paused, the existing containers stay. Otherwise, ``replicas`` applies.
    """
    try:
        fields = msgspec.convert(spec, DeploymentFields)
    except msgspec.ValidationError as error:  # declared under older rules
        raise InvalidManifestError(f"spec: {error}") from None
    declared = template_hash(spec["template"])
    recorded = _rollout_of(observed)
    templates = {
        **_templates_of(key, observed, recorded),
        declared: _manifest(key, fields.template),
    }
    replicas = (_replica(name, child) for name, child in children_of(observed).items())
    existing = [each for each in replicas if each is not None and each.template in templates]
    current_templates = {each.template for each in existing}
    last_ready, failure = "", ""
    if fields.auto_rollback and observed is not None and recorded is not None:
        last_ready = _last_ready(existing, recorded)
        if last_ready not in ("", declared) and last_ready in templates:
            failure = recorded.failure if recorded.template == declared else ""
            failure = failure or _failure(fields, declared, observed)
    is_held = fields.paused and bool(current_templates - {declared})
    if is_held and len(current_templates) > 1:
        wanted = existing
    else:
        newest = last_ready if failure else declared
        newest = next(iter(current_templates)) if is_held else newest
        wanted = next_replicas(existing, newest, fields.replicas, fields.strategy)
    children = [
        _named(templates[each.template], f"{key.name}-{each.template}-{each.number}")
        for each in wanted
    ]
    is_kept = not last_ready or last_ready in {declared, *(each.template for each in wanted)}
    rollout = Rollout(
        fields.replicas,
        declared,
        fields.port,
        sorted(f"{each.template}-{each.number}" for each in wanted if each.is_available),
        is_held,
        failure,
        last_ready,
        None if is_kept else _template_in(templates[last_ready]),
    )
    return {**content_of(children), "rollout": msgspec.to_builtins(rollout)}


def _rollout_of(observed: ExternalObject | None) -> Rollout | None:
    """Return what the content records about the update; None if another client changed it."""
    try:
        return None if observed is None else msgspec.convert(observed.fields["rollout"], Rollout)
    except (KeyError, msgspec.ValidationError):
        return None


def _last_ready(existing: Sequence[Replica], recorded: Rollout) -> str:
    """Return the hash of the template to return to; empty if no template was ever ready."""
    available = {each.template if each.is_available else "" for each in existing}
    if len(existing) >= recorded.replicas and len(available) == 1 and "" not in available:
        return available.pop()
    # Without a record, because `autoRollback` is new, a template that serves is the best guess.
    return recorded.last_ready or max(available, default="")


def _failure(fields: DeploymentFields, declared: str, observed: ExternalObject) -> str:
    """Return why the update to the declared template failed; empty if it did not."""
    updated = {
        name: child
        for name, child in children_of(observed).items()
        if _has_template(name, declared)
    }
    if fields.paused or not updated:
        return ""
    for name, child in updated.items():
        if child.outcome in (REFUSED, "Failed"):
            return f"{name} is {child.outcome}: {child.message or child.reason}"
    waiting = _first_unavailable(updated)
    if waiting and observed.outputs.get(IS_STALLED):
        return f"no progress for {fields.progress_deadline_seconds:g} s; {waiting}"
    return ""


def min_ready_seconds(spec: Fields) -> float:
    """Return for how long a container must be ready to be available."""
    return spec.get("minReadySeconds", DEFAULT_MIN_READY_SECONDS)


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


def _remaining_old(
    old: Sequence[Replica], new: Sequence[Replica], min_available: int
) -> list[Replica]:
    """Return the old containers that stay for now. Unavailable ones are removed first."""
    min_available = max(0, min_available)
    available_new = sum(each.is_available for each in new)
    max_removed = max(0, len(old) + len(new) - min_available - (len(new) - available_new))
    unavailable = [each for each in old if not each.is_available]
    available = sorted((each for each in old if each.is_available), key=_keep_order)
    removed = min(len(unavailable), max_removed)
    spare = max(0, min(max_removed - removed, available_new + len(available) - min_available))
    return [*unavailable[removed:], *available[: len(available) - spare]]


def ready(fields: Fields, existing: ExternalObject) -> Readiness:
    """Return whether all containers exist, are available, and have the newest template."""
    rollout, children = fields["rollout"], children_of(existing)
    updated = {
        name: child for name, child in children.items() if _has_template(name, rollout["template"])
    }
    number, wanted = sum(map(_is_available, updated.values())), rollout["replicas"]
    old = len(children) - len(updated) + len(existing.outputs.get("leaving", []))
    if number == wanted == len(updated) and not old:
        return READY
    progress = f"{number} of {wanted} containers are available"
    progress += f", {old} with the old template remain" if old else ""
    if failure := rollout.get("failure"):
        serving = sum(map(_is_available, children.values())) - number
        why = f"rolled back, because the update failed: {failure}; {serving} of {wanted} "
        why += "containers of the last ready template are available; declare a corrected template"
        return Readiness(False, "RolledBack", why)
    for name, child in updated.items():
        if child.outcome in STUCK:
            why = f"{name} is {child.outcome}: {child.message or child.reason}"
            return Readiness(False, STALLED, f"{progress}; {why}")
    if rollout.get("paused") and len(updated) < len(children):
        return Readiness(False, "Paused", f"{progress}; set spec.paused: false to roll it out")
    waiting = _first_unavailable(updated)
    return Readiness(False, "Progressing", f"{progress}; {waiting}" if waiting else progress)


def _first_unavailable(children: Mapping[str, Child]) -> str:
    """Describe the first container that is not available; empty if all are."""
    for name, child in children.items():
        if child.available:
            continue
        waiting = blocker({name: child}) or f"waiting for {name} to stay ready"
        if child.interruptions:
            times = plural(child.interruptions, "time")
            waiting += f" (it exited or stopped being ready {times})"
        return waiting
    return ""


def progress(spec: Fields, existing: ExternalObject) -> Progress | None:
    """Return a digest of the containers and their availability, with the deadline.

    A container that exits again and again is ready at times. That is not progress.
    """
    deadline_seconds = spec.get("progressDeadlineSeconds")
    is_rolled_back = bool(existing.fields.get("rollout", {}).get("failure"))
    if deadline_seconds is None or spec["paused"] or is_rolled_back:  # these have no deadline
        return None
    parts = [(name, _is_available(each)) for name, each in sorted(children_of(existing).items())]
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
        "available": sum(
            _is_serving(child) and _suffix(name) in rollout.get("available", ())
            for name, child in children.items()
        ),
        "updated": sum(_has_template(name, newest) for name in children),
        "addresses": addresses,
        "backends": [{"address": each, "port": port} for each in addresses] if port else [],
    }


def _keep_order(replica: Replica) -> tuple[bool, int]:
    """Return the sort key of the containers, from the first to keep to the first to remove."""
    return (not replica.is_available, replica.number)


def _replica(name: str, child: Child | None = None) -> Replica | None:
    """Parse a container's name, ``…-<template>-<number>``. Return None for any other form."""
    _, _, rest = name.rpartition("/")
    parts = rest.rsplit("-", 2)
    if len(parts) != _PARTS or not parts[2].isdecimal():
        return None
    return Replica(parts[1], int(parts[2]), child is not None and _is_available(child))


def _suffix(name: str) -> str:
    """Return the end of a container's name, ``<template>-<number>``."""
    return "-".join(name.rsplit("-", 2)[1:])


def _is_serving(child: Child) -> bool:
    """Return whether a container is ready and runs: a process that has finished serves nothing."""
    return child.ready and "exitCode" not in child.outputs


def _is_available(child: Child) -> bool:
    """Return whether a container has been ready for long enough, and runs."""
    return child.available and _is_serving(child)


def _has_template(name: str, template: object) -> bool:
    replica = _replica(name)
    return replica is not None and replica.template == template


def _templates_of(
    key: ResourceKey, observed: ExternalObject | None, recorded: Rollout | None
) -> dict[str, Manifest]:
    """Return the manifest of each known template, even if a client edited it."""
    if observed is None:
        return {}
    bodies: Mapping[str, Fields] = observed.fields.get(MANIFESTS, {})
    templates = [Template(body["spec"], body["labels"]) for body in bodies.values()]
    if recorded is not None and recorded.last_ready_template is not None:
        templates.append(recorded.last_ready_template)
    return {
        template_hash({"spec": each.spec, "labels": each.labels}): _manifest(key, each)
        for each in templates
    }


def _manifest(key: ResourceKey, template: Template) -> Manifest:
    metadata = Metadata(key.name, key.namespace, template.labels)
    return Manifest(CONTAINER_API_VERSION, CONTAINER, metadata, template.spec)


def _template_in(manifest: Manifest) -> Template:
    return Template(dict(manifest.spec), dict(manifest.metadata.labels))


def _named(manifest: Manifest, name: str) -> Manifest:
    metadata = msgspec.structs.replace(manifest.metadata, name=name)
    return msgspec.structs.replace(manifest, metadata=metadata)
