"""An older release on the data of a newer one: one line, whatever it was asked to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from infra.bus.streams import FORMAT_METADATA, LOG, LOG_FORMAT
from infra.jetstream.connection import api_request, close, connect
from tests.cli.runner import Inside, idle_bus, shape

NEWER = str(LOG_FORMAT + 1)

WRITING = (
    "apply -f foo.yaml",
    "apply -f foo.yaml --set foo",
    "delete Shape foo",
    "approve Shape/foo --hold Twin",
    "reconcile Shape/foo",
    "pause Shape/foo",
    "rollback Shape/foo --to 1",
    "release Shape foo --reason test",
    "reject Shape/foo --reason test",
    "finalizer remove Shape foo billing",
    "deadletters retry 1",
)


async def write_as_a_newer_release(url: str) -> None:
    nc = await connect(url, name="newer")
    config = (await api_request(nc, f"STREAM.INFO.{LOG}", None))["config"]
    config["metadata"][FORMAT_METADATA] = NEWER
    await api_request(nc, f"STREAM.UPDATE.{LOG}", config)
    await close(nc)


@pytest.mark.timeout(300)  # as many commands, one after the other
def test_every_command_says_that_the_log_is_newer(tmp_path: Path) -> None:
    with idle_bus(tmp_path / "bus") as url:
        asyncio.run(write_as_a_newer_release(url))
        cli = Inside(tmp_path, url)
        cli.write("foo.yaml", shape("foo"))
        for command in (
            "get",
            "history foo",
            "describe foo",
            "watch",
            "init",
            "run decider",
            *WRITING,
        ):
            ran = cli.run(*command.split())
            assert (ran.status, ran.out) == (1, ""), command
            assert ran.err.removeprefix(f"bus: {url} (environment RECONCILER_NATS_URL)\n") == (
                f"error: stream LOG_1 was written by a newer release (format {NEWER}, this release "
                f"reads {LOG_FORMAT}); upgrade\n"
            ), command
