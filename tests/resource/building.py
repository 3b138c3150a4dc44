"""Builders for tests of the aggregate: the story of one resource, command by command."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import msgspec

from events.envelope import decode_log, encode_log
from events.external import ExternalObject
from events.intake import (
    ActionError,
    Declared,
    ErrorClass,
    IntakeData,
    Observed,
    Reply,
    Reported,
    TimerFired,
    UnmanagedCount,
    Withdrawn,
)
from events.log import Action, LogEvent, OutcomeRecorded, ResourceEvent
from events.manifest import Fields, Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import PROVIDER_CONFIG_KIND, DeletionGuard, ProviderConfigSpec, Scope
from reconciler.provider import Capabilities, Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import PROVIDER_CONFIG, Kind
from reconciler.provider.secrets import Secrets
from reconciler.resource.decide import decide
from reconciler.resource.evolve import evolve
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.resource.state import NEW, InFlight, ResourceState
from reconciler.resource.turn import ApiSilence, Command, Context, TwinHold
from tests.judge.agreement import Agreement

START = datetime(2026, 1, 1, tzinfo=UTC)
LOG_ID = "log1"
CONFIG = "default"
FOO = ResourceKey("default", "Block", "Foo")
FOO_OWNER = owner(LOG_ID, FOO)
API_VERSION = "tests/v1"

_T = TypeVar("_T")


class BlockFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields of the test kind, without defaults: an undeclared field is absent."""

    type: str | None = None
    color: str | None = None
    size: dict[str, int] | None = None


