"""A small pure world around one resource: an external API, people, a worker, an observer, a bus.

The judge checks each step: an assertion fails at the first finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import (
    ActionError,
    Declared,
    IntakeData,
    Observed,
    Reported,
    TimerFired,
    Withdrawn,
)
from events.log import Action, DeclarationSuperseded, LogEvent
from events.manifest import Fields
from reconciler.resource.state import NEW, InFlight
from reconciler.resource.turn import Command
from tests.judge.history import Call, Effect, History, Message, RecordedEvent
from tests.judge.judging import Judge
from tests.judge.turns import Turns
from tests.resource.building import CONFIG, LOG_ID, Story, manifest

Result = tuple[ExternalObject | None, ActionError | None]
Fault = Literal[
    "none",
    "transient",
    "throttled",
    "permanent",
    "unknown-before",
    "unknown-after",
    "lost",
    "stuck",
]
FAULTS: tuple[Fault, ...] = (
    "none",
    "none",
    "none",
    "transient",
    "throttled",
    "permanent",
    "unknown-before",
    "unknown-after",
    "lost",
    "stuck",
)


class Api:
    """Objects with uids, versions and idempotency keys; the judge checks each call and effect."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._serial = 0
        self.object: ExternalObject | None = None
        self.stored_results: dict[str, ExternalObject | None] = {}
        self.effects = 0

    def next_serial(self) -> str:
        self._serial += 1
        return str(self._serial)

    def call(self, action: Action, *, shows_obstacle: bool) -> Result:
        assert self._judge.call(Call(0.0, action)) == []
        if action.idempotency_key in self.stored_results:
            return self.stored_results[action.idempotency_key], None
        existing = self.object
        if existing is None and action.operation == "Update":
            return None, ActionError("NotFound", "it does not exist")
        is_conflict = existing is not None and (
            action.operation == "Create"
            or (action.uid is not None and action.uid != existing.uid)
            or (action.version is not None and action.version != existing.version)
        )
        if is_conflict:
            return (existing if shows_obstacle else None), ActionError("Conflict", "in the way")
        self._apply(action, existing)
        self.stored_results[action.idempotency_key] = self.object
        return self.object, None

    def _apply(self, action: Action, existing: ExternalObject | None) -> None:
        if action.operation == "Delete":
            self.object = None
        else:
            uid = f"u{self.next_serial()}" if existing is None else existing.uid
            self.object = ExternalObject(
                action.external_name, action.fields, uid, self.next_serial(), action.labels
            )
        changed = existing or self.object
        if changed is not None and changed.uid is not None:
            self.effects += 1
            key, name = action.idempotency_key, action.external_name
            effect = Effect(0.0, action.operation, name, changed.uid, key, self.object)
            assert self._judge.effect(effect) == []


