"""What holds a resource: finalizers, references, guards, and nobody but a person lets go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, cast

from events.intake import Observed, OnWithdrawal
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionSucceeded,
    ApprovalAsked,
    ApprovalRefused,
    ExternalObserved,
    FinalizerAdded,
    FinalizerRemoved,
    HoldApproved,
    LogEvent,
    OwnershipClaimed,
    OwnershipReleased,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    SpecDeclared,
)
from events.manifest import Fields
from events.names import ResourceKey
from reconciler.resource.state import ResourceState
from tests.simulation.plan import ApiTraits

PERSON = "person"
GUARD = 2
"""So many undeclared objects may go at a time."""

_MAX_PERCENT = 50
_MADE_WAY = "made way"


class HoldChecks:
    """Follows the log, and knows by itself what holds each resource and what was approved."""

    def __init__(self, traits: ApiTraits, fail: Callable[[str], None]) -> None:
        self._traits = traits
        self._fail = fail
        self.finalizers: defaultdict[ResourceKey, dict[str, str]] = defaultdict(dict)
        self.references: defaultdict[ResourceKey, dict[str, OnWithdrawal]] = defaultdict(dict)
        self.forced: set[ResourceKey] = set()
        self.given_up: set[str] = set()
        self._approved: dict[ResourceKey, str] = {}
        self._asked: dict[ResourceKey, tuple[str, object]] = {}
        self._plans: dict[ResourceKey, object] = {}

    def look_at(  # noqa: C901, PLR0912 - one match
        self, key: ResourceKey, state: ResourceState, event: LogEvent, told: Observed | None
    ) -> None:
        """Judge an event by the state before it; ``told``: the observation that it rests on."""
        match event.data:
            case FinalizerAdded(finalizer, holder):
                if holder != event.actor:
                    self._fail(f"{event.id}: {finalizer} is of {event.actor}, not of {holder}")
                self.finalizers[key][finalizer] = holder
            case FinalizerRemoved(finalizer):
                self._taken_off(key, event, finalizer, forced=event.data.forced)
            case ReleaseForced():
                if state.desired.is_declared:
                    self._fail(f"{event.id}: a declared resource was released by force")
                self.finalizers[key].clear()
                self.forced.add(key)
            case SpecDeclared():
                self.forced.discard(key)
            case ReferenceAdded(by, on_withdrawal):
                self.references[key][by] = on_withdrawal
            case ReferenceRemoved(by):
                self.references[key].pop(by, None)
            case ApprovalAsked(plan):
                self._asked[key] = (plan, _world_of(state))
                self._plans.pop(key, None)
            case ApprovalRefused():
                self._plans.pop(key, None)
            case HoldApproved(hold="Approval", plan=plan):
                asked, self._plans[key] = self._asked[key]
                if plan != asked:
                    self._fail(f"{event.id}: a plan was approved that was not asked for")
            case HoldApproved(hold):
                self._approve(key, state, event, hold)
            case ActionSucceeded(operation="Delete", purpose="Replace") if key in self._plans:
                self._plans[key] = _MADE_WAY
            case ActionSucceeded():
                self._plans.pop(key, None)
            case ActionAbandoned(action_id=ended) if key in self._approved:
                self.given_up.add(ended)
            case ActionAbandoned(action_id=ended) if key in self.forced:
                self.given_up.add(ended)
            case _:
                self._look_at_effects(key, state, event, told)

    def _look_at_effects(
        self, key: ResourceKey, state: ResourceState, event: LogEvent, told: Observed | None
    ) -> None:
        match event.data:
            case ActionDecided(action):
                self._redefined(key, state, event, action)
                self._needs_approval(key, state, event, action)
                if action.operation == "Delete" and action.purpose == "Converge":
                    self._let_go(key, state, event, "deleted", kept_by=("Keep", "Release"))
                self._approved.pop(key, None)
            case OwnershipReleased(reason="Orphaned"):
                self._let_go(key, state, event, "released", kept_by=("Keep",))
            case OwnershipClaimed(reason=("ExclusiveScope" | "Label" | "Prefix")):
                if not state.desired.is_declared:
                    self._stray_claimed(key, state, event)
            case ExternalObserved(object=None) if told is not None and state.owned is not None:
                self._loss_believed(key, event, told)
            case _:
                pass

    def _taken_off(
        self, key: ResourceKey, event: LogEvent, finalizer: str, *, forced: bool
    ) -> None:
        holder = self.finalizers[key].pop(finalizer, None)
        if holder != event.actor and not forced:
            self._fail(f"{event.id}: {event.actor} took off {finalizer}, which is of {holder}")

    def _approve(self, key: ResourceKey, state: ResourceState, event: LogEvent, hold: str) -> None:
        outcome = state.outcome
        if outcome is None or (outcome.outcome, outcome.reason) != ("Held", hold):
            self._fail(f"{event.id}: {hold} was approved, which did not hold it")
        if event.actor != PERSON:
            self._fail(f"{event.id}: {event.actor} is no person, and approved it")
        self._approved[key] = hold

    def _needs_approval(
        self, key: ResourceKey, state: ResourceState, event: LogEvent, action: Action
    ) -> None:
        """What a person has to approve was approved, of this generation and this object."""
        level, approved = self._traits.approve, self._plans.get(key)
        is_deletion = action.operation == "Delete" or action.purpose == "Replace"
        if level == "Never" or action.purpose == "Retire":
            return
        if level == "Deletions" and not is_deletion:
            return
        if action.operation == "Create" and approved == _MADE_WAY:
            return
        if approved != _world_of(state):
            self._fail(f"{event.id}: {action.operation}, and nobody approved it as it is")

    def _let_go(
        self,
        key: ResourceKey,
        state: ResourceState,
        event: LogEvent,
        what: str,
        *,
        kept_by: tuple[OnWithdrawal, ...],
    ) -> None:
        """Nothing is deleted or released that a finalizer or a reference keeps."""
        if self.finalizers[key]:
            self._fail(f"{event.id}: {what}, though a finalizer stands")
        if state.desired.is_declared or key in self.forced:
            return
        if any(each in kept_by for each in self.references[key].values()):
            self._fail(f"{event.id}: {what}, though it is referred to")

    def _stray_claimed(self, key: ResourceKey, state: ResourceState, event: LogEvent) -> None:
        """What nobody declared is claimed to be deleted: not too much at once, nor relied upon."""
        if (state.observed.strays or 0) > GUARD and self._approved.get(key) != "DeletionGuard":
            self._fail(
                f"{event.id}: one of {state.observed.strays} strays goes, and nobody approved it"
            )
        if self.references[key]:
            self._fail(f"{event.id}: a stray goes that somebody refers to")

    def _redefined(
        self, key: ResourceKey, state: ResourceState, event: LogEvent, action: Action
    ) -> None:
        """A definition that changes replaces few objects, or what a person has approved."""
        definition = state.desired.definition
        is_replaced = action.operation == "Delete" and state.desired.is_declared
        is_replaced = is_replaced or (action.operation == "Create" and state.owned is not None)
        spec = state.desired.spec
        is_present = spec is not None and spec.policy.mode == "Present"
        if definition is None or not (is_replaced and is_present) or state.retiring is not None:
            return
        if definition.affected > GUARD and self._approved.get(key) != "DefinitionGuard":
            self._fail(f"{event.id}: {definition.affected} are replaced, and nobody approved it")

    def _loss_believed(self, key: ResourceKey, event: LogEvent, told: Observed) -> None:
        losses = told.losses
        if losses is None or not self._traits.loss_guard:
            return
        is_much = losses.missing * 100 > losses.owned * _MAX_PERCENT
        is_many = losses.missing >= self._traits.loss_guard
        if is_much and is_many and self._approved.get(key) != "LossGuard":
            self._fail(
                f"{event.id}: believed that {losses.missing} of {losses.owned} are gone at once"
            )


def _world_of(state: ResourceState) -> object:
    """Return what an approval rests on: what is there, and what is to be otherwise."""
    seen, spec = state.observed.object, state.desired.spec
    there = None if seen is None else (seen.fields, seen.labels, seen.uid)
    ignored = () if spec is None else spec.policy.ignore_fields
    wanted = {
        name: each
        for name, each in state.desired.fields.items()
        if name not in ignored and (seen is None or not _is_so(each, seen.fields.get(name)))
    }
    return (state.desired.generation, state.desired.is_declared, wanted, there)


def _is_so(wanted: Any, there: Any) -> bool:
    """Tell whether a field is as wanted: of a mapping, what is not named is left to others."""
    if not isinstance(wanted, dict) or not isinstance(there, dict):
        return wanted == there
    named, found = cast("Fields", wanted), cast("Fields", there)
    return all(_is_so(each, found.get(name)) for name, each in named.items())
