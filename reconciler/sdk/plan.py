"""A plan: what would come of declarations, exactly, before anything is declared (ADR 0038)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from events.intake import PlanRef
from events.log import Operation, OutcomeName, Purpose
from events.manifest import Manifest
from events.names import ResourceKey
from events.provider_config import is_config
from reconciler.roles.foresight import ForeseenAction, ForeseenResource, Foresight

PLAN_FORMAT: Final = 1

Says = Literal["Change", "NoChange", "Refused", "Held", "Waiting", "Unreadable"]
"""What a plan says of a resource in one word."""

_WAITS: Final = frozenset({"Waiting", "Degraded"})


class PlannedChange(msgspec.Struct, frozen=True, rename="camel"):
    """One field of an action: as it was applied last, as it is known now, and as it is wanted."""

    path: str
    applied: Any
    observed: Any
    wanted: Any


class PlannedAction(msgspec.Struct, frozen=True, rename="camel"):
    """An action that would be decided; ``under_way``: it is already."""

    operation: Operation
    purpose: Purpose
    external_name: str
    provider_config: str
    uid: str | None = None
    changes: tuple[PlannedChange, ...] = ()
    under_way: bool = False


class PlannedResource(msgspec.Struct, frozen=True, rename="camel"):
    """What would become of one resource.

    ``version`` is that of the resource which the plan rests on, ``digest`` that of what its
    declaration would append. ``manifest`` is empty for a resource that the plan does not declare.
    """

    resource: str
    says: Says
    version: int
    position: int
    manifest: Manifest | None = None
    digest: str = ""
    reason: str = ""
    message: str = ""
    actions: tuple[PlannedAction, ...] = ()
    adopts: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    outcome: OutcomeName | Literal[""] = ""

    @property
    def ref(self) -> PlanRef:
        """What its declaration carries, so that it does this or nothing."""
        return PlanRef(self.version, self.digest)

    @property
    def key(self) -> ResourceKey:
        """The resource's name."""
        return ResourceKey.parse(self.resource)

    @property
    def is_declared(self) -> bool:
        """Whether the plan declares it; else it only follows."""
        return self.manifest is not None


class Plan(msgspec.Struct, frozen=True, rename="camel"):
    """What would come of declarations, of a log as it was at a position."""

    log: str
    position: int
    made_at: datetime
    resources: tuple[PlannedResource, ...]
    format: int = PLAN_FORMAT

    @property
    def changes(self) -> bool:
        """Whether anything would be done, or is refused."""
        return any(each.says != "NoChange" for each in self.resources)


def plan_of(
    foresight: Foresight, manifests: Sequence[Manifest], *, log: str, position: int, now: datetime
) -> Plan:
    """Read a plan out of what was foreseen: the declared ones in order, then what follows."""
    declared = {each.key: each for each in manifests}
    found = [_planned(foresight, key, manifest) for key, manifest in declared.items()]
    found += [
        _planned(foresight, key, None)
        for key, mine in sorted(foresight.found.items())
        if key not in declared and _follows(mine)
    ]
    return Plan(log, position, now, tuple(found))


def _follows(mine: ForeseenResource) -> bool:
    """Return whether something comes of the plan for a resource that it does not declare."""
    is_new = any(not each.was_under_way for each in mine.actions)
    return bool(is_new or mine.claims or mine.releases or mine.outcome_changes)


def _planned(foresight: Foresight, key: ResourceKey, manifest: Manifest | None) -> PlannedResource:
    mine = foresight.found.get(key)
    if mine is None:
        why = foresight.unread.get(key, "it cannot be read")
        return PlannedResource(str(key), "Unreadable", 0, 0, manifest=manifest, message=why)
    answer = mine.turn.answers[0] if mine.turn is not None else None
    outcome = mine.state.outcome
    says, reason, message = _says(mine)
    if answer is not None and not answer.accepted:
        says, reason, message = "Refused", answer.reason, answer.message
    elif is_config(key) and (count := foresight.elsewhere.get(key.name)):
        message = f"{count} objects are looked for at another endpoint: --refresh lists there"
    return PlannedResource(
        resource=str(key),
        says=says,
        version=mine.base.state.version,
        position=mine.base.position,
        manifest=manifest,
        digest=mine.digest,
        reason=reason,
        message=message,
        actions=tuple(map(_action, mine.actions)),
        adopts=tuple(f"{each.external_name} ({each.reason})" for each in mine.claims),
        releases=tuple(f"{each.external_name} ({each.reason})" for each in mine.releases),
        outcome="" if outcome is None else outcome.outcome,
    )


def _says(mine: ForeseenResource) -> tuple[Says, str, str]:
    outcome = mine.state.outcome
    if outcome is not None and outcome.outcome == "Held":
        return "Held", outcome.reason, outcome.message
    if outcome is not None and outcome.outcome in _WAITS:
        return "Waiting", outcome.reason, outcome.message
    reason, message = ("", "") if outcome is None else (outcome.reason, outcome.message)
    return ("Change" if _follows(mine) or _is_new(mine) else "NoChange"), reason, message


def _is_new(mine: ForeseenResource) -> bool:
    return mine.state.desired.generation != mine.base.state.desired.generation


def _action(each: ForeseenAction) -> PlannedAction:
    action = each.action
    return PlannedAction(
        operation=action.operation,
        purpose=action.purpose,
        external_name=action.external_name,
        provider_config=action.provider_config,
        uid=action.uid,
        changes=tuple(
            PlannedChange(one.path, applied, one.observed, one.desired)
            for one, applied in each.changes
        ),
        under_way=each.was_under_way,
    )
