import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from infra.jetstream.connection import connect
from tests.cli.runner import Cli
from tests.security.guarded import PATIENCE_SECONDS, Guarded


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Run one instance for all tests, roles on their own event loop; tests use unique names."""
    guarded = Guarded(tmp_path_factory.mktemp("guarded"))
    loop = asyncio.new_event_loop()
    asyncio.run(guarded.start())
    thread = threading.Thread(target=loop.run_forever, name="guarded")
    thread.start()
    ready, stop = threading.Event(), asyncio.Event()
    roles = asyncio.run_coroutine_threadsafe(guarded.run(ready, stop), loop)
    roles.add_done_callback(lambda _: ready.set())
    assert ready.wait(PATIENCE_SECONDS)
    if roles.done():
        roles.result()
    yield guarded
    loop.call_soon_threadsafe(stop.set)
    roles.result(PATIENCE_SECONDS)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    asyncio.run(guarded.stop())


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands as processes, in an empty folder."""
    return Cli(tmp_path)


@pytest.fixture
async def admin(guarded: Guarded) -> AsyncIterator[Client]:
    """Connect as an unrestricted user, who inspects the results."""
    nc = await connect(guarded.admin_url, name="admin")
    yield nc
    await nc.close()


@pytest.fixture
def name(unique: str) -> str:
    """A resource's name that no other test uses."""
    return unique.lower()
