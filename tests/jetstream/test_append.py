import os
import signal
from pathlib import Path

import pytest
from nats.aio.client import Client

from infra.embedded import EmbeddedServer
from infra.jetstream.acknowledgement import PublishAck
from infra.jetstream.append import append
from infra.jetstream.errors import (
    AppendConflictError,
    BusRefusedError,
    BusUnavailableError,
    MessageTooLargeError,
    StreamFullError,
)
from infra.jetstream.outgoing import OutgoingMessage, subject_matches
from infra.jetstream.publish import publish, publish_in_batches, publish_many
from infra.jetstream.reads import last_for_subjects, last_from_leader, read_subject, stream_state
from infra.jetstream.topology import ensure_stream
from infra.jetstream.wire import FastClient
from tests.jetstream.conftest import Connect
from tests.jetstream.helpers import message, until

OPEN_BATCHES = 50


async def test_an_append_with_an_outdated_expectation_is_a_conflict(
    nc: Client, stream: str
) -> None:
    shape = f"{stream}.a.>"
    assert await append(nc, [message(f"{stream}.a.made", b"1", shape, 0)]) == [1]
    with pytest.raises(AppendConflictError) as caught:
        await append(nc, [message(f"{stream}.a.made", b"2", shape, 0)])
    assert caught.value.filters == {shape: 0}
    assert caught.value.actual_last == 1
    assert await append(nc, [message(f"{stream}.a.changed", b"2", shape, 1)]) == [2]


async def test_a_batch_is_stored_completely_or_not_at_all(nc: Client, stream: str) -> None:
    await append(nc, [message(f"{stream}.b.made")])
    batch = [
        message(f"{stream}.a.made", b"1", f"{stream}.a.>", 0),
        message(f"{stream}.a.changed", b"2"),
        message(f"{stream}.b.made", b"3", f"{stream}.b.>", 0),
    ]
    with pytest.raises(AppendConflictError) as caught:
        await append(nc, batch)
    assert caught.value.filters == {f"{stream}.a.>": 0, f"{stream}.b.>": 0}
    assert (await stream_state(nc, stream)).messages == 1
    batch[2] = message(f"{stream}.b.changed", b"3", f"{stream}.b.>", 1)
    assert await append(nc, batch) == [2, 3, 4]
    assert [item.payload for item in await read_subject(nc, stream, f"{stream}.a.>")] == [
        b"1",
        b"2",
    ]


async def test_a_batch_has_at_most_a_thousand_messages(nc: Client, stream: str) -> None:
    batch = [message(f"{stream}.{i}.made", b"", f"{stream}.{i}.>", 0) for i in range(1_000)]
    assert await append(nc, batch) == list(range(1, 1_001))
    with pytest.raises(ValueError, match="at most 1000"):
        await append(nc, [*batch, message(f"{stream}.more")])


async def test_an_empty_append_returns_nothing(nc: Client) -> None:
    assert await append(nc, []) == []


async def test_an_expectation_must_cover_the_subject(nc: Client, stream: str) -> None:
    with pytest.raises(ValueError, match="does not match"):
        await append(nc, [message(f"{stream}.a.made", b"", f"{stream}.b.>", 0)])
    with pytest.raises(ValueError, match="must be at least 0"):
        await append(nc, [message(f"{stream}.a.made", b"", f"{stream}.a.>", -1)])


async def test_a_retry_after_a_lost_acknowledgment_is_a_conflict(nc: Client, stream: str) -> None:
    """The retry has a stale expectation, so it is a conflict, and the caller must read."""
    conditional = OutgoingMessage(f"{stream}.a", b"1", {"Nats-Msg-Id": "m"}, f"{stream}.a", 0)
    assert await append(nc, [conditional]) == [1]
    with pytest.raises(AppendConflictError):
        await append(nc, [conditional])
    ack = await publish(nc, f"{stream}.a", b"1", msg_id="m")
    assert ack == PublishAck(stream, 1, duplicate=True)


def thread_states(pid: int) -> list[str]:
    files = Path(f"/proc/{pid}/task").glob("*/stat")
    return [each.read_text().rpartition(")")[2].split()[0] for each in files]


async def pause(pid: int) -> None:
    """Stop a process and wait until all threads have stopped, because it may respond until then."""
    os.kill(pid, signal.SIGSTOP)

    async def is_stopped() -> bool:
        return all(state == "T" for state in thread_states(pid))

    await until(is_stopped)


