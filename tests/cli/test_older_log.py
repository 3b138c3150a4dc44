"""Every command refuses data in format 0 with a one-line error, and writes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from infra.bus.streams import LOG_FORMAT
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request, close, connect
from infra.jetstream.publish import publish
from tests.cli.runner import InProcessCli, empty_bus, shape
from tests.cli.test_newer_log import WRITE_COMMANDS

OLD_STREAMS = {
    "SHAPES": ["log.>"],
    "INTAKE": ["rec.>"],
    "TIMERS": ["sched.>", "fired.>"],
    "SNAPSHOTS": ["snap.>"],
    "OBSERVATIONS": ["observation.>"],
    "DEADLETTERS": ["deadletter.>"],
    "RATES": ["rate.>"],
    "KV_reconciler": ["$KV.reconciler.>"],
}
MESSAGE = (
    f"error: stream SHAPES has the older format 0, and this release reads format {LOG_FORMAT}; use "
    "the revision that wrote it, which is in the range 16875afe to 05ae88b7\n"
)


async def write_old_streams(url: str) -> None:
    nc = await connect(url, name="older")
    for name, subjects in OLD_STREAMS.items():
        await api_request(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects})
    await publish(nc, "log.default.Shape.foo.fact", b"{}")
    await publish(nc, "rec.desired.default.Shape.foo", b"{}")
    await close(nc)


async def read_streams(url: str) -> dict[str, tuple[int, int]]:
    nc = await connect(url, name="test")
    streams = (await api_request(nc, "STREAM.LIST", None))["streams"]
    await close(nc)
    return {
        stream["config"]["name"]: (stream["state"]["messages"], stream["state"]["last_seq"])
        for stream in streams
    }


@pytest.mark.timeout(300)  # runs many commands in sequence
def test_every_command_names_the_revisions_that_can_open_the_data(tmp_path: Path) -> None:
    with empty_bus(tmp_path / "bus") as url:
        asyncio.run(write_old_streams(url))
        streams_before = asyncio.run(read_streams(url))
        assert set(streams_before) == set(OLD_STREAMS)
        cli = InProcessCli(tmp_path, url)
        cli.write("foo.yaml", shape("foo"))
        read_commands = ("get", "history foo", "doctor", "replay", "init", "run decider")
        for command in (*read_commands, *WRITE_COMMANDS):
            result = cli.run(*command.split())
            assert (result.status, result.out) == (1, ""), command
            bus_line = f"bus: {url} (environment RECONCILER_NATS_URL)\n"
            assert result.err.removeprefix(bus_line) == MESSAGE, command
        assert asyncio.run(read_streams(url)) == streams_before


def test_up_does_not_change_an_old_data_directory(tmp_path: Path) -> None:
    data = tmp_path / "reconciler-data"
    server = EmbeddedServer()

    async def prepare() -> dict[str, tuple[int, int]]:
        await server.start(data / "nats")
        await write_old_streams(server.url)
        streams = await read_streams(server.url)
        await server.stop()
        return streams

    async def read_again() -> dict[str, tuple[int, int]]:
        second_server = EmbeddedServer()
        await second_server.start(data / "nats")
        streams = await read_streams(second_server.url)
        await second_server.stop()
        return streams

    streams_before = asyncio.run(prepare())
    result = InProcessCli(tmp_path).run("up", "--port", "0", "--no-api", "--data", str(data))
    assert (result.status, result.err.splitlines()[-1] + "\n") == (1, MESSAGE)
    assert asyncio.run(read_again()) == streams_before
