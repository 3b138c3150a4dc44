"""Fault 18: the server comes back with older data while roles run, and each role detects it."""

from __future__ import annotations

import asyncio
import io
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from events.names import ResourceKey
from events.subjects import log
from infra.bus import log_watch
from infra.bus.event_log import open_log
from infra.bus.log_watch import JetStreamLogWatch, watch_log
from infra.embedded import EmbeddedServer
from infra.jetstream.errors import StreamReplacedError
from infra.jetstream.publish import publish
from infra.jetstream.reads import StreamState, stream_state
from reconciler.cli.errors import report
from reconciler.ports import LogCertainty, ResourceAppend
from reconciler.wiring import ROLES, Role, initialize, open_connection
from tests.bus.histories import event
from tests.faulty_api import FaultyApi
from tests.scenarios.harness import Human, World, api_config

ALL_BUT_WORKER: tuple[Role, ...] = ("decider", "observer", "projector")
KEY = ResourceKey("default", "Shape", "foo")
PATIENCE_SECONDS = 90.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A world whose log contains an action that no worker has executed yet."""
    process = FaultyApi()
    human = Human(await process.start(tmp_path / "api"))
    async with World(tmp_path / "nats", human).open() as world:
        await world.start_reconciler()
        await world.configure(api_config(human.url))
        await world.declare("foo")
        await world.until_outcome("foo", "Converged")
        await world.stop_reconciler()
        await world.start_reconciler(ALL_BUT_WORKER)
        await world.declare("bar")

        async def is_decided() -> bool:
            return bool(await world.history("bar"))

        await world.until(is_decided, "bar has been decided")
        yield world
    await human.close()
    await process.stop()


async def count_calls(world: World) -> int:
    """Return the number of requests to the API, once it no longer grows."""
    before, now = -1, 0
    while now != before:
        await asyncio.sleep(0.1)
        requests = await world.human.requests()
        before, now = now, sum(sum(each.values()) for each in requests.values())
    return now


async def wait_until_lost(watch: LogCertainty) -> None:
    """Wait until a connection whose server is dead is known to be lost."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while watch.is_certain:  # noqa: ASYNC110 - nothing reports the end
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("role", ROLES)
async def test_fault_18_a_role_exits_before_its_first_call_when_its_log_is_shorter(
    world: World, tmp_path: Path, role: Role
) -> None:
    data, older = world.server.data_dir, tmp_path / "older"
    await world.kill_nats()
    shutil.copytree(data, older)
    await world.start_nats()
    await world.stop_reconciler()
    await world.start_reconciler()
    await world.until_outcome("bar", "Converged")
    await world.restart_reconciler()
    await world.stop_reconciler()
    parts = await world.start_reconciler((role,))

    await world.kill_nats()
    assert parts.ports.watch is not None
    await wait_until_lost(parts.ports.watch)
    await count_calls(world)  # the calls in progress have ended
    await world.human.reset_counts()
    shutil.rmtree(data)
    older.rename(data)
    await world.start_nats()

    error = await world.until_reconciler_ends(PATIENCE_SECONDS)
    assert error is not None
    buffer = io.StringIO()
    with redirect_stderr(buffer):
        assert report(error) == 1
    expected = (
        r"error: stream LOG_1 ends at \d+, but this process has read it up to \d+; the server "
        r"came back with older data\. .* then start the process again\n"
    )
    assert re.fullmatch(expected, buffer.getvalue()), buffer.getvalue()
    assert await count_calls(world) == 0, "a role called the API for an action of the older log"


# --- the watch alone


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer()
    async with open_connection(await server.start(tmp_path / "nats")) as nc:
        await initialize(nc)
    yield server
    await server.kill()


async def write(server: EmbeddedServer, count: int, *, after: int = 0, kind: str = "a") -> None:
    """Append one event for each of ``count`` resources."""
    async with open_connection(server.url) as nc:
        event_log = await open_log(nc)
        for number in range(after, after + count):
            key = ResourceKey("default", "Shape", f"{kind}{number}")
            await event_log.append([ResourceAppend(key, [event(key, 1)], 0)])


async def read_failure(watch: JetStreamLogWatch) -> str:
    with pytest.raises(StreamReplacedError) as caught:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await watch.run()
    return str(caught.value)


async def test_fault_18_older_data_with_later_writes_is_detected_by_the_newest_event(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    await write(server, 3)
    await server.kill()
    older = tmp_path / "older"
    shutil.copytree(server.data_dir, older)
    await server.start(server.data_dir, port=server.port)
    await write(server, 2, after=3)
    async with open_connection(server.url) as nc:
        watch = await watch_log(nc)
        watching = asyncio.create_task(read_failure(watch))
        await asyncio.sleep(0)
        await server.kill()
        other_server = EmbeddedServer()
        await other_server.start(older)
        await write(other_server, 9, kind="other")
        await other_server.kill()
        await server.start(older, port=server.port)
        assert (
            "has a different event at position 5 than when this process read it" in await watching
        )


async def test_fault_18_the_same_log_is_recognized_despite_an_unreadable_event(
    server: EmbeddedServer,
) -> None:
    await write(server, 3)
    async with open_connection(server.url) as nc:
        await publish(nc, log(KEY, "fact"), b"no event at all")
        watch = await watch_log(nc)
        watching = asyncio.create_task(watch.run())
        for _ in range(2):
            await server.kill()
            await wait_until_lost(watch)
            await server.start(server.data_dir, port=server.port)
            assert await watch.wait_until_certain(PATIENCE_SECONDS)
        assert not watching.done()
        watching.cancel()


async def test_fault_18_a_cluster_must_keep_repeating_its_response_before_it_is_trusted(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was cut off still responds for a while, with an outdated state."""
    await write(server, 3)
    wrong_responses = 5

    async def read_outdated_state(nc: object, stream: str) -> StreamState:
        nonlocal wrong_responses
        wrong_responses -= 1
        state = await stream_state(connection, stream)
        if wrong_responses < 0:
            return state
        return StreamState(1, 1, 1, state.bytes, state.config, state.created)

    async with open_connection(server.url) as connection:
        watch = await watch_log(connection)
        monkeypatch.setattr(log_watch, "is_clustered", bool)
        monkeypatch.setattr(log_watch, "stream_state", read_outdated_state)
        watching = asyncio.create_task(watch.run())
        await server.kill()
        await wait_until_lost(watch)
        await server.start(server.data_dir, port=server.port)
        assert await watch.wait_until_certain(PATIENCE_SECONDS)
        assert not watching.done()
        watching.cancel()

        wrong_responses = 10**6
        monkeypatch.setattr(log_watch, "PERSISTENCE_SECONDS", 0.5)
        watching = asyncio.create_task(read_failure(watch))
        await server.kill()
        await server.start(server.data_dir, port=server.port)
        assert "ends at 1, but this process has read it up to 3" in await watching
