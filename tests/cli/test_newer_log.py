"""Every command refuses data from a newer release with a one-line error."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from infra.bus.streams import FORMAT_METADATA, LOG, LOG_FORMAT
from infra.jetstream.connection import api_request, close, connect
from tests.cli.runner import InProcessCli, idle_bus, shape

NEWER_FORMAT = str(LOG_FORMAT + 1)

WRITE_COMMANDS = (
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


async def set_newer_format(url: str) -> None:
    nc = await connect(url, name="newer")
    config = (await api_request(nc, f"STREAM.INFO.{LOG}", None))["config"]
    config["metadata"][FORMAT_METADATA] = NEWER_FORMAT
    await api_request(nc, f"STREAM.UPDATE.{LOG}", config)
    await close(nc)


@pytest.mark.timeout(300)  # runs many commands in sequence
def test_every_command_reports_a_newer_log(tmp_path: Path) -> None:
    with idle_bus(tmp_path / "bus") as url:
        asyncio.run(set_newer_format(url))
        cli = InProcessCli(tmp_path, url)
        cli.write("foo.yaml", shape("foo"))
        for command in (
            "get",
            "history foo",
            "describe foo",
            "watch",
            "init",
            "run decider",
            *WRITE_COMMANDS,
        ):
            result = cli.run(*command.split())
            assert (result.status, result.out) == (1, ""), command
            assert result.err.removeprefix(f"bus: {url} (environment RECONCILER_NATS_URL)\n") == (
                f"error: stream LOG_1 was written by a newer release (format {NEWER_FORMAT}, "
                f"this release reads {LOG_FORMAT}); upgrade\n"
            ), command
