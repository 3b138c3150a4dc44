"""Group commit: concurrent writes share a transaction, and are answered once it has committed."""

import asyncio
import sqlite3
from collections.abc import Callable

from infra.shapes_api.replies import Reply

Work = Callable[[], Reply]
Outcome = Reply | Exception


class GroupCommit:
    """Runs the writes of one turn of the event loop in order, in one transaction.

    A write that fails is undone alone: each one has a savepoint.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._waiting: list[tuple[Work, asyncio.Future[Reply]]] = []

    async def run(self, work: Work) -> Reply:
        """Return what `work` returns, after the transaction that holds it has committed.

        Raises:
            Exception: what `work` raises, or the failure of the transaction.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._commit_waiting)
        future: asyncio.Future[Reply] = loop.create_future()
        self._waiting.append((work, future))
        return await future

    def _commit_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            outcomes = self._commit([work for work, _ in waiting])
        except sqlite3.Error as error:
            outcomes = [error] * len(waiting)
        for (_, future), outcome in zip(waiting, outcomes, strict=True):
            _settle(future, outcome)

    def _commit(self, group: list[Work]) -> list[Outcome]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [self._run_alone(work) for work in group]
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return outcomes

    def _run_alone(self, work: Work) -> Outcome:
        self._connection.execute("SAVEPOINT one_request")
        try:
            outcome: Outcome = work()
        except Exception as error:  # noqa: BLE001 - it is raised again where the request waits
            self._connection.execute("ROLLBACK TO one_request")
            outcome = error
        self._connection.execute("RELEASE one_request")
        return outcome


def _settle(future: asyncio.Future[Reply], outcome: Outcome) -> None:
    if future.done():  # the request was cancelled while it waited
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
