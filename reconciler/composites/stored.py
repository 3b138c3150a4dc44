"""Outputs and readiness of composed kinds with stored content."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, Final

import msgspec

from events.composition import STUCK, Child
from events.external import ExternalObject
from events.manifest import Fields
from reconciler.provider.kind import READY, Readiness

_MAX_NAMED: Final = 10


class StoredOutputs(msgspec.Struct, frozen=True, rename="camel"):
    """Counts of the resources. ``waiting`` names some that are not ready, with their reasons."""

    resources: Annotated[int, msgspec.Meta(description="Number of resources.")]
    ready: Annotated[int, msgspec.Meta(description="Number of resources that are ready.")]
    waiting: Annotated[
        dict[str, str],
        msgspec.Meta(description="Some resources that are not ready, with the reason."),
    ] = {}
    leaving: Annotated[
        list[str],
        msgspec.Meta(description="Withdrawn resources that still exist."),
    ] = []


def summary(_fields: Fields, children: Mapping[str, Child]) -> Fields:
    """Return the counts of the resources, and some that are not ready, stuck ones first."""
    waiting = {name: each for name, each in sorted(children.items()) if not each.ready}
    worst = sorted(waiting, key=lambda name: waiting[name].outcome not in STUCK)
    return {
        "resources": len(children),
        "ready": len(children) - len(waiting),
        "waiting": {name: _describe_child(waiting[name]) for name in islice(worst, _MAX_NAMED)},
    }


def ready(_fields: Fields, existing: ExternalObject) -> Readiness:
    """Return whether all resources are ready, and all withdrawn ones are deleted."""
    outputs: Mapping[str, Any] = existing.outputs
    waiting: Mapping[str, str] = outputs.get("waiting", {})
    number, total = outputs.get("ready", 0), outputs.get("resources", 0)
    progress = f"{number} of {total} resources are ready"
    for name, why in waiting.items():
        reason = "Stalled" if why.partition(":")[0] in STUCK else "Progressing"
        return Readiness(False, reason, f"{progress}; {name} is {why}")
    leaving: list[str] = outputs.get("leaving", [])
    if leaving:
        return Readiness(False, "Progressing", f"{progress}; {leaving[0]} is still being deleted")
    return READY


def _describe_child(child: Child) -> str:
    why = child.message or child.reason
    return f"{child.outcome}: {why}" if why else child.outcome
