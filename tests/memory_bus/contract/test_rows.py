"""Rows of the read models: written with their checkpoint, by one writer."""

from __future__ import annotations

import pytest

from reconciler.ports import RowsConflictError
from tests.memory_bus.contract.buses import Bus

MANY = 900


async def test_rows_are_read_as_they_were_written(bus: Bus) -> None:
    store = bus.rows()
    rows: dict[str, bytes | None] = {
        f"status.a.b.s{number}": b"%d" % number for number in range(2 * MANY)
    }
    names, revision = list(rows), 0
    assert await store.checkpoint() == (b"", 0)
    for start in (0, MANY):
        some = {name: rows[name] for name in names[start : start + MANY]}
        revision = await store.save({**some, "checkpoint": b"1"}, revision)
    changes = {"status.a.b.s7": None, "status.a.b.s8": b"new", "checkpoint": b"2"}
    revision = await store.save(changes, revision)
    expected = {**rows, "status.a.b.s8": b"new", "checkpoint": b"2"}
    del expected["status.a.b.s7"]
    assert dict(await bus.rows().load()) == expected
    assert await store.checkpoint() == (b"2", revision)


async def test_a_writer_with_an_older_checkpoint_writes_nothing(bus: Bus) -> None:
    store, other_store = bus.rows(), bus.rows()
    await store.save({"status.a.b.c": b"first", "checkpoint": b"1"}, 0)
    with pytest.raises(RowsConflictError):
        await other_store.save({"status.a.b.c": b"second", "checkpoint": b"1"}, 0)
    assert (await other_store.load())["status.a.b.c"] == b"first"
    with pytest.raises(RowsConflictError):  # a load does not refresh the checkpoint's revision
        await other_store.save({"status.a.b.c": b"second", "checkpoint": b"2"}, 0)
    _, revision = await other_store.checkpoint()
    await other_store.save({"status.a.b.c": b"second", "checkpoint": b"2"}, revision)


async def test_clear_removes_only_rows_written_before_a_revision(bus: Bus) -> None:
    store = bus.rows()
    revision = await store.save({"status.a.b.c": b"old", "checkpoint": b"1"}, 0)
    claimed = await store.save({"checkpoint": b"claimed"}, revision)
    await store.save({"status.a.b.d": b"new", "checkpoint": b"2"}, claimed)
    await store.clear(claimed)
    assert await store.load() == {"status.a.b.d": b"new", "checkpoint": b"2"}