async def test_the_result_of_an_append_without_a_response_is_unknown(
    own_server: EmbeddedServer, connect_client: Connect
) -> None:
    nc = await connect_client(own_server)
    await ensure_stream(nc, {"name": "S", "subjects": ["s.>"], "allow_atomic": True})
    await pause(own_server.pid)
    try:
        with pytest.raises(BusUnavailableError, match="unknown"):
            await append(nc, [message("s.a"), message("s.b")], timeout=0.2)
    finally:
        os.kill(own_server.pid, signal.SIGCONT)

    async def is_stored() -> bool:
        return (await stream_state(nc, "S")).messages == 2

    await until(is_stored)


async def test_an_append_without_a_matching_stream_is_an_error(nc: Client, unique: str) -> None:
    with pytest.raises(BusUnavailableError):
        await append(nc, [message(f"{unique}.nowhere")])
    with pytest.raises(BusUnavailableError):
        await append(nc, [message(f"{unique}.nowhere")] * 2)


async def test_an_append_to_a_full_stream_is_an_error(nc: Client, stream: str) -> None:
    config = {"name": stream, "max_msgs": 1, "discard": "new"}
    await ensure_stream(nc, {"subjects": [f"{stream}.>"], **config})
    await append(nc, [message(f"{stream}.a")])
    with pytest.raises(StreamFullError):
        await append(nc, [message(f"{stream}.b")])


async def test_a_message_that_is_too_large_does_not_break_the_connection(
    nc: Client, stream: str
) -> None:
    limit = nc.max_payload
    too_large = [
        OutgoingMessage(f"{stream}.a", b"x" * (limit + 1)),
        OutgoingMessage(f"{stream}.a", b"x" * limit, {"name": "value"}),
        OutgoingMessage(f"{stream}.a", b"", {"name": "x" * 65_536}),
        OutgoingMessage(f"{stream}.{'a' * 4_000}", b""),
    ]
    for outgoing in too_large:
        with pytest.raises(MessageTooLargeError):
            await append(nc, [outgoing])
        with pytest.raises(MessageTooLargeError):
            await append(nc, [message(f"{stream}.b"), outgoing])
    largest = OutgoingMessage(f"{stream}.a", b"", {"name": "x" * (65_535 - 20)})
    assert await append(nc, [largest]) == [1]
    await ensure_stream(nc, {"name": stream, "max_msg_size": 100})
    with pytest.raises(MessageTooLargeError):
        await append(nc, [message(f"{stream}.b", b"x" * 200)])


async def test_a_stream_without_batches_refuses_them(nc: Client, stream: str) -> None:
    await ensure_stream(nc, {"name": stream, "allow_atomic": False})
    with pytest.raises(BusRefusedError) as caught:
        await append(nc, [message(f"{stream}.a")] * 2)
    assert caught.value.err_code == 10174


async def test_publish_many_returns_a_result_for_each_message(nc: Client, stream: str) -> None:
    await append(nc, [message(f"{stream}.1")])
    expected_messages = [message(f"{stream}.{i}", b"", f"{stream}.{i}", 0) for i in range(300)]
    expected_messages[2] = message(f"elsewhere-{stream}")
    expected_messages[3] = OutgoingMessage(f"{stream}.3", b"", {"name": "x" * 70_000})
    results = await publish_many(nc, expected_messages, window=50)
    assert isinstance(results[1], AppendConflictError)
    assert isinstance(results[2], BusUnavailableError)
    assert isinstance(results[3], MessageTooLargeError)
    acks = [result for result in results if isinstance(result, PublishAck)]
    assert [ack.seq for ack in acks] == list(range(2, 299))
    assert await publish_many(nc, []) == []


async def test_subjects_and_headers_that_break_the_protocol_are_refused(
    nc: Client, stream: str
) -> None:
    valid = message(f"{stream}.a")
    invalid = [
        message(f"{stream}.a 1\r\nPUB {stream}.b 0\r\n"),
        message(""),
        OutgoingMessage(f"{stream}.a", b"", {"na me": "value"}),
    ]
    for outgoing in invalid:
        with pytest.raises(ValueError, match=r"subject|header|Subject|Header"):
            await append(nc, [outgoing])
        with pytest.raises(ValueError, match=r"subject|header"):
            await append(nc, [outgoing, valid])
        [first, second] = await publish_many(nc, [outgoing, valid])
        assert isinstance(first, BusRefusedError)
        assert isinstance(second, PublishAck)
    injected = OutgoingMessage(f"{stream}.b", b"", {"Name": "a\r\nNats-Msg-Id: b"})
    await append(nc, [injected, injected])
    [existing_message] = await last_for_subjects(nc, stream, [f"{stream}.b"])
    assert (existing_message.headers or {})["Name"] == "a  Nats-Msg-Id: b"
    assert "Nats-Msg-Id" not in (existing_message.headers or {})