class World:
    """A resource and its surroundings. Every message has a position in the intake."""

    def __init__(self) -> None:
        self.story = Story()
        self.history = History(log_id=LOG_ID, by_hand=None, objects=())
        self.judge = Judge(self.history)
        self.turns = Turns()
        self.api = Api(self.judge)
        self.intake: list[Command] = []
        self.delivered_count = 0
        self.observations: list[Observed] = []
        self._reported: set[tuple[str, int]] = set()
        self._delivered_attempts: set[tuple[str, int]] = set()
        self._stuck: list[InFlight] = []

    # --- the bus

    def publish(self, data: IntakeData) -> None:
        position = len(self.intake) + 1
        self.intake.append(Command(position, f"m{position}", "world", data))
        self.history.add(Message(position, self.story.key, f"m{position}", "world", data))

    def deliver(self, count: int) -> list[LogEvent]:
        batch = self.intake[self.delivered_count : self.delivered_count + count]
        self.delivered_count += len(batch)
        return self.turn(batch) if batch else []

    def redeliver(self, index: int) -> None:
        """Redeliver a message, which leads to no event once all messages have been decided.

        The exception is a declaration that changed nothing at first and has since been superseded:
        it is recorded once (ADR 0016).
        """
        if self.delivered_count:
            self.turn([Command(self.delivered_count, "wake", "world", TimerFired("Sweep"))])
            duplicate = [self.intake[index % self.delivered_count]]
            types = [type(each.data) for each in self.turn(duplicate)]
            assert types in ([], [DeclarationSuperseded])
            assert self.turn(duplicate) == []

    def turn(self, commands: Sequence[Command]) -> list[LogEvent]:
        story = self.story
        turn = self.turns.decide(story.state, commands, story.context)
        story.state = turn.state
        story.log += turn.events
        if turn.events:
            assert list(self.turns.check_appended(turn.events, turn.events)) == []
        for event in turn.events:
            recorded = RecordedEvent(len(self.history.log) + 1, 0.0, event)
            self.history.log.append(recorded)
            assert self.judge.event(recorded) == []
        assert self.turns.states.get(story.key, NEW) == story.state
        return list(turn.events)

    # --- clients of the bus and of the API

    def declare(self, fields: Fields, policy: Fields) -> None:
        self.publish(Declared(manifest(fields, policy=policy)))

    def withdraw(self) -> None:
        self.publish(Withdrawn())

    def create_by_hand(self, color: str) -> None:
        if self.api.object is None:
            self.api.object = ExternalObject(
                "Foo",
                {"color": color, "note": "mine"},
                f"h{self.api.next_serial()}",
                self.api.next_serial(),
            )

    def edit_by_hand(self, changes: Fields) -> None:
        existing = self.api.object
        if existing is not None:
            self.api.object = replace(
                existing, fields={**existing.fields, **changes}, version=self.api.next_serial()
            )

    def strip_labels_by_hand(self) -> None:
        if self.api.object is not None:
            self.api.object = replace(self.api.object, labels={}, version=self.api.next_serial())

    def touch_by_hand(self) -> None:
        if self.api.object is not None:
            self.api.object = replace(self.api.object, version=self.api.next_serial())

    def delete_by_hand(self) -> None:
        self.api.object = None

    def begin_listing(self) -> None:
        """Begin a listing; its observation is published later, or never."""
        self.observations.append(
            Observed(CONFIG, "Foo", self.api.object, "CompleteListing", len(self.intake))
        )

    def publish_observation(self, index: int) -> None:
        if self.observations:
            self.publish(self.observations[index % len(self.observations)])

    def work(self, fault: Fault, shows_obstacle: bool = True) -> None:
        """Attempt the action in flight, which is delivered until a report arrives.

        With ``lost``, the worker dies before it reports; with ``stuck``, it stops before its call.
        """
        flight = self.story.state.actions.in_flight
        if flight is None or (flight.action.action_id, flight.attempt) in self._reported:
            return
        observed_object: ExternalObject | None = None
        error: ActionError | None = None
        if flight.is_lookup:
            self._look_up(flight, fault)
            return
        attempt = (flight.action.action_id, flight.attempt)
        redelivered = attempt in self._delivered_attempts
        self._delivered_attempts.add(attempt)
        if fault == "stuck":
            self._stuck.append(flight)
            return
        if fault in ("none", "unknown-after", "lost"):
            observed_object, error = self.api.call(flight.action, shows_obstacle=shows_obstacle)
        if fault == "lost":
            return
        self._reported.add(attempt)
        if fault in {"unknown-before", "unknown-after"}:
            observed_object, error = None, ActionError("Unknown", "no response")
        elif fault == "transient":
            error = ActionError("NotDone", "connection refused")
        elif fault == "throttled":
            error = ActionError("Throttled", "too many requests", 429, 5.0)
        elif fault == "permanent" and flight.action.idempotency_key not in self.api.stored_results:
            error = ActionError("Refused", "no", 422)
        elif fault == "permanent":
            observed_object = self.api.stored_results[flight.action.idempotency_key]
        self._report(flight, observed_object, error, redelivered=redelivered)

    def wake_stuck(self) -> None:
        """Let a suspended worker make its call, regardless of the action's current state."""
        if self._stuck:
            flight = self._stuck.pop(0)
            observed_object, error = self.api.call(flight.action, shows_obstacle=True)
            self._report(flight, observed_object, error, redelivered=True)

    def _report(
        self,
        flight: InFlight,
        observed_object: ExternalObject | None,
        error: ActionError | None,
        *,
        redelivered: bool,
    ) -> None:
        now, action_id = self.story.now, flight.action.action_id
        report = Reported(action_id, flight.attempt, now, now, "w", error, observed_object)
        self.publish(replace(report, redelivered=redelivered))

    def _look_up(self, flight: InFlight, fault: Fault) -> None:
        """Look up the effect of an action; like calls, reads may fail or be lost."""
        if fault in ("lost", "stuck"):
            return
        self._reported.add((flight.action.action_id, flight.attempt))
        failure = None if fault == "none" else ActionError("Unknown", "no response")
        now, observed_object = self.story.now, self.api.object if failure is None else None
        action_id, attempt = flight.action.action_id, flight.attempt
        self.publish(
            Reported(action_id, attempt, now, now, "w", failure, observed_object, is_lookup=True)
        )

    def wait(self, seconds: float) -> None:
        self.story.now += timedelta(seconds=seconds)
        self.publish(TimerFired("Sweep"))

    def permit(self, namespaces: tuple[str, ...]) -> None:
        """Change the namespaces that may use the configuration."""
        config = self.story.configs[CONFIG]
        self.story.configs[CONFIG] = replace(config, namespaces=namespaces)
        self.publish(TimerFired("ConfigChanged"))

    # --- the end

    def settle(self) -> None:
        """Run observations, timers and the worker without faults until nothing happens."""
        quiet_rounds = 0
        self.permit(("*",))
        while self._stuck:
            self.wake_stuck()
        for _ in range(60):
            self.work("none")
            self.deliver(1000)
            self.begin_listing()
            self.publish_observation(-1)
            self.wait(3600)
            is_busy = self.deliver(1000) or (
                self.story.state.actions.in_flight is not None and self.story.outcome != "Paused"
            )
            quiet_rounds = 0 if is_busy else quiet_rounds + 1
            if quiet_rounds == 3:
                return
        raise AssertionError("the world never became idle")

    def check(self) -> None:
        """Judge the idle world, and repeat every turn."""
        self.history.objects = [] if self.api.object is None else [self.api.object]
        assert self.judge.end() == []
        assert list(self.turns.unrepeatable_turns()) == []

    @property
    def has_own_owner_label(self) -> bool:
        existing = self.api.object
        return existing is not None and any(
            value.startswith(LOG_ID) for value in existing.labels.values()
        )
