"""Rows of the read models: many at once, and one writer."""

import pytest
from nats.aio.client import Client

from infra.bus.rows import JetStreamRows
from reconciler.ports import RowsConflictError


async def test_rows_come_back_as_they_were_written(bus: Client) -> None:
    store = JetStreamRows(bus)
    await store.clear()
    await store.load()
    rows: dict[str, bytes | None] = {
        f"status.a.b.s{number}": b"%d" % number for number in range(2_100)
    }
    await store.save({**rows, "checkpoint": b"1"})
    await store.save({"status.a.b.s7": None, "status.a.b.s8": b"new", "checkpoint": b"2"})
    loaded = dict(await JetStreamRows(bus).load())
    expected = {**rows, "status.a.b.s8": b"new", "checkpoint": b"2"}
    del expected["status.a.b.s7"]
    assert loaded == expected
    assert await store.get(["status.a.b.s7", "status.a.b.s9"]) == {"status.a.b.s9": b"9"}


async def test_of_two_projectors_the_second_is_told(bus: Client) -> None:
    first, second = JetStreamRows(bus), JetStreamRows(bus)
    await first.clear()
    await first.load()
    await second.load()
    await first.save({"status.a.b.c": b"first", "checkpoint": b"1"})
    with pytest.raises(RowsConflictError):
        await second.save({"status.a.b.c": b"second", "checkpoint": b"1"})
    assert (await second.load())["status.a.b.c"] == b"first"
    await second.save({"status.a.b.c": b"second", "checkpoint": b"2"})
