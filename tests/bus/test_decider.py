"""A decider on the real log: a wrong assumption about unread state is never written."""

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from structlog.testing import capture_logs

from events.envelope import encode_intake
from events.external import ExternalObject
from events.intake import (
    ActionError,
    Declared,
    DefinitionReported,
    IntakeData,
    Reply,
    Reported,
    TimerFired,
    Withdrawn,
)
from events.log import (
    Action,
    ActionDecided,
    ActionFailed,
    ActionHeld,
    ActionRetried,
    SpecDeclared,
    SpecResolved,
    SpecWithdrawn,
)
from events.manifest import RECONCILER_API_VERSION, Manifest, Metadata
from events.names import (
    KIND_DEFINITION_KIND,
    PROVIDER_CONFIG_KIND,
    SYSTEM_NAMESPACE,
    ResourceKey,
)
from events.provider_config import ProviderConfigSpec
from events.subjects import Intake
from events.subjects import log as log_subject
from infra.bus.event_log import JetStreamLog
from infra.jetstream.publish import publish
from reconciler.ports import (
    AppendRefusedError,
    DeadLetter,
    IntakeDelivery,
    Rejection,
    ResourceAppend,
    TimerRequest,
)
from reconciler.provider.kind import installed_kinds
from reconciler.resource import decide
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import Command, Context, Turn
from reconciler.roles.decider import decider as decider_module
from reconciler.roles.decider.actions_in_flight import MAX_ACTIONS
from reconciler.roles.decider.decider import Decider
from reconciler.roles.decider.fair_queue import MAX_MESSAGES_PER_TURN
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.runtime import Runtime
from tests.bus.histories import event, history_of, new_key

SHARE = 2


