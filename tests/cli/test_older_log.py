"""This release on the data of format 0, whose streams have other names: one line, no write."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from infra.bus.streams import LOG_FORMAT
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request, close, connect
from infra.jetstream.publish import publish
from tests.cli.runner import Inside, empty_bus, shape
from tests.cli.test_newer_log import WRITING

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


async def streams_of(url: str) -> dict[str, tuple[int, int]]:
    nc = await connect(url, name="test")
    streams = (await api_request(nc, "STREAM.LIST", None))["streams"]
    await close(nc)
    return {
        each["config"]["name"]: (each["state"]["messages"], each["state"]["last_seq"])
        for each in streams
    }


@pytest.mark.timeout(300)  # as many commands, one after the other
def test_every_command_says_which_revisions_open_the_data(tmp_path: Path) -> None:
    with empty_bus(tmp_path / "bus") as url:
        asyncio.run(write_old_streams(url))
        streams_before = asyncio.run(streams_of(url))
        assert set(streams_before) == set(OLD_STREAMS)
        cli = Inside(tmp_path, url)
        cli.write("foo.yaml", shape("foo"))
        reading = ("get", "history foo", "doctor", "replay", "init", "run decider")
        for command in (*reading, *WRITING):
            ran = cli.run(*command.split())
            assert (ran.status, ran.out) == (1, ""), command
            named = f"bus: {url} (environment RECONCILER_NATS_URL)\n"
            assert ran.err.removeprefix(named) == MESSAGE, command
        assert asyncio.run(streams_of(url)) == streams_before


def test_up_leaves_an_old_data_directory_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "reconciler-data"
    server = EmbeddedServer()

    async def prepare() -> dict[str, tuple[int, int]]:
        await server.start(data / "nats")
        await write_old_streams(server.url)
        before = await streams_of(server.url)
        await server.stop()
        return before

    async def read_again() -> dict[str, tuple[int, int]]:
        again = EmbeddedServer()
        await again.start(data / "nats")
        after = await streams_of(again.url)
        await again.stop()
        return after

    before = asyncio.run(prepare())
    ran = Inside(tmp_path).run("up", "--port", "0", "--no-api", "--data", str(data))
    assert (ran.status, ran.err.splitlines()[-1] + "\n") == (1, MESSAGE)
    assert asyncio.run(read_again()) == before
