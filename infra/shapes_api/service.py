"""The parts of the service, put together over one database."""

import asyncio
import sqlite3
from typing import Final

from infra.shapes_api.counters import Counters
from infra.shapes_api.database import token_secret
from infra.shapes_api.fault_injector import FaultInjector
from infra.shapes_api.group_commit import GroupCommit
from infra.shapes_api.idempotency import PURGE_BATCH, KeptReplies, RunningKeys
from infra.shapes_api.journal import Journal
from infra.shapes_api.paging import ContinueTokens
from infra.shapes_api.shape_store import ShapeStore

PURGE_EVERY_SECONDS: Final = 600.0


class Service:
    """What the routes work with."""

    def __init__(self, connection: sqlite3.Connection, latency_seconds: float = 0) -> None:
        self.connection = connection
        self.latency_seconds = latency_seconds
        self.journal = Journal(connection)
        self.shapes = ShapeStore(connection, self.journal)
        self.kept_replies = KeptReplies(connection)
        self.running_keys = RunningKeys()
        self.group_commit = GroupCommit(connection)
        self.tokens = ContinueTokens(token_secret(connection))
        self.faults = FaultInjector()
        self.counters = Counters(connection, self.journal, self.shapes.count())

    async def purge_for_ever(self) -> None:
        """Forget old answers from time to time, a few at once."""
        while True:
            more_are_old = self.kept_replies.purge() == PURGE_BATCH
            await asyncio.sleep(0 if more_are_old else PURGE_EVERY_SECONDS)
