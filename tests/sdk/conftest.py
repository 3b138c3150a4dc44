"""The whole stack for the tests of a module: the bus, the shapes API, and all roles."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import pytest

from events.manifest import Manifest, Metadata
from reconciler.sdk import Client, connect
from reconciler.wiring import ROLES, initialize, open_connection, run_roles
from tests.faulty_api import FaultyApi

NewManifest = Callable[..., Manifest]


@dataclass(frozen=True)
class Stack:
    """The URL of the running stack's bus, and its API."""

    bus_url: str
    api: FaultyApi


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, module_bus_url: str) -> Iterator[Stack]:
    """Run all parts, with the roles on their own event loop."""
    folder = tmp_path_factory.mktemp("stack")
    api = FaultyApi()
    asyncio.run(api.start(folder / "api"))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="stack")
    thread.start()
    stop = asyncio.Event()
    ready = threading.Event()
    roles = asyncio.run_coroutine_threadsafe(_run_roles(module_bus_url, api.url, ready, stop), loop)
    roles.add_done_callback(lambda _: ready.set())
    assert ready.wait(30)
    if roles.done():
        roles.result()
    yield Stack(module_bus_url, api)
    loop.call_soon_threadsafe(stop.set)
    roles.result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    asyncio.run(api.stop())


async def _run_roles(url: str, api_url: str, ready: threading.Event, stop: asyncio.Event) -> None:
    async with open_connection(url) as nc:
        await initialize(nc)
        async with run_roles(nc, ROLES), connect(url, source="setup") as client:
            await client.declare(provider_config(api_url))
            ready.set()
            await stop.wait()


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[Client]:
    async with connect(stack.bus_url, source="test") as client:
        yield client


def provider_config(endpoint: str, name: str = "default") -> Manifest:
    spec = {"provider": "shapes", "endpoint": endpoint}
    return Manifest("reconciler/v1", "ProviderConfig", Metadata(name, "system"), spec)


def shape(name: str, color: str = "Red", **spec: object) -> Manifest:
    return Manifest(
        "shapes/v1", "Shape", Metadata(name), {"type": "Square", "color": color, **spec}
    )


@pytest.fixture
def name(unique: str) -> str:
    """A resource name that no other test uses."""
    return unique.lower()
