import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from infra.embedded import EmbeddedServer, EmbeddedServerError
from infra.embedded.server import MAX_BUFFERED_MESSAGES, memory_limit
from infra.jetstream.append import append
from infra.jetstream.connection import connect
from infra.jetstream.errors import BusUnavailableError
from infra.jetstream.publish import publish
from infra.jetstream.reads import read_subject, stream_state
from infra.jetstream.topology import ensure_stream
from infra.jetstream.wire import encode, write
from tests.jetstream.conftest import Connect
from tests.jetstream.helpers import message, until


async def test_acknowledged_messages_survive_a_kill(
    own_server: EmbeddedServer, connect_client: Connect
) -> None:
    nc = await connect_client(own_server)
    await ensure_stream(
        nc, {"name": "S", "subjects": ["s.>"], "allow_atomic": True, "allow_direct": True}
    )
    await append(nc, [message("s.a", b"%d" % i) for i in range(100)])
    folder = own_server.data_dir
    await own_server.kill()
    assert not own_server.is_running
    other_server = EmbeddedServer()
    await other_server.start(folder)
    nc = await connect_client(other_server)
    assert [message.payload for message in await read_subject(nc, "S", "s.a")] == [
        b"%d" % i for i in range(100)
    ]
    await other_server.stop()


async def test_a_flood_without_acknowledgments_hardly_delays_other_clients(
    own_server: EmbeddedServer, connect_client: Connect
) -> None:
    flooding_client, other_client = (
        await connect_client(own_server),
        await connect_client(own_server),
    )
    await ensure_stream(other_client, {"name": "S", "subjects": ["s.>"], "discard": "new"})
    count = 40 * MAX_BUFFERED_MESSAGES
    flood = [encode(flooding_client, "s.flood", b"x", {}) for _ in range(count)]
    await write(flooding_client, flood, "flood")
    await flooding_client.flush(60)

    async def is_stored() -> bool:
        try:
            await publish(other_client, "s.other", b"y")
        except BusUnavailableError:  # too many messages are waiting
            return False
        return True

    await until(is_stored)
    assert (await stream_state(other_client, "S")).messages < count // 2


async def test_a_second_server_on_a_folder_is_refused(own_server: EmbeddedServer) -> None:
    port = own_server.port
    with pytest.raises(EmbeddedServerError, match="in use by another server"):
        await EmbeddedServer().start(own_server.data_dir)
    with pytest.raises(EmbeddedServerError, match="already running"):
        await own_server.start(own_server.data_dir)
    nc = await connect(own_server.url, name="test")  # the first server is unaffected
    await nc.close()
    assert own_server.port == port


async def test_a_second_server_on_a_port_is_refused(
    own_server: EmbeddedServer, tmp_path: Path
) -> None:
    second = EmbeddedServer()
    with pytest.raises(EmbeddedServerError, match="another process is using the port"):
        await second.start(tmp_path / "second", port=own_server.port)
    assert not second.is_running


async def test_a_configuration_error_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="no_such_setting") as caught:
        await EmbeddedServer().start(tmp_path, extra_config="no_such_setting: 1")
    assert "\n" not in str(caught.value)


async def test_the_server_runs_with_the_given_options(tmp_path: Path) -> None:
    server = EmbeddedServer()
    with pytest.raises(EmbeddedServerError, match="start"):
        _ = server.pid
    free = EmbeddedServer()
    await free.start(tmp_path / "free")
    port = free.port
    await free.stop()
    await server.start(tmp_path / "own", http_port=port, max_payload=100_000)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/varz") as response:  # noqa: ASYNC210
        variables = json.load(response)
    assert variables["max_payload"] == 100_000
    assert variables["jetstream"]["config"]["sync_always"] is True
    await server.stop()
    await server.stop()
    assert not server.is_running


_START_AND_HANG = """
import asyncio, pathlib, sys
from infra.embedded import EmbeddedServer
async def main():
    server = EmbeddedServer()
    await server.start(pathlib.Path(sys.argv[1]))
    print(server.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="relies on Linux to stop the server")
async def test_the_server_exits_with_the_process_that_started_it(tmp_path: Path) -> None:
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", _START_AND_HANG, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    server_pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()

    async def has_exited() -> bool:
        try:
            os.kill(server_pid, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{server_pid}/stat").read_text().split(")")[1].split()[0]  # noqa: ASYNC240
        # Exited. In a container without init, no process reaps it. Its other threads keep its files
        # open.
        threads = os.listdir(f"/proc/{server_pid}/task")  # noqa: PTH208
        return status == "Z" and len(threads) == 1

    await until(has_exited)
    server = EmbeddedServer()
    await server.start(tmp_path)
    await server.stop()


@pytest.mark.parametrize(("total_mib", "limit"), [(24_576, 6_144), (1_536, 512), (512, 256)])
def test_the_soft_memory_limit_leaves_free_memory(total_mib: int, limit: int) -> None:
    assert memory_limit(total_mib * 1024 * 1024) == limit * 1024 * 1024
