"""A plan: the exact result of declarations, before anything is declared (ADR 0038)."""

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
from reconciler.resource.exchange import describe_exchange
from reconciler.resource.expectation import PartChange
from reconciler.roles.planning.foresight import (
    ForeseenAction,
    ForeseenResource,
    Foresight,
    ListingTarget,
)
from reconciler.sdk.log_replay import LogReplay, closing, read_stored_models

PLAN_FORMAT: Final = 1

Verdict = Literal["Change", "NoChange", "Refused", "Held", "Waiting", "Unreadable"]
"""A plan's verdict on a resource."""

_WAY_OUT: Final = "declare one of them with a temporary value first"
_WAITING_OUTCOMES: Final = frozenset({"Waiting", "Degraded"})


class PlannedChange(msgspec.Struct, frozen=True, rename="camel"):
    """One field of an action: its last applied, observed and desired values."""

    path: str
    applied: Any
    observed: Any
    wanted: Any


class PlannedPart(msgspec.Struct, frozen=True, rename="camel"):
    """A resource that a composed one declares for the first time, changes or withdraws.

    ``changes``: changes to its declaration. The plan lists their effects as a separate resource.
    """

    resource: str
    step: Literal["Declare", "Change", "Withdraw"]
    changes: tuple[PlannedChange, ...] = ()


