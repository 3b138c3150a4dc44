"""The invariants that can be checked at every step: at each append, each call and each effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from events.envelope import decode_intake
from events.external import ExternalObject
from events.intake import Answer, Observed
from events.log import (
    Action,
    ActionDecided,
    ActionHeld,
    ActionRetried,
    ActionSucceeded,
    DriftDetected,
    ExternalObserved,
    LogEvent,
    LookupDecided,
    OwnershipClaimed,
    OwnershipReleased,
    SpecDeclared,
    SpecWithdrawn,
)
from events.manifest import Policy
from events.names import ResourceKey
from reconciler.ports import ResourceAppend, StoredEvent
from reconciler.resource.decide import decide
from reconciler.resource.evolve import evolve
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.resource.state import NEW, ResourceState
from reconciler.resource.turn import Command, Context, Turn
from tests.memory_bus.clock import date_of
from tests.memory_bus.intake import IntakeStream
from tests.memory_bus.log import LOG_ID, LogStream
from tests.simulation.api import Api, second_key
from tests.simulation.holds import HoldChecks
from tests.simulation.input_checks import InputChecks
from tests.simulation.provider import Lies
from tests.simulation.vault import Vault

_MADE_NONE = ("Unchanged", "Superseded", "Duplicate")


class RecordedTurn(NamedTuple):
    """A turn as a decider took it."""

    before: ResourceState
    commands: Sequence[Command]
    context: Context
    events: Sequence[LogEvent]


class Checks:
    """Follows the log and the API, and collects what must never happen."""

    def __init__(
        self,
        log: LogStream,
        intake: IntakeStream,
        api: Api,
        lies: Lies,
        answers: Sequence[tuple[str, Answer]],
        *,
        vault: Vault,
        stop: Callable[[], None],
    ) -> None:
        self._answers = answers
        self.inputs = InputChecks(api, vault, self.fail)
        self._intake = intake
        self._api = api
        self._lies = lies
        self._stop = stop
        self.violations: list[str] = []
        self.states: dict[ResourceKey, ResourceState] = {}
        self.ours: set[str] = set()
        self.made: set[str] = set()
        self.released: set[str] = set()
        self.effects = 0
        self.holds = HoldChecks(api.traits, self.fail)
        self.turns: list[RecordedTurn] = []
        self._turn_of: dict[int, RecordedTurn] = {}
        self._actions: dict[str, Action] = {}
        self._sent: dict[str, Action] = {}
        self._effects_of: set[str] = set()
        self.action_of: dict[str, str] = {}
        self._generation_of: dict[tuple[ResourceKey, str, str], int] = {}
        log.after_store.append(self._appended)
        api.before_call = self._called
        api.before_effect = self._effect
        api.before_paint = self._painted
        api.after_create = self._created

    def fail(self, what: str) -> None:
        """Tell that an invariant does not hold, and end the run."""
        self.violations.append(what)
        self._stop()

    # --- turns

    def decide(self, state: ResourceState, commands: Sequence[Command], context: Context) -> Turn:
        """Take a turn as the decider does, and remember it."""
        context = replace(
            context, configs=dict(context.configs), providers=dict(context.providers or {}) or None
        )
        turn = decide(state, commands, context)
        recorded = RecordedTurn(state, list(commands), context, tuple(turn.events))
        self.turns.append(recorded)
        for event in turn.events:
            self._turn_of[id(event)] = recorded
        return turn

    # --- the log

    def _appended(self, append: ResourceAppend, stored: Sequence[StoredEvent]) -> None:
        key = append.key
        state = self.states.get(key, NEW)
        self.inputs.nothing_secret(append)
        turn = self._turn_of.get(id(append.events[0]))
        if turn is None:
            self.fail(f"{key}: an event was stored that no turn decided")
        elif append.events[0] is turn.events[0] and turn.before != state:
            self.fail(
                f"{key}: version {state.version + 1} was decided from a state that is not the "
                f"fold of the log: {_difference(turn.before, state)}"
            )
        for position, event in stored:
            if event.resourceversion != state.version + 1:
                self.fail(
                    f"{key}: version {event.resourceversion} follows version {state.version}"
                    f" at position {position}"
                )
                return
            self._look_at(key, state, event)
            state = evolve(state, event)
        self.states[key] = state

    def _look_at(self, key: ResourceKey, state: ResourceState, event: LogEvent) -> None:
        told = self._told(event) if isinstance(event.data, ExternalObserved) else None
        self.holds.look_at(key, state, event, told)
        self.inputs.look_at(state, event)
        self._blamed(state, event)
        match event.data:
            case ActionDecided(action):
                if state.actions.in_flight is not None:
                    self.fail(
                        f"{event.id}: decided while {state.actions.in_flight.action.action_id} is"
                    )
                if action.action_id != event.id:
                    self.fail(f"{event.id}: the action is called {action.action_id}")
                self._actions[action.action_id] = action
                self._in_time(event, state, action)
            case ActionRetried(action) | LookupDecided(action):
                if self._actions.get(action.action_id) != action:
                    self.fail(f"{event.id}: a retry changed the parameters of {action.action_id}")
            case ActionHeld(object=found):
                self._held(event, found)
            case ExternalObserved() if told is not None:
                self._observed(state, event, event.data, told)
            case OwnershipClaimed(uid=str(uid)):
                self._claimed(key, state, event, uid)
            case ActionSucceeded(object=ExternalObject(uid=str(uid)), found_by=found_by):
                self._succeeded(event, uid, looked=found_by is not None)
            case OwnershipReleased(uid=str(uid), reason="Orphaned"):
                self._labelled_still(key, state, event)
                self.ours.discard(uid)
                self.released.add(uid)
            case SpecDeclared() | SpecWithdrawn():
                self._declared(key, state, event, event.data.generation)
            case _:
                pass

    def _in_time(self, event: LogEvent, state: ResourceState, action: Action) -> None:
        """Nothing is renewed before its end, nothing replaced goes before the new one is ready."""
        seen, now = state.observed.object, self._api.now
        if action.purpose == "Renew":
            assert seen is not None
            if datetime.fromisoformat(seen.outputs["expires"]) > date_of(now):
                self.fail(f"{event.id}: renewed {seen.outputs['expires']} before its end")
        uid = None if state.owned is None else state.owned.uid
        is_replaced = action.purpose == "Retire" and state.desired.is_declared
        if is_replaced and self._api.is_starting(uid):
            self.fail(f"{event.id}: what was replaced goes before {uid} is ready")

    def _declared(
        self, key: ResourceKey, state: ResourceState, event: LogEvent, generation: int
    ) -> None:
        """One message makes one generation or none, however often it is delivered or sent.

        At its first place it may be decided again, after one that it has overtaken. So it may where
        it is sent again, if that is handled before the one that was overtaken is delivered again.
        """
        first = self._generation_of.setdefault((key, event.actor, event.causeid), generation)
        if first != generation:
            self.fail(f"{event.id}: message {event.causeid} made generation {first} already")
        for inbox, answer in self._answers:
            is_its_own = inbox == f"_INBOX.{event.causeid}" and answer.reason in _MADE_NONE
            is_repeated = is_its_own and answer.position < event.causeposition
            if is_repeated and not _overtook(answer, state):
                self.fail(f"{event.id}: message {event.causeid} was {answer.reason} before")

    def _labelled_still(self, key: ResourceKey, state: ResourceState, event: LogEvent) -> None:
        """What is let go says no more that it is ours, unless nothing may be written to it."""
        found, policy = (
            state.observed.object,
            Policy() if state.desired.spec is None else state.desired.spec.policy,
        )
        if found is None or found.labels.get(OWNER_LABEL) != owner(LOG_ID, key):
            return
        may_write = not (state.holds.orphan_forced or policy.paused or policy.mode == "ObserveOnly")
        if may_write and state.waits.failure is None and not state.waits.conflicts:
            self.fail(f"{event.id}: {found.uid} is let go with our label on it")

    def _claimed(self, key: ResourceKey, state: ResourceState, event: LogEvent, uid: str) -> None:
        """What is not ours becomes ours only as the policy or the configuration says."""
        assert isinstance(event.data, OwnershipClaimed)
        reason = event.data.reason
        spec = state.desired.spec
        if reason == "Adopted" and (spec is None or spec.policy.adoption != "Adopt"):
            self.fail(f"{event.id}: {uid} was adopted against the policy")
        if reason == "ExclusiveScope" and not self._api.traits.exclusive:
            self.fail(f"{event.id}: {uid} was claimed in a shared scope")
        if reason == "Label" and self._api.traits.ownership != "Label":
            self.fail(f"{event.id}: {uid} was claimed by its label, which decides nothing")
        if reason == "Prefix":
            self.fail(f"{event.id}: {uid} was claimed by its name, which decides nothing")
        if reason == "Returned" and uid not in self.ours:
            self.fail(f"{event.id}: {uid} never was ours, so it cannot have returned")
        self.ours.add(uid)
        self.released.discard(uid)

    def _succeeded(self, event: LogEvent, uid: str, *, looked: bool) -> None:
        """What an action is said to have made was made by one of ours, or carries our label."""
        assert isinstance(event.data, ActionSucceeded)
        known = uid in self.ours or uid in self.made  # it may have been let go before it was told
        if not known and not looked and event.data.operation == "Create":
            self.fail(f"{event.id}: {uid} was not made by us")
        if not (event.data.outdated and uid in self.released):  # else it was let go since
            self.ours.add(uid)

    def _blamed(self, state: ResourceState, event: LogEvent) -> None:
        """What we deleted ourselves is never said to be the work of others."""
        drift = event.data
        if not isinstance(drift, DriftDetected) or not drift.missing or drift.perhaps_by:
            return
        assert state.owned is not None
        for change in self._api.changes:
            deleted = change.before if change.after is None and change.key else None
            if deleted is not None and deleted.uid == state.owned.uid:
                deleted_by = self.action_of.get(change.key)
                self.fail(f"{event.id}: {deleted.uid} was deleted by {deleted_by}")

    def _held(self, event: LogEvent, found: ExternalObject | None) -> None:
        """A person is asked only what nothing else can tell."""
        if self._api.traits.idempotency_keys:
            self.fail(f"{event.id}: held for a person, though its key tells what came of it")
        tells = found is not None and OWNER_LABEL in found.labels and self._api.traits.names
        ours = owner(LOG_ID, event.key)
        tells = tells or any(
            each.name == event.key.name and each.labels.get(OWNER_LABEL) == ours
            for each in self._api.objects.values()
            if not self._api.traits.names and each.uid in self.made
        )
        if found is None or tells:
            self.fail(f"{event.id}: held for a person, though {found} tells what came of it")

    def _told(self, event: LogEvent) -> Observed:
        """Give the observation that an event rests on."""
        source = self._intake.messages[event.causeposition - 1]
        told = decode_intake(source.payload, expected="observed", fallback_id="-").data
        assert isinstance(told, Observed)
        return told

    def _observed(
        self, state: ResourceState, event: LogEvent, data: ExternalObserved, observed: Observed
    ) -> None:
        """What is recorded as seen began after our last effect, and absence is true."""
        if state.actions.in_flight is not None:
            self.fail(f"{event.id}: an observation was believed while an action is in flight")
        if data.as_of < state.actions.effect_position:
            self.fail(f"{event.id}: an observation was believed that is older than our effect")
        source = self._intake.messages[event.causeposition - 1]
        grace = self._api.traits.grace_seconds
        if grace and state.actions.effect_at is not None and observed.began_at is not None:
            waited = (observed.began_at - state.actions.effect_at).total_seconds()
            if waited < grace:
                self.fail(f"{event.id}: believed {waited:.2f} s after our effect: grace {grace} s")
        if data.object is None:
            began = self._intake.messages[data.as_of - 1].stored_at if data.as_of else 0.0
            name = data.external_name
            lied = any(each == name and at >= began for at, each in self._lies.left_out)
            known = state.owned or state.observed.object
            uid = None if known is None else known.uid
            until = source.stored_at
            if not lied and not self._api.was_absent_within(name, uid, began - grace, until):
                self.fail(f"{event.id}: {name} was held for gone, but it was there all the time")

    # --- the API

    def _painted(self, action: Action) -> None:
        """The second call of a creation has one effect, of the action that has made the first."""
        key = second_key(action)
        if self._api.traits.idempotency_keys and key in self._effects_of:
            self.fail(f"{action.action_id}: a second effect with its second key")
        if action.idempotency_key not in self._effects_of:
            self.fail(f"{action.action_id}: its second call came before its first")
        self._effects_of.add(key)
        self.action_of[key] = action.action_id

    def _created(self, uid: str) -> None:
        self.made.add(uid)
        self.ours.add(uid)

    def _called(self, action: Action) -> None:
        """The API hears of nothing that the log does not have."""
        if self._actions.get(action.action_id) != action:
            self.fail(f"{action.operation} {action.external_name}: no such intent in the log")
        first = self._sent.setdefault(action.idempotency_key, action)
        if first != action:
            self.fail(f"{action.action_id}: its key came with other parameters before")

    def _effect(self, action: Action, found: ExternalObject | None) -> None:
        """One effect a key, and none on what is not ours."""
        self.effects += 1
        if self._api.traits.idempotency_keys:
            if action.idempotency_key in self._effects_of:
                self.fail(f"{action.action_id}: a second effect with one key")
            if action.action_id in self._effects_of:
                self.fail(f"{action.action_id}: a second effect of one action")
        if action.operation == "Create" and found is not None:
            self.fail(f"{action.action_id}: a second object {action.external_name}")
        self._effects_of |= {action.idempotency_key, action.action_id}
        self.action_of[action.idempotency_key] = action.action_id
        if found is None or not self._api.traits.conditional_writes:
            return  # unconditional: between the look and the write it may have become another
        if action.action_id in self.holds.given_up:
            return  # it was under way when a person gave it up, with the object
        if found.uid in self.released and self._may_come_yet(action):
            return
        if found.uid not in self.ours:
            self.fail(f"{action.action_id}: {action.operation} of {found.uid}, which is not ours")

    def _may_come_yet(self, action: Action) -> bool:
        """The log says so of a call that was given up when nobody knew whether it was made."""
        state = self.states[ResourceKey.parse(action.action_id.partition("@")[0])]
        return any(each.action == action and each.in_doubt for each in state.actions.ended)


def check_determinism(turns: Sequence[RecordedTurn]) -> str | None:
    """Take every turn once more; tell the first that gives other events."""
    for turn in turns:
        again = decide(turn.before, turn.commands, turn.context)
        if tuple(again.events) != turn.events:
            return (
                f"{turn.context.key}: version {turn.before.version} is not decided the same again"
            )
    return None


def _overtook(answer: Answer, state: ResourceState) -> bool:
    """Tell whether the newest generation came before a message, and was stored after its answer."""
    return state.desired.position < answer.position and answer.generation < state.desired.generation


def _difference(left: ResourceState, right: ResourceState) -> str:
    names = [
        name
        for name in ResourceState.__struct_fields__
        if getattr(left, name) != getattr(right, name)
    ]
    return ", ".join(f"{n}: {getattr(left, n)!r} is not {getattr(right, n)!r}" for n in names)