def _connect(config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> Provider:
    raise AssertionError("the pure core never connects")


def _capitalize_colors(fields: Fields) -> Fields:
    color = fields.get("color")
    return {**fields, "color": color.title()} if isinstance(color, str) else fields


BLOCK = Kind(
    name="Block",
    api_version=API_VERSION,
    schema=BlockFields,
    provider="tests",
    capabilities=Capabilities(
        idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=True
    ),
    connect=_connect,
    normalize=_capitalize_colors,
    name_problem=lambda name: "use another name" if name == "Forbidden" else None,
)
UNLABELED = Kind(
    name="Block",
    api_version=API_VERSION,
    schema=BlockFields,
    provider="tests",
    capabilities=Capabilities(
        idempotency_keys=True, deterministic_names=True, labels=False, conditional_writes=True
    ),
    connect=_connect,
)
SHARED = ProviderConfigSpec(provider="tests", endpoint="http://localhost")
EXCLUSIVE = ProviderConfigSpec(
    provider="tests",
    endpoint="http://localhost",
    scope=Scope(mode="Exclusive"),
    deletion_guard=DeletionGuard(max_count=2, max_percent=30),
)


def manifest(
    fields: Fields | None = None,
    *,
    policy: Fields | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    key: ResourceKey = FOO,
    config: str | None = None,
    api_version: str = API_VERSION,
) -> Manifest:
    spec: Fields = dict({"type": "Square", "color": "Red"} if fields is None else fields)
    if policy is not None:
        spec["policy"] = policy
    if config is not None:
        spec["providerConfigRef"] = {"name": config}
    metadata = Metadata(key.name, key.namespace, labels or {}, annotations or {})
    return Manifest(api_version, key.kind, metadata, spec)


def error(
    error_class: ErrorClass,
    message: str = "the API said no",
    retry_after: float | None = None,
) -> ActionError:
    return ActionError(error_class, message, None, retry_after)


def api_object(
    fields: Fields | None = None,
    *,
    uid: str | None = "human-1",
    version: str | None = "1",
    labels: dict[str, str] | None = None,
    name: str = "Foo",
) -> ExternalObject:
    """Return an object in the API, by default one that another client created."""
    object_fields = {"type": "Square", "color": "Red"} if fields is None else fields
    return ExternalObject(name, object_fields, uid, version, labels or {})


class Story:
    """One resource, from its first event onward; each processed command also checks the replay."""

    def __init__(
        self,
        *,
        kind: Kind | None = BLOCK,
        configs: Mapping[str, ProviderConfigSpec] | None = None,
        key: ResourceKey = FOO,
        jitter: float = 0.5,
    ) -> None:
        self.key = key
        self.kind = kind
        self.configs = dict({CONFIG: SHARED} if configs is None else configs)
        self.jitter = jitter
        self.restored_as_of = ""
        self.providers: Mapping[str, tuple[str, ...]] | None = None
        self.twins: dict[str, TwinHold] = {}
        self.silences: dict[str, ApiSilence] = {}
        self.new_scopes: dict[str, dict[str, int]] = {}
        self.flapping_kinds: Collection[str] = ()
        self.withdrawn_configs: tuple[str, ...] = ()
        self.now = START
        self.position = 0
        self.stored_at: datetime | None = None
        self.state: ResourceState = NEW
        self.log: list[LogEvent] = []
        self.replies: list[Reply | None] = []
        self.timers: list[tuple[datetime, str]] = []
        self._objects = 0

    # --- commands

    @property
    def context(self) -> Context:
        return Context(
            self.key,
            self.now,
            self.jitter,
            LOG_ID,
            self.kind,
            self.configs,
            bus_time=self.stored_at,
            providers=self.providers,
            epoch="e1" if self.restored_as_of else "",
            restored_as_of=self.restored_as_of,
            twins=self.twins,
            silences=self.silences,
            new_scopes=self.new_scopes,
            may_lose_readiness=lambda kind: kind in self.flapping_kinds,
            withdrawn_configs=self.withdrawn_configs,
        )

    def command(self, data: IntakeData, *, message_id: str = "", actor: str = "tests") -> Command:
        self.position += 1
        identity = message_id or f"m{self.position}"
        stored_at = self.stored_at or self.now  # by default, the clocks agree
        return Command(self.position, identity, actor, data, stored_at=stored_at)

    def process(self, commands: Sequence[Command]) -> list[ResourceEvent]:
        turn = decide(self.state, commands, self.context)
        self.state = turn.state
        self.log += turn.events
        self.replies = list(turn.replies)
        self.timers += turn.timers
        self._check_replay()
        return [event.data for event in turn.events]

    def _check_replay(self) -> None:
        """Fold the log as another process reads it: with lists in place of tuples."""
        state, row = NEW, Agreement(str(self.key))
        for stored in self.log:
            event = decode_log(encode_log(stored))
            state = evolve(state, event)
            disagreements = [*row.disagreements(event, state)]
            assert not disagreements, disagreements
        assert state == self.state

    def turn(self, *data: IntakeData) -> list[ResourceEvent]:
        return self.process([self.command(each) for each in data])

    def declare(
        self,
        fields: Fields | None = None,
        *,
        expected: int | None = None,
        **rest: Any,
    ) -> list[ResourceEvent]:
        return self.turn(Declared(manifest(fields, key=self.key, **rest), expected))

    def withdraw(self, expected: int | None = None) -> list[ResourceEvent]:
        return self.turn(Withdrawn(expected))

    def observe(
        self,
        existing: ExternalObject | None,
        *,
        as_of: int | None = None,
        unmanaged: tuple[int, int] | None = None,
        config: str = CONFIG,
        name: str | None = None,
        began_at: datetime | None = None,
        age_seconds: float | None = 0.0,
        belongs_to: str | None = None,
        absent_uid: str | None = None,
        known_version: int | None = None,
        evidence: Literal["CompleteListing", "Read"] = "CompleteListing",
        found_as: str = "",
    ) -> list[ResourceEvent]:
        """Process a listing that shows the object; by default, its observer had read the whole log.

        Without a bus time, an observation that began at ``began_at`` is stored at that time.
        """
        command = self.command(
            Observed(
                config,
                name or self.key.name,
                existing,
                evidence,
                self.position if as_of is None else as_of,
                began_at,
                None if unmanaged is None else UnmanagedCount(*unmanaged),
                age_seconds=age_seconds,
                belongs_to=belongs_to,
                absent_uid=absent_uid,
                known_version=self.state.version if known_version is None else known_version,
                found_as=found_as,
            )
        )
        if began_at is not None and self.stored_at is None:
            command = msgspec.structs.replace(command, stored_at=began_at)
        return self.process([command])

    def observe_twice(self, existing: ExternalObject, **rest: Any) -> list[ResourceEvent]:
        """Process two listings of an undeclared object; the second shows which resource has it."""
        return self.observe(existing, **rest) + self.observe(existing, **rest)

    def report(
        self,
        failure: ActionError | None = None,
        *,
        existing: ExternalObject | None = None,
        attempt: int | None = None,
        action_id: str | None = None,
        redelivered: bool = False,
        replayed: bool = False,
        absent: bool = False,
    ) -> list[ResourceEvent]:
        flight = self.flight if action_id is None else None
        return self.turn(
            Reported(
                action_id=action_id or self.action.action_id,
                attempt=attempt or (1 if flight is None else flight.attempt),
                started_at=self.now,
                finished_at=self.now,
                worker="w1",
                error=failure,
                object=existing,
                replayed=replayed,
                redelivered=redelivered,
                absent=absent,
            )
        )

    def report_lookup(
        self, observed_object: ExternalObject | None, labeled_uids: tuple[str, ...] = ()
    ) -> list[ResourceEvent]:
        """Report what a worker's lookup of the action in flight found."""
        flight = self.flight
        assert flight.is_lookup
        report = Reported(flight.action.action_id, flight.attempt, self.now, self.now, "w1")
        report_fields = {"object": observed_object, "labeled_uids": labeled_uids}
        return self.turn(msgspec.structs.replace(report, is_lookup=True, **report_fields))

    def succeed(self, **changes: Any) -> list[ResourceEvent]:
        """Report that the action in flight succeeded; the API keeps the values in ``changes``.

        After the creation of a replacement, let the interval for its readiness pass.
        """
        action = self.action
        events = self.report(
            existing=None if action.operation == "Delete" else self.object_after(action, **changes)
        )
        return [*events, *self.await_availability()] if action.purpose == "Replace" else events

    def await_availability(self) -> list[ResourceEvent]:
        """Let the time pass after which a replacement is available."""
        at = self.state.availability.at
        return [] if at is None else self.wake((at - self.context.bus_now).total_seconds())

    def fail(
        self,
        error_class: ErrorClass,
        *,
        existing: ExternalObject | None = None,
        retry_after: float | None = None,
        message: str = "the API said no",
        redelivered: bool = False,
        replayed: bool = False,
    ) -> list[ResourceEvent]:
        failure = error(error_class, message, retry_after)
        return self.report(failure, existing=existing, redelivered=redelivered, replayed=replayed)

    def wake(self, seconds: float = 0) -> list[ResourceEvent]:
        self.now += timedelta(seconds=seconds)
        if self.stored_at is not None:
            self.stored_at += timedelta(seconds=seconds)
        return self.turn(TimerFired("Retry"))

    def object_after(self, action: Action, **changes: Any) -> ExternalObject:
        """Return the object that an API shows after an action."""
        self._objects += 1
        return ExternalObject(
            action.external_name,
            {**action.fields, **changes},
            action.uid or f"u{self._objects}",
            f"v{self._objects}",
            action.labels,
        )

    # --- results

    @property
    def flight(self) -> InFlight:
        assert self.state.actions.in_flight is not None, "no action is in flight"
        return self.state.actions.in_flight

    @property
    def action(self) -> Action:
        return self.flight.action

    @property
    def idle(self) -> bool:
        return self.state.actions.in_flight is None

    @property
    def existing(self) -> ExternalObject:
        assert self.state.observed.object is not None, "no object is known"
        return self.state.observed.object

    @property
    def outcome(self) -> str:
        return "" if self.state.outcome is None else self.state.outcome.outcome

    @property
    def reason(self) -> str:
        return "" if self.state.outcome is None else self.state.outcome.reason

    @property
    def outcome_message(self) -> str:
        return "" if self.state.outcome is None else self.state.outcome.message

    def outcomes(self) -> list[tuple[str, int]]:
        recorded = every(OutcomeRecorded, [event.data for event in self.log])
        return [(each.outcome, each.generation) for each in recorded]

    @property
    def reply(self) -> Reply:
        (reply,) = self.replies
        assert reply is not None
        return reply


def every(kind: type[_T], events: Sequence[ResourceEvent]) -> list[_T]:
    return [event for event in events if isinstance(event, kind)]


def only(kind: type[_T], events: Sequence[ResourceEvent]) -> _T:
    (matches,) = every(kind, events)
    return matches


def names(events: Sequence[ResourceEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def converged_story(
    fields: Fields | None = None,
    *,
    kind: Kind = BLOCK,
    configs: Mapping[str, ProviderConfigSpec] | None = None,
    **rest: Any,
) -> Story:
    """Return a resource that was declared and created."""
    story = Story(kind=kind, configs=configs)
    story.declare(fields, **rest)
    story.succeed()
    assert story.outcome == "Converged"
    return story


def provider_config_story() -> Story:
    return Story(
        kind=PROVIDER_CONFIG, configs={}, key=ResourceKey("system", PROVIDER_CONFIG_KIND, "default")
    )


def repaint(observed_object: ExternalObject, **changes: Any) -> ExternalObject:
    """Return the object after another client changed fields."""
    return msgspec.structs.replace(
        observed_object,
        fields={**observed_object.fields, **changes},
        version=f"{observed_object.version}+",
    )


def relabel(observed_object: ExternalObject, labels: dict[str, str]) -> ExternalObject:
    return msgspec.structs.replace(
        observed_object, labels=labels, version=f"{observed_object.version}+"
    )


def owned_labels(**more: str) -> dict[str, str]:
    return {OWNER_LABEL: FOO_OWNER, **more}
