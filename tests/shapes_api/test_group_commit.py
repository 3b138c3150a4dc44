"""Writes that share a transaction do not share their failures."""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.shapes_api.database import open_database
from infra.shapes_api.group_commit import GroupCommit
from infra.shapes_api.problems import ProblemError
from infra.shapes_api.replies import Reply


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_database(tmp_path)
    yield connection
    connection.close()


class Writes:
    """Writes that note what they did, in a table of the database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        self.order: list[str] = []
        self.transactions = 0
        database.set_trace_callback(self._see)

    def works(self, name: str) -> Reply:
        self.order.append(name)
        self.database.execute("INSERT INTO settings VALUES (?, 1)", (name,))
        return Reply(201, name.encode())

    def fails(self, name: str, error: Exception) -> Reply:
        self.works(name)
        raise error

    def stored(self) -> set[str]:
        return {name for (name,) in self.database.execute("SELECT name FROM settings")}

    def _see(self, statement: str) -> None:
        self.transactions += statement == "COMMIT"


async def test_concurrent_writes_share_a_transaction_in_order(
    database: sqlite3.Connection,
) -> None:
    writes, group_commit = Writes(database), GroupCommit(database)
    replies = await asyncio.gather(
        *(group_commit.run(lambda name=name: writes.works(name)) for name in "abc")
    )
    assert [reply.body for reply in replies] == [b"a", b"b", b"c"]
    assert (writes.order, writes.transactions) == (["a", "b", "c"], 1)


@pytest.mark.parametrize(
    "error", [ProblemError(409, "taken"), sqlite3.IntegrityError("bad"), ValueError("a defect")]
)
async def test_a_failing_write_is_undone_alone(
    database: sqlite3.Connection, error: Exception
) -> None:
    writes, group_commit = Writes(database), GroupCommit(database)
    outcomes = await asyncio.gather(
        group_commit.run(lambda: writes.works("a")),
        group_commit.run(lambda: writes.fails("b", error)),
        group_commit.run(lambda: writes.works("c")),
        return_exceptions=True,
    )
    assert outcomes == [Reply(201, b"a"), error, Reply(201, b"c")]
    assert writes.stored() == {"a", "c"}


async def test_a_failed_transaction_fails_all_its_writes_and_the_next_works(
    database: sqlite3.Connection,
) -> None:
    writes, group_commit = Writes(database), GroupCommit(database)

    def break_off() -> Reply:
        database.execute("ROLLBACK")
        return Reply(200)

    outcomes = await asyncio.gather(
        group_commit.run(lambda: writes.works("a")),
        group_commit.run(break_off),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [sqlite3.OperationalError] * 2
    assert writes.stored() == set()
    assert await group_commit.run(lambda: writes.works("a")) == Reply(201, b"a")


async def test_a_write_whose_request_was_cancelled_harms_no_other(
    database: sqlite3.Connection,
) -> None:
    writes, group_commit = Writes(database), GroupCommit(database)
    cancelled = asyncio.create_task(group_commit.run(lambda: writes.works("a")))
    other = asyncio.create_task(group_commit.run(lambda: writes.works("b")))
    await asyncio.sleep(0)  # both wait for the commit of this turn
    cancelled.cancel()
    assert (await other).body == b"b"
