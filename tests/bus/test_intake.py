"""The intake: batches are stored, read in order and trimmed."""

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from events.envelope import encode_intake
from events.intake import Declared, TimerFired, Withdrawn
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from events.subjects import REPLY_HEADER
from events.subjects import intake as intake_subject
from infra.bus.intake import JetStreamIntakeReader, JetStreamIntakeWriter
from infra.bus.intake_trim import trim
from infra.bus.streams import INTAKE, PARTITIONS, end_restoration, find_log
from infra.jetstream.connection import api_request
from infra.jetstream.errors import MessageTooLargeError, StreamFullError, StreamReplacedError
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import publish, store_all
from infra.jetstream.reads import SubjectCounts, read_subject, stream_state, subject_counts
from reconciler.ports import IntakeDelivery, IntakeMessageOut, NotStoredError
from tests.bus.histories import new_key


def _message() -> IntakeMessageOut:
    return IntakeMessageOut("desired", new_key(), Withdrawn(), uuid.uuid4().hex)


async def _read_batch(reader: JetStreamIntakeReader, count: int) -> list[IntakeDelivery]:
    deliveries: list[IntakeDelivery] = []
    while len(deliveries) < count:
        deliveries += await reader.next_batch()
    return deliveries


@pytest.fixture
async def reader(bus: Client) -> AsyncIterator[JetStreamIntakeReader]:
    """Return the only reader of an empty intake."""
    await api_request(bus, f"STREAM.PURGE.{INTAKE}", {})
    reader = JetStreamIntakeReader(bus, await find_log(bus))
    yield reader
    await reader.close()


async def test_all_messages_for_a_resource_go_to_one_partition(bus: Client) -> None:
    writer, key = JetStreamIntakeWriter(bus, "test"), new_key()
    await writer.publish(
        [
            IntakeMessageOut("desired", key, Withdrawn(), uuid.uuid4().hex),
            IntakeMessageOut("timer", key, TimerFired("Sweep"), uuid.uuid4().hex),
        ]
    )
    stored = await read_subject(bus, INTAKE, f"in.*.*.{key.tokens}")
    assert [message.subject.split(".")[2] for message in stored] == ["desired", "timer"]
    partitions = {int(message.subject.split(".")[1]) for message in stored}
    assert len(partitions) == 1
    assert partitions <= set(range(PARTITIONS))


# Few messages are published one by one, many in batches; the first, second or last is refused.
@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("index", [0, 1, -1])
async def test_a_refused_message_in_a_batch_is_reported(
    bus: Client, count: int, index: int
) -> None:
    messages = [_message() for _ in range(count)]
    long = Manifest("test/v1", "Shape", Metadata("x"), {"text": "x" * bus.max_payload})
    messages[index] = messages[index]._replace(data=Declared(long))
    count_before = (await stream_state(bus, INTAKE)).messages
    with pytest.raises(NotStoredError) as raised:
        await JetStreamIntakeWriter(bus, "test").publish(messages)
    assert isinstance(raised.value.__cause__, MessageTooLargeError)
    assert raised.value.missing == [index % count]
    assert (await stream_state(bus, INTAKE)).messages == count_before + count - 1


@pytest.mark.parametrize("count", [3, 40])
async def test_messages_in_a_batch_that_do_not_fit_are_reported(bus: Client, count: int) -> None:
    writer, messages = JetStreamIntakeWriter(bus, "test"), [_message() for _ in range(count)]
    state = await stream_state(bus, INTAKE)
    full = {**state.config, "max_msgs": state.messages + count - 1}
    await api_request(bus, f"STREAM.UPDATE.{INTAKE}", full)
    try:
        with pytest.raises(NotStoredError) as raised:
            await writer.publish(messages)
        assert isinstance(raised.value.__cause__, StreamFullError)
    finally:
        await api_request(bus, f"STREAM.UPDATE.{INTAKE}", state.config)
    await writer.publish([messages[index] for index in raised.value.missing])
    assert (await stream_state(bus, INTAKE)).messages == state.messages + count, (
        "each message is stored once"
    )


async def test_the_declarations_for_several_resources_can_be_looked_up(
    bus: Client, reader: JetStreamIntakeReader
) -> None:
    writer, keys = JetStreamIntakeWriter(bus, "test"), [new_key() for _ in range(3)]
    await writer.publish(
        [
            IntakeMessageOut("desired", keys[0], Withdrawn(), "first"),
            IntakeMessageOut("timer", keys[0], TimerFired("Sweep"), uuid.uuid4().hex),
            IntakeMessageOut("desired", keys[1], Withdrawn(), "for another"),
            IntakeMessageOut("desired", keys[0], Withdrawn(), "second"),
        ]
    )
    nothing_known: dict[ResourceKey, set[int]] = {key: set() for key in keys}
    declared = await reader.declarations_of(nothing_known)
    ids = {key: [each.message_id for each in messages] for key, messages in declared.items()}
    assert ids == {keys[0]: ["first", "second"], keys[1]: ["for another"]}

    for each in (each for messages in declared.values() for each in messages):
        assert each.stored_at is not None, "renewals use the bus clock"
        assert abs((datetime.now(UTC) - each.stored_at).total_seconds()) < 60

    first, second = (each.position for each in declared[keys[0]])
    assert first < second
    for others in (0, 20):  # few resources are counted one by one, many together
        known_positions = {new_key(): set[int]() for _ in range(others)} | {
            keys[0]: {second},
            keys[1]: {declared[keys[1]][0].position},
        }
        assert list(await reader.declarations_of(known_positions)) == [keys[0]]
    assert not await reader.declarations_of({keys[0]: {first, second}})
    missed = {keys[0]: {first, second, second + 1}}
    assert list(await reader.declarations_of(missed)) == [keys[0]], (
        "an equal count alone proves nothing"
    )