class Bus:
    """The decider's reader and sink: it delivers nothing and records replies."""

    def __init__(self) -> None:
        self.slots = 4 * SHARE
        self.replies: list[Reply] = []
        self.acknowledged = 0
        self.declared: list[IntakeDelivery] = []
        self.overtaking: list[IntakeDelivery] = []
        self.lookups = 0

    async def extend(self, deliveries: Sequence[IntakeDelivery]) -> None: ...

    async def next_batch(self, max_seconds: float = math.inf) -> Sequence[IntakeDelivery]:
        return []

    async def ack(self, deliveries: Sequence[IntakeDelivery]) -> None:
        self.acknowledged += len(deliveries)

    async def retry_later(self, deliveries: Sequence[IntakeDelivery], seconds: float) -> None:
        assert not deliveries

    async def was_sole_reader(self, deliveries: Sequence[IntakeDelivery]) -> bool:
        assert deliveries
        return not self.overtaking

    async def newer_declarations(
        self, deliveries: Sequence[IntakeDelivery]
    ) -> Sequence[Sequence[IntakeDelivery]]:
        return [
            [newer for newer in self.overtaking if newer.position > each.position]
            for each in deliveries
        ]

    async def declarations_of(
        self, known: Mapping[ResourceKey, Collection[int]]
    ) -> Mapping[ResourceKey, Sequence[IntakeDelivery]]:
        self.lookups += 1
        return {
            key: [each for each in self.declared if key.tokens in each.subject] for key in known
        }

    async def close(self) -> None: ...

    async def set_timers(self, timers: Sequence[TimerRequest]) -> None: ...

    async def send_replies(self, replies: Sequence[tuple[str, Reply]]) -> None:
        self.replies += [reply for _subject, reply in replies]

    async def reject(self, rejections: Sequence[Rejection]) -> None: ...

    async def store_dead_letters(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        return ()

    async def discard(self, letters: Sequence[DeadLetter]) -> None: ...


def decider(
    log: JetStreamLog,
    bus: Bus,
    configurations: Configurations | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    clock: Callable[[], float] = time.monotonic,
    cpu_time: Callable[[], float] = time.thread_time,
    *,
    max_actions: int = MAX_ACTIONS,
) -> Decider:
    return Decider(
        reader=bus,
        log=log,
        sink=bus,
        kinds=installed_kinds(),
        configurations=Configurations() if configurations is None else configurations,
        runtime=Runtime(now=now, clock=clock, cpu_time=cpu_time),
        max_actions=max_actions,
    )


def declaration(
    key: ResourceKey, position: int, color: str, *, expected: int | None = None
) -> IntakeDelivery:
    spec: dict[str, Any] = {"type": "Square", "color": color}
    manifest = Manifest("shapes/v1", key.kind, Metadata(key.name, key.namespace), spec)
    return delivery("desired", key, position, Declared(manifest, expected))


def delivery(what: Intake, key: ResourceKey, position: int, data: IntakeData) -> IntakeDelivery:
    payload = encode_intake(f"m{position}", "test", data, time=datetime.now(UTC))
    subject = f"in.0.{what}.{key.tokens}"
    return IntakeDelivery(position, subject, payload, f"m{position}", "_INBOX.x", 1, None)


async def test_a_new_resource_is_declared_without_a_read(log: JetStreamLog) -> None:
    key, bus = new_key(), Bus()
    await decider(log, bus).handle([declaration(key, 1, "Red")])
    assert [(reply.reason, reply.generation) for reply in bus.replies] == [("Accepted", 1)]
    assert bus.acknowledged == 1


async def test_slow_decisions_for_one_namespace_do_not_delay_another(log: JetStreamLog) -> None:
    bus, seconds = Bus(), itertools.count()
    slow = decider(log, bus, cpu_time=lambda: next(seconds) * 0.03)
    flood = [declaration(new_key(), position, "Red") for position in range(1, 21)]
    other_key = ResourceKey("other", "Shape", new_key().name)
    batch = [*flood, declaration(other_key, 21, "Red")]
    undecided = await slow.handle(batch, 0.05)
    assert undecided == flood[1:], "each namespace has at least one decision"
    assert len(bus.replies) == bus.acknowledged == 2
    while undecided:
        before = len(undecided)
        undecided = await slow.handle(undecided, 0.05)
        assert len(undecided) < before
    assert len(bus.replies) == bus.acknowledged == 21
    assert not await slow.handle([declaration(new_key(), 30 + at, "Red") for at in range(9)])


async def test_an_existing_resource_gets_its_next_generation(
    log: JetStreamLog,
) -> None:
    key, bus = new_key(), Bus()
    await decider(log, bus).handle([declaration(key, 1, "Red")])
    await decider(log, bus).handle([declaration(key, 2, "Blue")])
    assert [(reply.reason, reply.generation) for reply in bus.replies] == [
        ("Accepted", 1),
        ("Accepted", 2),
    ]
    history = list(await history_of(log, key))
    assert [event.resourceversion for event in history] == list(range(1, len(history) + 1))
    colors = [each.data.fields["color"] for each in history if isinstance(each.data, SpecDeclared)]
    assert colors == ["Red", "Blue"]


def republish(first: IntakeDelivery, position: int) -> IntakeDelivery:
    return replace(first, position=position, message_id=f"fresh-{position}")


async def test_a_repeat_of_a_declaration_without_changes_reverts_nothing(
    log: JetStreamLog,
) -> None:
    key, bus = new_key(), Bus()
    withdrawn = delivery("desired", key, 1, Withdrawn())
    deliveries = [withdrawn, *(declaration(key, at, "Red") for at in (2, 3))]
    deliveries.append(declaration(key, 4, "Blue"))
    bus.declared = [*deliveries, republish(withdrawn, 5), republish(deliveries[2], 6)]
    for each in bus.declared:
        await decider(log, bus).handle([each])
    reasons = ["Unchanged", "Accepted", "Unchanged", "Accepted", "Duplicate", "Duplicate"]
    assert [reply.reason for reply in bus.replies] == reasons
    assert bus.lookups == 2, "only for possible repeats"
    history = [each.data for each in await history_of(log, key)]
    declared = [each for each in history if isinstance(each, SpecDeclared | SpecWithdrawn)]
    assert [each.generation for each in declared] == [1, 2]


async def test_a_batch_of_old_and_new_declarations_ends_with_the_newest(
    log: JetStreamLog,
) -> None:
    """All declarations of a new resource arrive together, so no read is needed."""
    key, bus = new_key(), Bus()
    deliveries = [declaration(key, at, color) for at, color in enumerate(("Red", "Red", "Blue"), 1)]
    bus.declared = [*deliveries, republish(deliveries[1], 4)]
    await decider(log, bus).handle(bus.declared)
    assert [reply.reason for reply in bus.replies] == [
        "Accepted",
        "Unchanged",
        "Accepted",
        "Duplicate",
    ]


async def test_a_newer_withdrawal_that_another_decider_treated_as_unchanged_wins(
    log: JetStreamLog,
) -> None:
    key, own_bus, other_bus = new_key(), Bus(), Bus()
    withdrawn = delivery("desired", key, 2, Withdrawn())
    await decider(log, other_bus).handle([withdrawn])
    assert [reply.reason for reply in other_bus.replies] == ["Unchanged"]
    own_bus.overtaking = [withdrawn]
    await decider(log, own_bus).handle([declaration(key, 1, "Red")])
    history = [each.data for each in await history_of(log, key)]
    assert [each.generation for each in history if isinstance(each, SpecWithdrawn)] == [2]


async def test_an_unrecorded_withdrawal_between_late_declarations_is_decided_again(
    log: JetStreamLog,
) -> None:
    """Otherwise a repeat of the withdrawal would withdraw the later declaration."""
    key, own_bus, other_bus = new_key(), Bus(), Bus()
    withdrawn = delivery("desired", key, 2, Withdrawn())
    await decider(log, other_bus).handle([withdrawn])
    late, again = replace(declaration(key, 1, "Red"), delivered=2), declaration(key, 3, "Red")
    own_bus.overtaking = [withdrawn, again]
    await decider(log, own_bus).handle([late, again])
    history = [each.data for each in await history_of(log, key)]
    generations = [each for each in history if isinstance(each, (SpecDeclared, SpecWithdrawn))]
    assert [type(each) for each in generations] == [SpecDeclared, SpecWithdrawn, SpecDeclared]


class OvertakenBus(Bus):
    """A bus on which another decider received newer declarations for some resources."""

    def __init__(self, *overtaking: IntakeDelivery) -> None:
        super().__init__()
        self.overtaking = list(overtaking)
        self.dead_letters: list[int] = []

    async def newer_declarations(
        self, deliveries: Sequence[IntakeDelivery]
    ) -> Sequence[Sequence[IntakeDelivery]]:
        newer_by_delivery = await super().newer_declarations(deliveries)
        return [
            [newer for newer in newer_messages if newer.subject == each.subject]
            for each, newer_messages in zip(deliveries, newer_by_delivery, strict=True)
        ]

    async def store_dead_letters(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        self.dead_letters += [each.delivery.position for each in letters]
        return ()


async def test_a_message_that_cannot_be_stored_is_found_while_other_resources_are_overtaken(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resource is decided message by message after its first refusal."""
    poisoned, *other_bus = (new_key() for _ in range(6))  # committed in one batch
    refused: list[int] = []
    original_append = log.append

    async def append(appends: Sequence[ResourceAppend]) -> Sequence[int]:
        for resource_append in appends:
            colors = [
                event.data.fields["color"]
                for event in resource_append.events
                if isinstance(event.data, SpecDeclared) and resource_append.key == poisoned
            ]
            if "Blue" in colors:
                refused.append(len(colors))
                raise AppendRefusedError("too large")
        return await original_append(appends)

    monkeypatch.setattr(log, "append", append)
    colors = ("Red", "Blue", "Green")
    declared = [declaration(poisoned, at, color) for at, color in enumerate(colors, 1)]
    declared += [declaration(key, at, "Red") for at, key in enumerate(other_bus, 4)]
    bus = OvertakenBus(*(declaration(key, at, "Green") for at, key in enumerate(other_bus, 9)))
    await decider(log, bus).handle(declared)
    assert bus.dead_letters == [2]
    assert refused == [3, 3, 1], "with the others, alone, and the message alone"


async def test_a_refusal_is_based_on_the_current_state(log: JetStreamLog) -> None:
    key, bus = new_key(), Bus()
    await decider(log, bus).handle([declaration(key, 1, "Red")])
    await decider(log, bus).handle([declaration(key, 2, "Pink")])
    await decider(log, bus).handle([declaration(key, 3, "Blue", expected=1)])
    await decider(log, bus).handle([declaration(key, 3, "Blue", expected=1)])
    assert [(reply.reason, reply.generation) for reply in bus.replies] == [
        ("Accepted", 1),
        ("Invalid", 1),
        ("Accepted", 2),
        ("Duplicate", 2),
    ]


async def test_a_decider_with_a_stale_state_does_not_treat_a_change_as_unchanged(
    log: JetStreamLog,
) -> None:
    key, own_bus, other_bus = new_key(), Bus(), Bus()
    stale = decider(log, own_bus)
    await stale.handle([declaration(key, 1, "Red")])
    await decider(log, other_bus).handle([declaration(key, 2, "Blue")])
    await stale.handle([declaration(key, 3, "Red")])  # unchanged according to its stale state
    assert [(reply.reason, reply.generation) for reply in own_bus.replies] == [
        ("Accepted", 1),
        ("Accepted", 3),
    ]


async def test_a_late_message_does_not_set_the_bus_clock_back(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a due renewal would no longer be due."""
    key, deciding, times = new_key(), decider(log, Bus()), list[datetime | None]()

    def decides(state: ResourceState, commands: Sequence[Command], context: Context) -> Turn:
        times.append(context.bus_time)
        return decide.decide(state, commands, context)

    monkeypatch.setattr("reconciler.roles.decider.decider.decide", decides)
    for position in (1, 3, 2, 4):
        stored_at = datetime(2030, 1, 1, 0, 0, position, tzinfo=UTC)
        timer = delivery("timer", key, position, TimerFired("Renewal"))
        await deciding.handle([replace(timer, stored_at=stored_at)])
    assert [each and each.second for each in times] == [1, 3, 3, 4]


async def test_a_decider_with_a_stale_state_handles_a_timer_with_the_current_state(
    log: JetStreamLog,
) -> None:
    key, configurations = new_key(), Configurations()
    configurations.by_name["default"] = ProviderConfigSpec("shapes", "http://127.0.0.1:1")
    stale, other_decider = decider(log, Bus(), configurations), decider(log, Bus())
    await stale.handle([declaration(key, 1, "Red")])
    [create] = await read_actions(log, key)
    created_object = ExternalObject(key.name, create.fields, "u1", "1", create.labels)
    now = datetime.now(UTC)
    result = Reported(create.action_id, 1, now, now, "w", object=created_object)
    await other_decider.handle([delivery("result", key, 2, result)])
    await other_decider.handle(
        [declaration(key, 3, "Blue")]
    )  # held: this decider has no configuration
    await stale.handle([delivery("timer", key, 4, TimerFired("ConfigChanged"))])
    assert [each.operation for each in await read_actions(log, key)] == ["Create", "Update"]


class IdleBus(Bus):
    """A bus on which a decider runs, although it delivers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.has_acknowledged = asyncio.Event()

    async def ack(self, deliveries: Sequence[IntakeDelivery]) -> None:
        await super().ack(deliveries)
        self.has_acknowledged.set()

    async def next_batch(self, max_seconds: float = math.inf) -> Sequence[IntakeDelivery]:
        await asyncio.sleep(0.01)
        return []


@pytest.mark.parametrize("what", ["retry", "deletion"])
async def test_only_a_result_starts_an_action_beyond_the_limit(
    log: JetStreamLog, what: str
) -> None:
    """Otherwise the retries or the deletions of one namespace fill the queue of an API."""
    configurations, bus, now = Configurations(), IdleBus(), datetime.now(UTC)
    configurations.by_name["default"] = ProviderConfigSpec("shapes", "http://127.0.0.1:1")
    limited = decider(log, bus, configurations, now=lambda: now, max_actions=1)
    waiting, running = new_key(), new_key()

    async def end_creation(key: ResourceKey, position: int, error: ActionError | None) -> None:
        [create] = await read_actions(log, key)
        created = ExternalObject(key.name, create.fields, key.name, "1", create.labels)
        existing = created if error is None else None
        result = Reported(create.action_id, 1, now, now, "w", error=error, object=existing)
        await limited.handle([delivery("result", key, position, result)])

    async def count_starts() -> int:
        history = [each.data for each in await history_of(log, waiting)]
        return sum(isinstance(each, ActionDecided | ActionRetried) for each in history)

    await limited.handle([declaration(waiting, 1, "Red")])
    error = ActionError("NotDone", "no") if what == "retry" else None
    await end_creation(waiting, 2, error)
    await limited.handle([declaration(running, 3, "Red")])
    now += timedelta(seconds=60)
    acknowledged = bus.acknowledged
    if what == "retry":
        await limited.handle([delivery("timer", waiting, 4, TimerFired("Retry"))])
    else:
        await limited.handle([delivery("desired", waiting, 4, Withdrawn())])
    assert await count_starts() == 1
    assert bus.acknowledged == acknowledged, "another decider continues after a crash"

    await end_creation(running, 5, None)
    bus.has_acknowledged.clear()
    running_decider = asyncio.create_task(limited.run())
    await asyncio.wait_for(bus.has_acknowledged.wait(), 10)
    running_decider.cancel()
    assert await count_starts() == 2


async def test_a_batch_starts_no_more_actions_than_the_limit(log: JetStreamLog) -> None:
    configurations = Configurations()
    configurations.by_name["default"] = ProviderConfigSpec("shapes", "http://127.0.0.1:1")
    keys = [new_key() for _ in range(10)]
    bus = Bus()
    bus.slots = 2 * len(keys)
    limited = decider(log, bus, configurations, max_actions=3)
    await limited.handle([declaration(key, at, "Red") for at, key in enumerate(keys, 1)])
    assert sum([len(await read_actions(log, key)) for key in keys]) == 3


@pytest.mark.parametrize("end", ["success", "failure", "hold", ""])
async def test_an_old_action_leaves_room_once_another_decider_has_recorded_its_end(
    log: JetStreamLog, end: str
) -> None:
    configurations, clock, now = Configurations(), [0.0], datetime.now(UTC)
    configurations.by_name["default"] = ProviderConfigSpec("shapes", "http://127.0.0.1:1")
    bus, running, waiting = IdleBus(), new_key(), new_key()
    limited = decider(log, bus, configurations, clock=lambda: clock[0], max_actions=1)
    await limited.handle([declaration(running, 1, "Red")])
    await limited.handle([declaration(waiting, 2, "Red")])
    [create] = await read_actions(log, running)
    if end in ("failure", "hold"):
        loaded = (await log.load([running], from_leader=True, use_cache=False))[running]
        failed = ActionFailed(create.action_id, "Create", 1, ActionError("Refused", "no"))
        data = failed if end == "failure" else ActionHeld(create.action_id, "look at it")
        ended = event(running, len(loaded.events) + 1, data)
        await log.append([ResourceAppend(running, [ended], loaded.last_position)])
    if end == "success":
        created = ExternalObject(running.name, create.fields, "u1", "1", create.labels)
        result = Reported(create.action_id, 1, now, now, "w", object=created)
        await decider(log, Bus(), configurations).handle([delivery("result", running, 3, result)])
    clock[0] += 61
    bus.has_acknowledged.clear()
    running_decider = asyncio.create_task(limited.run())
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(bus.has_acknowledged.wait(), 10 if end else 0.5)
    running_decider.cancel()
    assert len(await read_actions(log, waiting)) == bool(end)


class RecordingBus(Bus):
    """A bus that records its calls in order and fails once at one of them."""

    def __init__(self, fails_at: str = "") -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fails_at = fails_at

    def record(self, operation: str) -> None:
        if operation == self.fails_at:
            self.fails_at = ""
            raise OSError(f"{operation}: no response")
        self.calls.append(operation)

    async def ack(self, deliveries: Sequence[IntakeDelivery]) -> None:
        if deliveries:
            self.record("ack")
        await super().ack(deliveries)

    async def retry_later(self, deliveries: Sequence[IntakeDelivery], seconds: float) -> None:
        assert deliveries
        assert seconds > 0
        self.record("later")

    async def set_timers(self, timers: Sequence[TimerRequest]) -> None:
        assert timers
        self.record("timers")

    async def send_replies(self, replies: Sequence[tuple[str, Reply]]) -> None:
        self.record("replies")
        await super().send_replies(replies)

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        assert rejections
        self.record("rejections")

    async def store_dead_letters(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        assert letters
        self.record("letters")
        return ()


async def one_of_each(log: JetStreamLog) -> tuple[Configurations, list[IntakeDelivery]]:
    """Return messages for three resources that lead to a timer, a reply and a dead letter."""
    configurations = Configurations()
    configurations.by_name["default"] = ProviderConfigSpec("shapes", "http://127.0.0.1:1")
    tried, fine, refused = new_key(), new_key(), new_key()
    await decider(log, Bus(), configurations).handle([declaration(tried, 1, "Red")])
    [create] = await read_actions(log, tried)
    now = datetime.now(UTC)
    result = Reported(create.action_id, 1, now, now, "w", error=ActionError("NotDone", "no"))
    return configurations, [
        delivery("result", tried, 2, result),
        declaration(fine, 3, "Red"),
        declaration(refused, 4, "Pink"),
    ]


async def test_all_messages_are_published_before_any_is_acknowledged(log: JetStreamLog) -> None:
    configurations, messages = await one_of_each(log)
    bus = RecordingBus()
    await decider(log, bus, configurations).handle(messages)
    assert sorted(bus.calls[:-1]) == ["letters", "rejections", "replies", "timers"]
    assert (bus.calls[-1], bus.acknowledged) == ("ack", len(messages))


async def test_an_unreadable_message_becomes_a_dead_letter_before_it_is_acknowledged(
    log: JetStreamLog,
) -> None:
    bus = RecordingBus()
    await decider(log, bus).handle([replace(declaration(new_key(), 1, "Red"), payload=b"not JSON")])
    assert (bus.calls[0], bus.calls[-1]) == ("letters", "ack")
    assert bus.acknowledged == 1


@pytest.mark.parametrize("fails_at", ["timers", "replies"])
async def test_a_message_whose_reply_was_not_sent_is_redelivered(
    log: JetStreamLog, fails_at: str
) -> None:
    configurations, messages = await one_of_each(log)
    bus = RecordingBus(fails_at)
    with pytest.raises(OSError, match="no response"):
        await decider(log, bus, configurations).handle(messages)
    assert bus.acknowledged == 0
    again = [replace(each, delivered=2) for each in messages]
    await decider(log, bus, configurations).handle(again)  # another process receives them
    assert bus.acknowledged == len(messages)
    assert {reply.reason for reply in bus.replies} >= {"Duplicate", "Invalid"}


async def test_a_rejection_that_cannot_be_stored_does_not_block_other_messages(
    log: JetStreamLog,
) -> None:
    """No reply is sent before the rejection is stored: the message may still be accepted."""
    configurations, messages = await one_of_each(log)
    bus = RecordingBus("rejections")
    own_decider = decider(log, bus, configurations)
    await own_decider.handle(messages)
    assert bus.calls.index("later") < bus.calls.index("ack")
    assert "letters" not in bus.calls
    assert bus.acknowledged == len(messages) - 1
    assert {reply.reason for reply in bus.replies} == {"Accepted"}
    await own_decider.handle([replace(messages[-1], delivered=2)])
    assert bus.calls.count("rejections") == bus.calls.count("letters") == 1
    assert bus.acknowledged == len(messages)
    assert bus.replies[-1].reason == "Invalid"


async def test_a_rejection_without_a_free_slot_becomes_a_dead_letter(log: JetStreamLog) -> None:
    class RejectionFailureBus(FullBus):
        def __init__(self) -> None:
            super().__init__()
            self.dead_letters: list[DeadLetter] = []

        async def reject(self, rejections: Sequence[Rejection]) -> None:
            raise OSError("no responder")

        async def store_dead_letters(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
            self.dead_letters += letters
            return ()

    bus = RejectionFailureBus()
    refused = [declaration(new_key(), at, "Red", expected=7) for at in range(1, 6)]
    with capture_logs() as logs:
        await decider(log, bus).handle(refused)
    assert sorted(bus.waits) == [1, 2]
    assert [each.delivery.position for each in bus.dead_letters] == bus.acked == [3, 4, 5]
    assert "generation" in bus.dead_letters[0].reason
    assert [each.position for each in bus.replies] == [3, 4, 5]
    assert [each["event"] for each in logs] == ["failed to store rejections; retrying later"]


async def test_the_log_reports_once_that_rejections_are_not_stored(log: JetStreamLog) -> None:
    class Failing(FullBus):
        fails = True

        async def reject(self, rejections: Sequence[Rejection]) -> None:
            if self.fails:
                raise OSError("no responder")

    bus = Failing()
    own_decider, key = decider(log, bus), new_key()
    with capture_logs() as logs:
        for delivered in range(1, 4):
            again = replace(declaration(key, 1, "Red", expected=7), delivered=delivered)
            await own_decider.handle([again, unreadable(2, delivered=delivered)])
        bus.fails = False
        await own_decider.handle([replace(declaration(key, 1, "Red", expected=7), delivered=4)])
    log_events = [each["event"] for each in logs if "rejections" in each["event"]]
    assert log_events == [
        "failed to store rejections; retrying later",
        "rejections can be stored again",
    ]


async def test_a_message_whose_dead_letter_was_not_stored_is_redelivered(
    log: JetStreamLog,
) -> None:
    configurations, messages = await one_of_each(log)
    bus = RecordingBus("letters")
    await decider(log, bus, configurations).handle(messages)
    assert bus.calls.index("later") < bus.calls.index("ack")
    assert bus.acknowledged == len(messages) - 1


async def read_actions(log: JetStreamLog, key: ResourceKey) -> list[Action]:
    decided = [each.data for each in await history_of(log, key)]
    return [each.action for each in decided if isinstance(each, ActionDecided)]


class FullBus(Bus):
    """A bus without capacity for dead letters."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: dict[int, float] = {}
        self.acked: list[int] = []
        self.discarded: list[DeadLetter] = []

    async def ack(self, deliveries: Sequence[IntakeDelivery]) -> None:
        self.acked += [each.position for each in deliveries]

    async def retry_later(self, deliveries: Sequence[IntakeDelivery], seconds: float) -> None:
        self.waits |= {each.position: seconds for each in deliveries}

    async def store_dead_letters(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        return letters

    async def discard(self, letters: Sequence[DeadLetter]) -> None:
        self.discarded += letters


def unreadable(position: int, namespace: str = "acme", *, delivered: int = 1) -> IntakeDelivery:
    subject = f"in.0.desired.{namespace}.Shape.x"
    return IntakeDelivery(position, subject, b"", f"m{position}", None, delivered, None)


async def test_a_namespace_has_a_share_of_the_slots_and_the_rest_is_discarded(
    log: JetStreamLog,
) -> None:
    bus = FullBus()
    own_decider = decider(log, bus)
    await own_decider.handle([unreadable(at) for at in range(1, 6)])
    assert sorted(bus.waits) == [1, 2]
    assert [each.delivery.position for each in bus.discarded] == bus.acked == [3, 4, 5]
    await own_decider.handle(
        [unreadable(6), unreadable(7, "other"), unreadable(8, "third"), unreadable(9, "other")]
    )
    assert sorted(bus.waits) == [1, 2, 7, 8], "all namespaces together have two shares"
    await own_decider.handle([unreadable(1, delivered=2), unreadable(10)])
    assert sorted(bus.waits) == [1, 2, 7, 8], "a redelivered message does not take a second slot"
    assert bus.acked == [3, 4, 5, 6, 9, 10]


async def test_redelivered_messages_from_an_earlier_decider_take_no_extra_slots(
    log: JetStreamLog,
) -> None:
    bus = FullBus()
    await decider(log, bus).handle([unreadable(1), unreadable(2)])
    next_decider = decider(log, bus)
    await next_decider.handle([unreadable(3), unreadable(4)])
    assert sorted(bus.waits) == [1, 2, 3, 4], "for the duration of one wait"
    await next_decider.handle([unreadable(1, delivered=2), unreadable(2, delivered=2)])
    assert bus.acked == [1, 2]


async def test_a_slot_that_is_not_returned_becomes_free_again(log: JetStreamLog) -> None:
    bus, wall, steady = FullBus(), [datetime.now(UTC)], [0.0]
    own_decider = decider(log, bus, now=lambda: wall[0], clock=lambda: steady[0])
    await own_decider.handle([unreadable(1), unreadable(2), unreadable(3)])
    wall[0] -= timedelta(hours=1)  # the clock was set back
    steady[0] += 300.0
    await own_decider.handle([unreadable(4)])
    assert (sorted(bus.waits), bus.acked) == ([1, 2, 4], [3])


async def test_every_discarded_message_is_counted(log: JetStreamLog) -> None:
    class DiscardFailureBus(FullBus):
        async def discard(self, letters: Sequence[DeadLetter]) -> None:
            raise TimeoutError("no response")

    bus = DiscardFailureBus()
    await decider(log, bus).handle([unreadable(at) for at in range(1, 6)])
    assert (sorted(bus.waits), bus.acked) == ([1, 2, 3, 4, 5], [])


async def test_undecidable_messages_are_retried_within_their_namespaces_share(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_inputs: Any) -> Any:
        raise ZeroDivisionError("not today")

    keys, bus = [new_key() for _ in range(5)], FullBus()
    own_decider = decider(log, bus)
    with monkeypatch.context() as patch:
        patch.setattr(decide, "handle_command", fails)
        await own_decider.handle([declaration(key, at, "Red") for at, key in enumerate(keys, 1)])
    waits = sorted(bus.waits.values())
    assert (waits[:3], waits[3] > 0, len(waits)) == ([0.0] * 3, True, 5)
    assert (bus.acked, bus.discarded) == ([], [])


async def test_a_message_for_a_damaged_resource_is_never_discarded(
    log: JetStreamLog, bus: Client
) -> None:
    key, full = new_key(), FullBus()
    await decider(log, Bus()).handle([declaration(key, 1, "Red")])
    await publish(bus, log_subject(key, "fact"), b"from a newer release")
    deliveries = [replace(declaration(key, at, "Blue"), delivered=5) for at in range(2, 8)]
    await decider(log, full).handle(deliveries)
    assert (sorted(full.waits), full.acked, full.discarded) == ([2, 3, 4, 5, 6, 7], [], [])
    assert min(full.waits.values()) > 0


def definition(
    position: int,
    name: str,
    type_: str,
    provider: str = "",
    namespace: str = SYSTEM_NAMESPACE,
) -> IntakeDelivery:
    spec: dict[str, Any] = {
        "apiVersion": "badges/v1",
        "provider": provider or name,
        "over": "Shape",
        "fields": {"color": {}},
        "constants": {"type": type_},
    }
    key = ResourceKey(namespace, KIND_DEFINITION_KIND, name)
    manifest = Manifest(RECONCILER_API_VERSION, key.kind, Metadata(name, key.namespace), spec)
    return delivery("desired", key, position, Declared(manifest))


async def test_the_second_definition_in_a_batch_is_checked_against_the_first(
    log: JetStreamLog,
) -> None:
    bus, (one, other_name) = Bus(), (new_key().name for _ in range(2))
    both = [definition(1, one, "Circle"), definition(2, other_name, "Circle", provider=one)]
    await decider(log, bus).handle(both)
    assert [reply.reason for reply in bus.replies] == ["Accepted", "Invalid"]
    assert bus.replies[1].message == (
        f"spec.provider: {one!r} is already the provider of {one}; use another name"
    )


async def test_definitions_that_a_tenant_may_not_declare_are_refused_together(
    log: JetStreamLog,
) -> None:
    """Otherwise each would be stored and acknowledged separately while other tenants wait."""

    class Counting(Bus):
        calls = 0

        async def reject(self, rejections: Sequence[Rejection]) -> None:
            self.calls += 1
            assert len(rejections) == 20

    bus = Counting()
    names = [new_key().name for _ in range(20)]
    batch = [definition(at, name, "Circle", namespace="shop") for at, name in enumerate(names, 1)]
    await decider(log, bus).handle(batch)
    assert [reply.reason for reply in bus.replies] == ["Invalid"] * 20
    assert bus.calls == 1


async def test_a_decider_reads_the_definitions_of_other_deciders_first(
    log: JetStreamLog,
) -> None:
    """Each process follows the log separately, and a message may be ahead of it."""
    kind = new_key().name
    bus, other_bus, configurations = Bus(), Bus(), Configurations()
    configurations.by_name["default"] = ProviderConfigSpec(kind, "http://127.0.0.1:1")
    outdated_decider, other_decider = decider(log, bus, configurations), decider(log, other_bus)
    await other_decider.handle([definition(1, kind, "Circle")])
    key = ResourceKey("default", kind, "welcome")
    badge = Manifest("badges/v1", kind, Metadata(key.name), {"color": "Red"})
    await outdated_decider.handle([delivery("desired", key, 2, Declared(badge))])
    assert [reply.reason for reply in bus.replies] == ["Accepted"]
    await other_decider.handle([definition(3, kind, "Hexagon")])
    [created] = [
        each.data.action
        for each in await history_of(log, key)
        if isinstance(each.data, ActionDecided)
    ]
    created_object = ExternalObject("welcome", created.fields, "u1", "1", created.labels)
    now = datetime.now(UTC)
    report = Reported(created.action_id, 1, now, now, "w1", object=created_object)
    await outdated_decider.handle([delivery("result", key, 4, report)])
    definition_report = DefinitionReported(2, "newer", 1, 1)
    await outdated_decider.handle([delivery("reference", key, 5, definition_report)])
    history = [each.data for each in await history_of(log, key)]
    resolved = [each.fields["type"] for each in history if isinstance(each, SpecResolved)]
    assert resolved == ["Circle", "Hexagon"]


async def test_a_configuration_may_use_a_kind_that_another_decider_has_just_defined(
    log: JetStreamLog,
) -> None:
    kind = new_key().name
    bus = Bus()
    outdated_decider = decider(log, bus)
    await decider(log, Bus()).handle([definition(1, kind, "Circle")])
    key = ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, new_key().name)
    spec = {"provider": kind, "endpoint": "http://127.0.0.1:1", "kinds": [kind]}
    config = Manifest(RECONCILER_API_VERSION, key.kind, Metadata(key.name, key.namespace), spec)
    await outdated_decider.handle([delivery("desired", key, 2, Declared(config))])
    assert [reply.reason for reply in bus.replies] == ["Accepted"]


class OneBatchBus(FullBus):
    """A bus that delivers one batch and nothing else."""

    def __init__(self, batch: Sequence[IntakeDelivery]) -> None:
        super().__init__()
        self.slots = 8 * MAX_MESSAGES_PER_TURN
        self.batches = [batch]
        self.finished = asyncio.Event()

    async def next_batch(self, max_seconds: float = math.inf) -> Sequence[IntakeDelivery]:
        if self.batches:
            return self.batches.pop()
        if max_seconds:
            self.finished.set()
            await asyncio.Event().wait()
        return []


async def test_a_batch_that_takes_too_long_to_read_is_halved(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one namespace with long histories stops the decider for all others."""
    monkeypatch.setattr(decider_module, "_RETRY_SECONDS", 0.0)
    bus = OneBatchBus([declaration(new_key(), position, "Red") for position in range(1, 9)])
    limited, sizes = decider(log, bus), list[int]()
    handle = limited.handle

    async def fail_if_long(
        batch: Sequence[IntakeDelivery], seconds: float
    ) -> Sequence[IntakeDelivery]:
        sizes.append(len(batch))
        if len(batch) > 2:
            raise TimeoutError("no response before the timeout")
        return await handle(batch, seconds)

    monkeypatch.setattr(limited, "handle", fail_if_long)
    running = asyncio.create_task(limited.run())
    await asyncio.wait_for(bus.finished.wait(), 10)
    running.cancel()
    await asyncio.wait([running])
    assert sizes[:3] == [8, 4, 2]
    assert sorted(bus.acked) == [*range(1, 9)]


async def test_messages_left_by_a_turn_are_decided_in_later_turns(log: JetStreamLog) -> None:
    seconds = itertools.count()
    bus = OneBatchBus([declaration(new_key(), position, "Red") for position in range(1, 21)])
    running = asyncio.create_task(decider(log, bus, cpu_time=lambda: next(seconds) * 0.03).run())
    await bus.finished.wait()
    assert sorted(bus.acked) == [*range(1, 21)]
    running.cancel()
    await asyncio.wait([running])
    assert not bus.waits


class BlockingBus(OneBatchBus):
    """A bus that delivers one batch and blocks every decision."""

    def __init__(self, batch: Sequence[IntakeDelivery]) -> None:
        super().__init__(batch)
        self.deciding = asyncio.Event()

    async def was_sole_reader(self, deliveries: Sequence[IntakeDelivery]) -> bool:
        self.deciding.set()
        await asyncio.Event().wait()
        return True


async def test_a_decider_that_stops_returns_its_undecided_messages(log: JetStreamLog) -> None:
    bus = BlockingBus(
        [declaration(new_key(), at, "Red") for at in range(1, MAX_MESSAGES_PER_TURN + 6)]
    )
    running = asyncio.create_task(decider(log, bus).run())
    await bus.deciding.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bus.waits == dict.fromkeys(range(1, MAX_MESSAGES_PER_TURN + 6), 0.0)
    assert not bus.acked
