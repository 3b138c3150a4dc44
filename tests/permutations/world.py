"""An in-memory world for the scenarios: roles, bus and the API's application in one virtual loop.

The provider speaks HTTP with the API over in-memory connections, so that requests, faults and
responses are those of the real scenarios.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import httpx
import uvicorn
from uvicorn.server import ServerState

from events.dead_letter import DeadLetterRecord
from events.intake import Reply
from events.log import OutcomeRecorded
from events.names import ResourceKey
from infra.secrets import open_stores
from reconciler.roles.process import ProcessParts, Role, load, run_parts
from shapes_api.database import open_database
from tests.faulty_api.app import CuttingProtocol, create_faulty_app
from tests.memory_bus.bus import MemoryBus
from tests.memory_bus.client import MemoryClient
from tests.memory_bus.clock import Clock, date_of
from tests.memory_bus.intake import MemoryIntakeWriter
from tests.memory_bus.log import MemoryLog
from tests.memory_bus.loop import Process, VirtualLoop, current_process
from tests.scenarios.harness import ACTOR, TIMEOUT_SECONDS, Human, World

BATCH_SIZE = 200
"""Maximum number of messages that are decided together, as on a server."""

_ports = itertools.count(1_000)


def date_now(loop: VirtualLoop) -> datetime:
    """Return the date on an accurate clock."""
    return date_of(loop.time())


@contextmanager
def memory_api(loop: VirtualLoop, folder: Path) -> Generator[Human]:
    """Serve the shapes API with faults in a loop, to the provider and to a human."""
    database = open_database(folder)
    app = create_faulty_app(database)
    config = uvicorn.Config(app, http=CuttingProtocol, ws="none", log_config=None, lifespan="off")
    config.load()
    state, port = ServerState(), next(_ports)
    loop.listen(
        port, lambda: CuttingProtocol(config=config, server_state=state, app_state={}, _loop=loop)
    )
    transport = httpx.ASGITransport(cast("Any", app))
    try:
        yield Human(f"http://127.0.0.1:{port}", transport)
    finally:
        database.close()


class MemoryWorld(World):
    """The bus and reconciler of one scenario, in memory; otherwise like its base class."""

    def __init__(self, loop: VirtualLoop, human: Human) -> None:
        super().__init__("memory", human)
        self.bus = MemoryBus(
            loop,
            "permutations",
            batch_sizes=(BATCH_SIZE,),
            max_delay_seconds=0.0,
            slow_decisions=0.0,
        )
        self._loop = loop
        self._client = MemoryClient(self.bus, ACTOR)
        self.client = self._client
        self.log = MemoryLog(self.bus.log, self.bus.network)
        self._writer = MemoryIntakeWriter(
            self.bus.intake, self.bus.network, ACTOR, Clock(loop.time)
        )
        self._starts = itertools.count(1)
        self._ids = itertools.count(1)

    # --- the reconciler and the bus

    def _spawn(self, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._loop.start(Process(f"reconciler.{next(self._starts)}"), main)

    async def _run(self, roles: Sequence[Role], ready: asyncio.Future[ProcessParts]) -> None:
        stores = open_stores(self.secrets)
        name = current_process().name
        ports = self.bus.ports(name, new_id=lambda: f"id-{next(self._ids)}", secrets=stores)
        parts = await load(ports, roles, self.kinds)
        async with run_parts(parts, roles):
            ready.set_result(parts)
            await self._stop.wait()
        self.bus.forget_requests(name)

    async def erase_caches(self) -> None:
        self.bus.rows.clear()
        self.bus.log.erase_states()

    @property
    def loop_steps(self) -> int:
        """The number of callbacks that the loop has run."""
        return self._loop.steps

    # --- declaring

    @asynccontextmanager
    async def client_as(self, source: str) -> AsyncGenerator[MemoryClient]:
        yield MemoryClient(self.bus, source)

    async def ask_raw(self, subject: str, payload: bytes) -> Reply:
        _, reply = await self._client.bus.ask_raw(
            subject, payload, reply_timeout_seconds=TIMEOUT_SECONDS
        )
        assert reply is not None, f"no reply to {subject}"
        return reply

    # --- reading and waiting

    async def until_settled(self) -> None:
        async def is_settled() -> bool:
            return self.bus.is_idle

        await self.until(is_settled, "everything decided and executed")

    async def log_position(self) -> int:
        return self.bus.log.last_position

    async def outcomes(self, key: ResourceKey) -> list[OutcomeRecorded]:
        return list(await self._client.bus.all_outcomes(key))

    async def rows(self) -> Mapping[str, bytes]:
        return dict(self.bus.rows.content)

    async def dead_letters(self) -> list[DeadLetterRecord]:
        dead_letters, _ = await self._client.bus.dead_letters()
        return list(dead_letters.values())

    # --- opening

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[MemoryWorld]:
        yield self
        await self.stop_reconciler()
