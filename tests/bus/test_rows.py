"""Rows of the read models: large batches, consistent reads, and rows that are too large."""

import asyncio
from collections.abc import Mapping

import pytest
from nats.aio.client import Client

from infra.bus.rows import JetStreamRows
from infra.bus.streams import ROWS
from infra.jetstream.connection import api_request

ROW_COUNT = 900


@pytest.fixture
async def store(bus: Client) -> JetStreamRows:
    await api_request(bus, f"STREAM.PURGE.{ROWS}", {})
    return JetStreamRows(bus)


def build_rows(content: bytes) -> dict[str, bytes | None]:
    return {f"status.a.b.s{number}": content for number in range(ROW_COUNT)}


async def test_rows_are_read_as_they_were_written(bus: Client, store: JetStreamRows) -> None:
    rows: dict[str, bytes | None] = {
        f"status.a.b.s{number}": b"%d" % number for number in range(2 * ROW_COUNT)
    }
    names, revision = list(rows), 0
    for start in (0, ROW_COUNT):
        batch = {name: rows[name] for name in names[start : start + ROW_COUNT]}
        revision = await store.save({**batch, "checkpoint": b"1"}, revision)
    changes = {"status.a.b.s7": None, "status.a.b.s8": b"new", "checkpoint": b"2"}
    revision = await store.save(changes, revision)
    loaded = dict(await JetStreamRows(bus).load())
    expected = {**rows, "status.a.b.s8": b"new", "checkpoint": b"2"}
    del expected["status.a.b.s7"]
    assert loaded == expected
    assert await store.checkpoint() == (b"2", revision)
    assert await store.get(["status.a.b.s7", "status.a.b.s9"]) == {"status.a.b.s9": b"9"}


async def test_a_read_returns_the_rows_of_one_save(bus: Client, store: JetStreamRows) -> None:
    """While the server stores a batch, the stream's counts include part of it."""
    revision = await store.save({**build_rows(b"0"), "checkpoint": b"0"}, 0)

    async def write_repeatedly(revision: int) -> None:
        for number in range(1, 10_000):
            content = b"%d" % number
            changes = {**build_rows(content), "checkpoint": content}
            revision = await store.save(changes, revision)

    write_task = asyncio.ensure_future(write_repeatedly(revision))
    reader = JetStreamRows(bus)
    snapshots: list[Mapping[str, bytes]] = [await reader.load() for _ in range(20)]
    write_task.cancel()
    await asyncio.gather(write_task, return_exceptions=True)
    assert [len(set(rows.values())) for rows in snapshots] == [1] * len(snapshots)
    assert all(len(rows) == ROW_COUNT + 1 for rows in snapshots)


async def test_a_row_that_is_too_large_for_a_message_does_not_block_other_rows(
    bus: Client, store: JetStreamRows
) -> None:
    """One tenant's resource may have such a row, in a batch with the rows of other tenants."""
    rows: dict[str, bytes | None] = {
        "status.a.b.large": b"x" * (bus.max_payload + 1),
        "status.a.b.small": b"y",
        "checkpoint": b"9",
    }
    revision = await store.save(rows, 0)
    assert await store.get(["status.a.b.large", "status.a.b.small"]) == {"status.a.b.small": b"y"}
    assert await store.checkpoint() == (b"9", revision)
