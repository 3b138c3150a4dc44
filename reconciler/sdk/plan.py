"""A plan: what would come of declarations, exactly, before anything is declared (ADR 0038)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from nats.aio.client import Client

from events.composition import PART_OF_LABEL
from events.intake import PlanRef
from events.log import Operation, OutcomeName, Purpose
from events.manifest import Manifest
from events.names import SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import is_config
from events.wording import plural
from infra.bus.event_log import open_log
from reconciler.provider.kind import KindRegistry, installed_kinds
from reconciler.resource.expectation import PartChange
from reconciler.roles.planning.foresight import ForeseenAction, ForeseenResource, Foresight, Place
from reconciler.sdk.log_replay import LogReplay, closing, stored_models

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


class PlannedPart(msgspec.Struct, frozen=True, rename="camel"):
    """A resource that a composed one declares for the first time, changes or withdraws.

    ``changes`` are of what it is declared as; what comes of that is its own resource of the plan.
    """

    resource: str
    step: Literal["Declare", "Change", "Withdraw"]
    changes: tuple[PlannedChange, ...] = ()


class PlannedAction(msgspec.Struct, frozen=True, rename="camel"):
    """An action that would be decided; ``under_way``: it is already.

    ``needs_approval``: it waits until a person has approved it. ``parts``: what it does about the
    parts of a composed resource. ``goes_on``: it is one step, and when its parts are ready the next
    one follows.
    """

    operation: Operation
    purpose: Purpose
    external_name: str
    provider_config: str
    uid: str | None = None
    changes: tuple[PlannedChange, ...] = ()
    under_way: bool = False
    needs_approval: bool = False
    parts: tuple[PlannedPart, ...] = ()
    goes_on: bool = False


class PlannedResource(msgspec.Struct, frozen=True, rename="camel"):
    """What would become of one resource.

    ``version`` is that of the resource which the plan rests on, ``digest`` that of what its
    declaration would append. ``manifest`` is empty for a resource that the plan does not declare.
    ``withdrawn``: its declaration is taken back. ``part_of`` names the composed resource that
    declares or withdraws it. ``observed_at`` is when the object was read last: by a listing for
    this plan, or else the time of its last observation in the log.
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
    withdrawn: bool = False
    observed_at: datetime | None = None
    part_of: str = ""

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


async def planned(
    nc: Client,
    manifests: Sequence[Manifest],
    *,
    withdraw: Sequence[ResourceKey] = (),
    kinds: KindRegistry | None = None,
    listing: Callable[[Foresight, Collection[Place]], Awaitable[None]] | None = None,
) -> Plan:
    """Foresee what would come of manifests, by the log as it is now; nothing is declared.

    ``withdraw``: whose declarations are taken back after that.
    ``kinds`` are those that are installed here, by default. ``listing`` may show the foresight what
    the APIs have, once it knows the configurations. It gets the places of the plan's resources.
    """
    log, now = await open_log(nc), datetime.now(UTC)
    kinds = installed_kinds() if kinds is None else kinds
    system = [each for each in manifests if each.metadata.namespace == SYSTEM_NAMESPACE]
    others = [each for each in manifests if each not in system]
    asked_for = {**dict.fromkeys(withdraw), **{each.key: each for each in manifests}}

    async def foreseen(places: Collection[Place]) -> tuple[Foresight, int]:
        async with closing(LogReplay(log, await stored_models(nc, log))) as replay:
            await replay.go_on()
            models = replay.models
        position = models.position
        foresight = Foresight(log, models, kinds.copy(), now)
        await foresight.load()
        await foresight.declare(system)
        if listing is not None and places:
            await listing(foresight, places)
        await foresight.declare(others)
        await foresight.withdraw(withdraw)
        return foresight, position

    foresight, position = await foreseen(())
    if listing is not None and (places := foresight.places(asked_for)):
        foresight, position = await foreseen(places)
    return _plan_of(foresight, asked_for, log=log.log_id, position=position, now=now)


def _plan_of(
    foresight: Foresight,
    asked_for: Mapping[ResourceKey, Manifest | None],
    *,
    log: str,
    position: int,
    now: datetime,
) -> Plan:
    """Read a plan out of what was foreseen: what is asked for in order, then what follows."""
    found = [_planned(foresight, key, manifest) for key, manifest in asked_for.items()]
    found += [
        _planned(foresight, key, None)
        for key, mine in sorted(foresight.found.items())
        if key not in asked_for and _follows(mine)
    ]
    return Plan(log, position, now, tuple(found))


def _follows(mine: ForeseenResource) -> bool:
    """Return whether something comes of the plan for a resource that it does not declare."""
    is_new = any(not each.was_under_way for each in mine.actions)
    is_refused = mine.refused is not None
    return bool(is_new or mine.claims or mine.releases or mine.outcome_changes or is_refused)


def _planned(foresight: Foresight, key: ResourceKey, manifest: Manifest | None) -> PlannedResource:
    mine = foresight.found.get(key)
    if mine is None:
        why = foresight.unread.get(key, "its history is unreadable")
        return PlannedResource(str(key), "Unreadable", 0, 0, manifest=manifest, message=why)
    answer = mine.turn.replies[0] if mine.turn is not None else mine.refused
    outcome = mine.state.outcome
    says, reason, message = _says(mine)
    if answer is not None and not answer.accepted:
        says, reason, message = "Refused", answer.reason, answer.message
    elif is_config(key) and (count := foresight.elsewhere.get(key.name)):
        message = (
            f"{plural(count, 'object is', 'objects are')} expected at another endpoint; use "
            "--refresh to list the objects there"
        )
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
        withdrawn=mine.is_withdrawn,
        observed_at=foresight.observed_at(mine),
        part_of="" if mine.part_of is None else str(mine.part_of),
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
        needs_approval=each.needs_approval,
        parts=tuple(map(_part, each.parts)),
        goes_on=each.goes_on,
    )


def _part(each: PartChange) -> PlannedPart:
    found: tuple[PlannedChange, ...] = ()
    if each.step == "Change" and each.before is not None and each.wanted is not None:
        had = {**each.before.spec, **_labels(each.before)}
        wanted = {**each.wanted.spec, **_labels(each.wanted)}
        found = tuple(
            PlannedChange(path, had.get(path), had.get(path), wanted.get(path))
            for path in dict.fromkeys((*wanted, *had))
            if had.get(path) != wanted.get(path)
        )
    return PlannedPart(str(each.key), each.step, found)


def _labels(manifest: Manifest) -> dict[str, str]:
    labels = manifest.metadata.labels.items()
    return {f"labels.{name}": value for name, value in labels if name != PART_OF_LABEL}
