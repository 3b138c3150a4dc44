"""Rows of the read models: many at once, read as of one save, and one writer."""

import asyncio
from collections.abc import Mapping

import pytest
from nats.aio.client import Client

from infra.bus.rows import JetStreamRows
from infra.bus.streams import ROWS
from infra.jetstream.connection import api_request

MANY = 900


@pytest.fixture
async def store(bus: Client) -> JetStreamRows:
    await api_request(bus, f"STREAM.PURGE.{ROWS}", {})
    return JetStreamRows(bus)


def rows_of(content: bytes) -> dict[str, bytes | None]:
    return {f"status.a.b.s{number}": content for number in range(MANY)}


async def test_rows_come_back_as_they_were_written(bus: Client, store: JetStreamRows) -> None:
    rows: dict[str, bytes | None] = {
        f"status.a.b.s{number}": b"%d" % number for number in range(2 * MANY)
    }
    names, revision = list(rows), 0
    for start in (0, MANY):
        some = {name: rows[name] for name in names[start : start + MANY]}
        revision = await store.save({**some, "checkpoint": b"1"}, revision)
    changes = {"status.a.b.s7": None, "status.a.b.s8": b"new", "checkpoint": b"2"}
    revision = await store.save(changes, revision)
    loaded = dict(await JetStreamRows(bus).load())
    expected = {**rows, "status.a.b.s8": b"new", "checkpoint": b"2"}
    del expected["status.a.b.s7"]
    assert loaded == expected
    assert await store.checkpoint() == (b"2", revision)
    assert await store.get(["status.a.b.s7", "status.a.b.s9"]) == {"status.a.b.s9": b"9"}


async def test_rows_are_read_as_of_one_save(bus: Client, store: JetStreamRows) -> None:
    """The server shows half a batch in the numbers of its stream while it stores one."""
    revision = await store.save({**rows_of(b"0"), "checkpoint": b"0"}, 0)

    async def write_again_and_again(revision: int) -> None:
        for number in range(1, 10_000):
            content = b"%d" % number
            changes = {**rows_of(content), "checkpoint": content}
            revision = await store.save(changes, revision)

    writing = asyncio.ensure_future(write_again_and_again(revision))
    reader = JetStreamRows(bus)
    snapshots: list[Mapping[str, bytes]] = [await reader.load() for _ in range(20)]
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert [len(set(rows.values())) for rows in snapshots] == [1] * len(snapshots)
    assert all(len(rows) == MANY + 1 for rows in snapshots)


async def test_a_row_that_is_larger_than_a_message_keeps_no_other_from_being_written(
    bus: Client, store: JetStreamRows
) -> None:
    """The resource of a tenant may have one; the rows of all others are in the same batch."""
    rows: dict[str, bytes | None] = {
        "status.a.b.large": b"x" * (bus.max_payload + 1),
        "status.a.b.small": b"y",
        "checkpoint": b"9",
    }
    revision = await store.save(rows, 0)
    assert await store.get(["status.a.b.large", "status.a.b.small"]) == {"status.a.b.small": b"y"}
    assert await store.checkpoint() == (b"9", revision)
