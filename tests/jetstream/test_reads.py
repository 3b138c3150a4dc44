import pytest
from nats.aio.client import Client

from infra.jetstream.append import append
from infra.jetstream.errors import BusUnavailableError, NotFoundOnBusError
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.reads import (
    SubjectStart,
    last_for_subjects,
    last_from_leader,
    read_starts,
    read_subject,
    stream_state,
    subject_counts,
)
from tests.jetstream.helpers import message


async def fill(nc: Client, stream: str, subjects: int) -> None:
    for start in range(0, subjects, 1_000):
        numbers = range(start, min(start + 1_000, subjects))
        await append(nc, [message(f"{stream}.{i % 10}.{i}", b"%d" % i) for i in numbers])


async def test_last_messages_of_more_subjects_than_one_request_may_name(
    nc: Client, stream: str
) -> None:
    await fill(nc, stream, 2_500)
    await append(nc, [message(f"{stream}.7.7", b"new")])
    filters = [f"{stream}.{i % 10}.{i}" for i in range(2_500)]
    messages = {
        message_.subject: message_ for message_ in await last_for_subjects(nc, stream, filters)
    }
    assert len(messages) == 2_500
    assert messages[f"{stream}.7.7"].payload == b"new"
    previous_messages = await last_for_subjects(nc, stream, [f"{stream}.7.7"], up_to=2_500)
    assert [message_.payload for message_ in previous_messages] == [b"7"]


async def test_wildcards_may_match_more_subjects_than_one_request_returns(
    nc: Client, stream: str
) -> None:
    await fill(nc, stream, 2_500)
    filters = [f"{stream}.{i}.>" for i in range(10)]
    assert len(await last_for_subjects(nc, stream, filters)) == 2_500
    await append(nc, [message(f"{stream}.7.7", b"new")])
    for wildcard in (f"{stream}.>", f"{stream}.*.*"):
        read = await last_for_subjects(nc, stream, [wildcard, f"{stream}.none"])
        assert len({each.subject for each in read}) == len(read) == 2_500
        assert [each.payload for each in read if each.subject == f"{stream}.7.7"] == [b"new"]
    previous = await last_for_subjects(nc, stream, [f"{stream}.>"], up_to=2_000)
    assert len(previous) == 2_000


@pytest.mark.parametrize("subjects", [18, 40])
async def test_last_messages_of_more_bytes_than_one_response_has_are_complete(
    nc: Client, stream: str, subjects: int
) -> None:
    """Of 18 messages of this size, a response lacks only the last one."""
    names = [f"{stream}.{i}" for i in range(subjects)]
    for name in names:
        await append(nc, [message(name, b"x" * 1_000_000)])
    for filters in (names, [f"{stream}.*"]):
        read = await last_for_subjects(nc, stream, filters)
        assert sorted(each.subject for each in read) == sorted(names)
    starts = await read_starts(nc, stream, [SubjectStart(name, 2) for name in names])
    assert [[each.subject for each in read] for read in starts] == [[name] for name in names]
    assert len(await read_subject(nc, stream, f"{stream}.*")) == subjects


async def test_the_counts_of_long_subjects_are_complete(nc: Client, stream: str) -> None:
    """Their index is larger than the limit for responses of other servers."""
    long, count = "x" * 400, 21_000
    for start in range(0, count, 1_000):
        await append(nc, [message(f"{stream}.{long}.{i}") for i in range(start, start + 1_000)])
    assert len((await subject_counts(nc, stream, f"{stream}.{long}.*")).counts) == count


async def test_reads_without_a_match_return_nothing(nc: Client, stream: str) -> None:
    assert await last_for_subjects(nc, stream, []) == []
    assert await last_for_subjects(nc, stream, [f"{stream}.a"]) == []
    assert await read_subject(nc, stream, f"{stream}.>") == []
    assert await last_from_leader(nc, stream, f"{stream}.a") is None


async def test_a_subject_is_read_in_pages(nc: Client, stream: str) -> None:
    await fill(nc, stream, 2_345)
    everything = await read_subject(nc, stream, f"{stream}.>")
    assert [message_.seq for message_ in everything] == list(range(1, 2_346))
    page = await read_subject(nc, stream, f"{stream}.5.>", start_seq=100, limit=3)
    assert [message_.payload for message_ in page] == [b"105", b"115", b"125"]
    exactly_one_page = await read_subject(nc, stream, f"{stream}.>", start_seq=1_346)
    assert len(exactly_one_page) == 1_000


async def test_direct_and_leader_reads_return_the_same_message(nc: Client, stream: str) -> None:
    await append(nc, [OutgoingMessage(f"{stream}.a", b"\x00\xff", {"Name": "wért: 1"})])
    [direct] = await last_for_subjects(nc, stream, [f"{stream}.a"])
    leader = await last_from_leader(nc, stream, f"{stream}.a")
    assert leader is not None
    assert (leader.payload, leader.headers) == (b"\x00\xff", {"Name": "wért: 1"})
    assert (direct.payload, direct.headers) == (leader.payload, leader.headers)
    assert direct.time_ns == leader.time_ns
    assert direct.time == leader.time
    assert int(direct.time.timestamp()) == direct.time_ns // 1_000_000_000


async def test_the_state_of_a_stream_has_its_sequences_and_config(nc: Client, stream: str) -> None:
    await fill(nc, stream, 3)
    state = await stream_state(nc, stream)
    assert (state.first_seq, state.last_seq, state.messages) == (1, 3, 3)
    assert state.config["name"] == stream


async def test_a_read_of_an_unknown_stream_is_an_error(nc: Client, unique: str) -> None:
    with pytest.raises(NotFoundOnBusError):
        await stream_state(nc, unique)
    with pytest.raises(NotFoundOnBusError):
        await last_from_leader(nc, unique, "a")
    with pytest.raises(BusUnavailableError):
        await read_subject(nc, unique, "a")