class PlannedAction(msgspec.Struct, frozen=True, rename="camel"):
    """An action that would be decided; ``under_way``: it is already in progress.

    ``needs_approval``: it waits for an operator's approval. ``parts``: its changes to the parts of
    a composed resource. ``goes_on``: another step follows once the parts are ready.
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
    """The predicted change of one resource.

    ``version``: the version of the resource on which the plan is based. ``digest`` covers the
    events that the declaration would append. ``manifest`` is None for a resource that the plan does
    not declare. ``withdrawn``: the declaration is withdrawn. ``part_of``: the composed resource
    that declares or withdraws it. ``observed_at``: time of the object's last read, for this plan or
    according to the log.
    """

    resource: str
    says: Verdict
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
    moved_from: str = ""  # former owner of the object that this resource takes over
    moved_to: str = ""  # resource that takes the object over
    warning: str = ""  # why the API will refuse an action, although the plan predicts its success

    @property
    def ref(self) -> PlanRef:
        """A reference that makes a declaration fail unless its result is as planned."""
        return PlanRef(self.version, self.digest)

    @property
    def key(self) -> ResourceKey:
        """The key of the resource."""
        return ResourceKey.parse(self.resource)

    @property
    def is_declared(self) -> bool:
        """Whether the plan declares the resource; otherwise its change is a consequence."""
        return self.manifest is not None


class Plan(msgspec.Struct, frozen=True, rename="camel"):
    """The result of declarations, based on the log at a position."""

    log: str
    position: int
    made_at: datetime
    resources: tuple[PlannedResource, ...]
    format: int = PLAN_FORMAT

    @property
    def changes(self) -> bool:
        """Whether any action would run, or any declaration is refused."""
        return any(each.says != "NoChange" for each in self.resources)


async def compute_plan(
    nc: Client,
    manifests: Sequence[Manifest],
    *,
    withdraw: Sequence[ResourceKey] = (),
    kinds: KindRegistry | None = None,
    listing: Callable[[Foresight, Collection[ListingTarget]], Awaitable[None]] | None = None,
) -> Plan:
    """Compute the result of declaring manifests, based on the current log; nothing is declared.

    ``withdraw``: resources whose declarations are withdrawn after that. ``kinds``: the installed
    kinds by default. ``listing`` can add fresh listings of the APIs once the configurations are
    known. It receives the listing targets of the plan.
    """
    log, now = await open_log(nc), datetime.now(UTC)
    kinds = installed_kinds() if kinds is None else kinds
    system = [each for each in manifests if each.metadata.namespace == SYSTEM_NAMESPACE]
    declarations = [each for each in manifests if each not in system]
    requested = {**dict.fromkeys(withdraw), **{each.key: each for each in manifests}}

    async def predict(targets: Collection[ListingTarget]) -> tuple[Foresight, int]:
        async with closing(LogReplay(log, await read_stored_models(nc, log))) as replay:
            await replay.advance()
            models = replay.models
        position = models.position
        foresight = Foresight(log, models, kinds.copy(), now)
        await foresight.load()
        await foresight.declare(system)
        if listing is not None and targets:
            await listing(foresight, targets)
        await foresight.declare(declarations)
        await foresight.withdraw(withdraw)
        return foresight, position

    foresight, position = await predict(())
    if listing is not None and (targets := foresight.listing_targets(requested)):
        foresight, position = await predict(targets)
    return _build_plan(foresight, requested, log=log.log_id, position=position, now=now)


def _build_plan(
    foresight: Foresight,
    requested: Mapping[ResourceKey, Manifest | None],
    *,
    log: str,
    position: int,
    now: datetime,
) -> Plan:
    """Return the plan of a prediction: requested resources in order, then consequences."""
    resources = [_plan_resource(foresight, key, manifest) for key, manifest in requested.items()]
    resources += [
        _plan_resource(foresight, key, None)
        for key, resource in sorted(foresight.resources.items())
        if key not in requested and _would_change(resource)
    ]
    return Plan(log, position, now, tuple(resources))


def _would_change(resource: ForeseenResource) -> bool:
    """Return whether a resource that the plan does not declare would change."""
    is_new = any(not each.was_under_way for each in resource.actions)
    is_refused = resource.refused is not None
    return bool(
        is_new or resource.claims or resource.releases or resource.outcome_changes or is_refused
    )


def _plan_resource(
    foresight: Foresight, key: ResourceKey, manifest: Manifest | None
) -> PlannedResource:
    resource = foresight.resources.get(key)
    if resource is None:
        reason_text = foresight.unreadable.get(key, "its history is unreadable")
        return PlannedResource(str(key), "Unreadable", 0, 0, manifest=manifest, message=reason_text)
    exchange = foresight.find_exchange(key)
    reply = resource.turn.replies[0] if resource.turn is not None else resource.refused
    outcome = resource.state.outcome
    verdict, reason, message = _verdict(resource)
    if reply is not None and not reply.accepted:
        verdict, reason, message = "Refused", reply.reason, reply.message
    elif is_config(key) and (count := foresight.moved_objects.get(key.name)):
        message = (
            f"{plural(count, 'object is', 'objects are')} expected at another endpoint; use "
            "--refresh to list the objects there"
        )
    elif is_config(key) and foresight.may_delete_unknown_objects(key.name):
        message = (
            "Reconciler would delete undeclared objects of this scope, but the log does not "
            "contain all of its objects; use --refresh to list them"
        )
    return PlannedResource(
        resource=str(key),
        says=verdict,
        version=resource.base.state.version,
        position=resource.base.position,
        manifest=manifest,
        digest=resource.digest,
        reason=reason,
        message=message,
        actions=tuple(map(_action, resource.actions)),
        adopts=tuple(f"{each.external_name} ({each.reason})" for each in resource.claims),
        releases=tuple(f"{each.external_name} ({each.reason})" for each in resource.releases),
        outcome="" if outcome is None else outcome.outcome,
        withdrawn=resource.is_withdrawn,
        observed_at=foresight.observed_at(resource),
        part_of="" if resource.part_of is None else str(resource.part_of),
        moved_from=next((each.moved.moved_from for each in resource.claims if each.moved), ""),
        moved_to=next((each.moved_to for each in resource.releases if each.moved_to), ""),
        warning="" if exchange is None else f"{describe_exchange(exchange)}; {_WAY_OUT}",
    )


def _verdict(resource: ForeseenResource) -> tuple[Verdict, str, str]:
    outcome = resource.state.outcome
    if outcome is not None and outcome.outcome == "Held":
        return "Held", outcome.reason, outcome.message
    if outcome is not None and outcome.outcome in _WAITING_OUTCOMES:
        return "Waiting", outcome.reason, outcome.message
    reason, message = ("", "") if outcome is None else (outcome.reason, outcome.message)
    return (
        ("Change" if _would_change(resource) or _is_new(resource) else "NoChange"),
        reason,
        message,
    )


def _is_new(resource: ForeseenResource) -> bool:
    return resource.state.desired.generation != resource.base.state.desired.generation


def _action(each: ForeseenAction) -> PlannedAction:
    action = each.action
    return PlannedAction(
        operation=action.operation,
        purpose=action.purpose,
        external_name=action.external_name,
        provider_config=action.provider_config,
        uid=action.uid,
        changes=tuple(
            PlannedChange(difference.path, applied, difference.observed, difference.desired)
            for difference, applied in each.changes
        ),
        under_way=each.was_under_way,
        needs_approval=each.needs_approval,
        parts=tuple(map(_part, each.parts)),
        goes_on=each.has_next_step,
    )


def _part(each: PartChange) -> PlannedPart:
    changes: tuple[PlannedChange, ...] = ()
    if each.step == "Change" and each.before is not None and each.wanted is not None:
        current = {**each.before.spec, **_labels(each.before)}
        desired = {**each.wanted.spec, **_labels(each.wanted)}
        changes = tuple(
            PlannedChange(path, current.get(path), current.get(path), desired.get(path))
            for path in dict.fromkeys((*desired, *current))
            if current.get(path) != desired.get(path)
        )
    return PlannedPart(str(each.key), each.step, changes)


def _labels(manifest: Manifest) -> dict[str, str]:
    labels = manifest.metadata.labels.items()
    return {f"labels.{name}": value for name, value in labels if name != PART_OF_LABEL}