async def test_declarations_by_several_users_are_one_sequence(
    bus: Client, reader: JetStreamIntakeReader
) -> None:
    key, other_key = new_key(), new_key()
    payload = encode_intake("m", "test", Withdrawn(), time=datetime.now(UTC))
    for user, message_id in (("", "plain"), ("ann", "ann's"), ("bob", "bob's"), ("ann", "again")):
        headers = {"Nats-Msg-Id": message_id}
        await publish(bus, intake_subject("desired", key, user), payload, headers=headers)
        await publish(bus, intake_subject("timer", key, user), payload)
    await publish(bus, intake_subject("desired", other_key, "ann"), payload)
    declared = await reader.declarations_of({key: set(), other_key: set()})
    assert [each.message_id for each in declared[key]] == ["plain", "ann's", "bob's", "again"]
    assert not await reader.declarations_of({key: {each.position for each in declared[key]}})
    first, second, *_ = declared[key]
    [newer, none] = await reader.newer_declarations([second, declared[other_key][0]])
    assert ([each.message_id for each in newer], none) == (["bob's", "again"], [])
    [newer] = await reader.newer_declarations([first])
    assert [each.message_id for each in newer] == ["ann's", "bob's", "again"]


async def test_trimming_deletes_only_decided_messages(
    bus: Client, reader: JetStreamIntakeReader
) -> None:
    writer = JetStreamIntakeWriter(bus, "test")
    await writer.publish([_message() for _ in range(40)])
    deliveries = await _read_batch(reader, 40)
    kept_delivery = min(deliveries, key=lambda delivery: delivery.position)
    await reader.ack([delivery for delivery in deliveries if delivery is not kept_delivery])
    await bus.flush()
    await trim(bus, keep=0)
    assert (await stream_state(bus, INTAKE)).first_seq <= kept_delivery.position, "not decided yet"
    await reader.ack([kept_delivery])
    await bus.flush()
    await trim(bus, keep=0)
    assert (await stream_state(bus, INTAKE)).messages == 0


async def test_a_flood_of_declarations_is_counted_once(
    bus: Client, reader: JetStreamIntakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[str] = []

    async def count_and_record(nc: Client, stream: str, subject_filter: str) -> SubjectCounts:
        requests.append(subject_filter)
        return await subject_counts(nc, stream, subject_filter)

    monkeypatch.setattr("infra.bus.intake.subject_counts", count_and_record)
    writer, keys = JetStreamIntakeWriter(bus, "test"), [new_key() for _ in range(20)]

    async def declare(name: str) -> int:
        await writer.publish(
            [IntakeMessageOut("desired", key, Withdrawn(), f"{name}-{key}") for key in keys]
        )
        return await writer.last_position()

    first = await declare("first")
    for _ in range(3):
        assert not await reader.declarations_of({key: {first} for key in keys})
    assert len(requests) == 1
    second = await declare("second")
    assert set(await reader.declarations_of({key: {second} for key in keys})) == set(keys)
    assert len(requests) == 2, "a later message is not in the first count"


@pytest.mark.slow
async def test_long_subjects_do_not_prevent_the_count_of_declarations(
    bus: Client, reader: JetStreamIntakeReader
) -> None:
    """A tenant chooses the subjects, and the server disconnects a client at 64 MiB of them."""
    writer, keys, name = (
        JetStreamIntakeWriter(bus, "test"),
        [new_key() for _ in range(20)],
        "x" * 2_900,
    )
    flood = [OutgoingMessage(f"rec.desired.mallory.Shape.{name}{i}", b"{}") for i in range(24_000)]
    for start in range(0, len(flood), 4_000):
        await store_all(bus, flood[start : start + 4_000])
    await writer.publish(
        [IntakeMessageOut("desired", keys[0], Withdrawn(), message_id) for message_id in "ab"]
    )
    known_positions = {key: set[int]() for key in keys} | {keys[0]: {await writer.last_position()}}
    declared = await reader.declarations_of(known_positions)
    assert {key: len(messages) for key, messages in declared.items()} == {keys[0]: 2}


@pytest.mark.parametrize(
    "reply",
    [
        "_INBOX.ann." + "a" * 3_000,
        "_INBOX.ann.",
        "_INBOX.ann..a",
        "_INBOX.ann.*",
        "_INBOX.ann.>",
        "_INBOX.ann.\xe9",
        "log.ann.a",
    ],
)
async def test_a_reply_subject_that_the_bus_may_refuse_is_ignored(
    bus: Client, reader: JetStreamIntakeReader, reply: str
) -> None:
    """A decider retries a batch whose replies fail, so one message would block all others."""
    key = new_key()
    for name in (reply, "_INBOX.ann.1.a=b"):
        headers = {REPLY_HEADER: name}
        await publish(bus, f"rec.desired=ann.{key.tokens}", b"{}", headers=headers)
    deliveries = await _read_batch(reader, 2)
    assert [each.reply_to for each in deliveries] == [None, "_INBOX.ann.1.a=b"]


async def test_a_reader_created_before_a_restore_delivers_nothing(bus: Client) -> None:
    identity = await find_log(bus)
    restored = replace(identity, epoch="newer")
    await end_restoration(bus, restored)
    key = new_key()
    await JetStreamIntakeWriter(bus, "test").publish(
        [IntakeMessageOut("desired", key, Withdrawn(), uuid.uuid4().hex)]
    )
    intake_reader = JetStreamIntakeReader(bus, identity)
    with pytest.raises(StreamReplacedError, match="was restored while this process was starting"):
        await intake_reader.next_batch()
    await intake_reader.close()
    late = JetStreamIntakeReader(bus, restored)
    assert await late.next_batch()
    await late.close()
