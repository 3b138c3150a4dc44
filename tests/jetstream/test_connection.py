import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client, ServerVersion
from nats.aio.msg import Msg

from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request, connect, require_jetstream
from infra.jetstream.errors import (
    BusAccessError,
    BusUnavailableError,
    IncompatibleServerError,
    NotFoundOnBusError,
)
from infra.jetstream.publish import publish
from infra.jetstream.topology import ensure_stream
from infra.jetstream.wire import request, subscribe
from tests.jetstream.conftest import Connect
from tests.jetstream.helpers import until


async def test_nobody_there() -> None:
    with pytest.raises(BusUnavailableError, match=r"cannot reach nats://127.0.0.1:1: .*running"):
        await connect("nats://127.0.0.1:1", name="test", patience_seconds=0.3)


async def test_the_first_connection_waits_for_the_server(tmp_path: Path) -> None:
    server = EmbeddedServer()
    await server.start(tmp_path)
    await server.stop()
    await server.start(tmp_path, port=server.port)
    nc = await connect(server.url, name="test")
    await nc.close()
    await server.stop()


async def test_wrong_credentials_fail_at_once(tmp_path: Path) -> None:
    server = EmbeddedServer()
    await server.start(tmp_path, extra_config="authorization { user: u, password: p }")
    try:
        with pytest.raises(BusAccessError, match="Authorization"):
            await connect(server.url, name="test", patience_seconds=20)
        nc = await connect(server.url.replace("//", "//u:p@"), name="test")
        await nc.close()
    finally:
        await server.stop()


async def test_a_new_enough_server(nc: Client) -> None:
    version = await require_jetstream(nc)
    assert (version.major, version.minor) >= (2, 12)


async def test_an_old_server(nc: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    old = property(lambda _: ServerVersion("2.11.4"))  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(Client, "connected_server_version", old)
    with pytest.raises(IncompatibleServerError, match=r"2\.11\.4.*2\.12"):
        await require_jetstream(nc)


@pytest.fixture
async def without_jetstream(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer()
    await server.start(tmp_path / "off", extra_config="jetstream: false")
    yield server
    await server.stop()


async def test_a_server_without_jetstream(
    without_jetstream: EmbeddedServer, connected: Connect
) -> None:
    with pytest.raises(IncompatibleServerError, match="-js"):
        await require_jetstream(await connected(without_jetstream))


async def test_errors_of_the_api(nc: Client, unique: str) -> None:
    with pytest.raises(NotFoundOnBusError, match="stream not found"):
        await api_request(nc, f"STREAM.INFO.{unique}", None)


async def test_a_connection_outlives_its_server(
    own_server: EmbeddedServer, connected: Connect
) -> None:
    nc = await connected(own_server)
    await ensure_stream(nc, {"name": "S", "subjects": ["s.>"]})
    await own_server.kill()

    async def fails() -> bool:
        try:
            await publish(nc, "s.a", b"", timeout=0.2)
        except BusUnavailableError:
            return True
        return False

    await until(fails)
    await own_server.start(own_server.data_dir, port=own_server.port)

    async def works() -> bool:
        return not await fails()

    await until(works)


async def _never_answer(message: Msg) -> None:
    """Listen, so that the request is not refused for want of anybody."""


async def test_a_lost_connection_ends_what_waits_for_an_answer(tmp_path: Path) -> None:
    server = EmbeddedServer()
    url = await server.start(tmp_path)
    client = await connect(url, name="waiting")
    await subscribe(client, "silent", _never_answer)
    waiting = asyncio.ensure_future(request(client, "silent", b"", timeout=60))
    await client.flush()
    await server.kill()
    with pytest.raises(BusUnavailableError, match="reconnecting"):
        await asyncio.wait_for(waiting, 10)
    await client.close()