def test_the_client_still_has_the_parser_that_ours_replaces() -> None:
    assert hasattr(Client, FastClient._parse_header_lines.__name__)  # pyright: ignore[reportPrivateUsage]
    block = b"\r\nA: b\r\nC:d:e\r\nEmpty:\r\nno colon\r\nBa d: x\r\nW: w\xc3\xa9\r\n\r\n"
    parsed_headers = FastClient._parse_header_lines(block)  # pyright: ignore[reportPrivateUsage]
    assert parsed_headers == {"A": "b", "C": "d:e", "Empty": "", "W": "wé"}
    assert parsed_headers == Client._parse_header_lines(block)  # pyright: ignore[reportPrivateUsage]


async def test_publish_many_reports_messages_without_a_response(
    own_server: EmbeddedServer, connect_client: Connect
) -> None:
    nc = await connect_client(own_server)
    await ensure_stream(nc, {"name": "S", "subjects": ["s.>"]})
    await pause(own_server.pid)
    try:
        results = await publish_many(nc, [message("s.a")] * 3, timeout=0.2)
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    assert [type(result) for result in results] == [BusUnavailableError] * 3


async def test_publish_in_batches_falls_back_to_individual_messages(
    nc: Client, stream: str
) -> None:
    expected_messages = [message(f"{stream}.{i}", b"", f"{stream}.{i}", 0) for i in range(100)]
    await append(nc, [message(f"{stream}.77")])
    results = await publish_in_batches(nc, expected_messages, batch=50)
    assert isinstance(results[77], AppendConflictError)
    acks = [result for result in results if isinstance(result, PublishAck)]
    assert [ack.seq for ack in acks] == list(range(2, 101))


async def test_each_message_of_a_batch_without_a_response_is_unknown(
    nc: Client, stream: str
) -> None:
    expected_messages = [message(f"{stream}.{i}") for i in range(60)]
    expected_messages[39] = message(
        f"nowhere-{stream}"
    )  # this would have been the commit of the second batch
    results = await publish_in_batches(nc, expected_messages, batch=20)
    kinds = [type(result) for result in results]
    assert kinds == [PublishAck] * 20 + [BusUnavailableError] * 20 + [PublishAck] * 20


async def test_a_batch_whose_start_the_server_refused_is_sent_again(
    nc: Client, stream: str
) -> None:
    """It allows 50 open batches per stream, and refuses the start of another one."""
    subject, names = f"{stream}.other", [f"batch-{number}" for number in range(OPEN_BATCHES)]

    async def add_to_batch(name: str, number: int, **more: str) -> None:
        headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number), **more}
        await nc.request(subject, b"", headers=headers, timeout=20)

    for name in names:
        await add_to_batch(name, 1)
    attempts = 0

    async def commit_other_batches() -> None:
        nonlocal attempts
        attempts += 1
        await nc.flush()
        if attempts == 1:
            for name in names:
                await add_to_batch(name, 2, **{"Nats-Batch-Commit": "1"})

    batch = [message(f"{stream}.{number}", b"%d" % number) for number in range(3)]
    last = 2 * OPEN_BATCHES
    assert await append(nc, batch, before_commit=commit_other_batches) == [
        last + 1,
        last + 2,
        last + 3,
    ]
    assert attempts == 2
    assert (await stream_state(nc, stream)).messages == last + 3


async def test_the_leader_returns_the_last_message_for_a_filter(nc: Client, stream: str) -> None:
    await append(nc, [message(f"{stream}.a.{i}", b"%d" % i) for i in range(5)])
    existing_message = await last_from_leader(nc, stream, f"{stream}.a.>")
    assert existing_message is not None
    assert (existing_message.seq, existing_message.payload) == (5, b"4")


@pytest.mark.parametrize(
    ("subject_filter", "subject", "matches"),
    [
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.*.>", "a.b.c", True),
        ("a.*.>", "a.b", False),
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b.c", "a.b", False),
    ],
)
def test_subject_matches(subject_filter: str, subject: str, *, matches: bool) -> None:
    assert subject_matches(subject_filter, subject) is matches
