"""Fault 18: an administrator deletes or recreates a consumer or a stream."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from infra.bus.streams import INTAKE, LOG, REJECTIONS, worker_consumer
from infra.jetstream.connection import api_request
from infra.jetstream.topology import delete_consumer, delete_stream
from reconciler.cli.checks.bus import check_streams
from reconciler.cli.errors import report
from reconciler.wiring import ROLES, initialize
from tests.faulty_api import FaultyApi
from tests.scenarios.harness import Human, World, api_config, manifest


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    process = FaultyApi()
    human = Human(await process.start(tmp_path / "api"))
    async with World(tmp_path / "nats", human).open() as world:
        await world.start_reconciler()
        await world.configure(api_config(human.url))
        await world.declare("foo")
        await world.until_outcome("foo", "Converged")
        yield world
    await human.close()
    await process.stop()


async def wait_for_error(world: World) -> str:
    """Wait until the reconciler exits on its own; return the error that its process would print."""
    error = await world.until_reconciler_ends()
    assert error is not None
    buffer = io.StringIO()
    with redirect_stderr(buffer):
        report(error)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("stream", "consumer"),
    [(INTAKE, "decider-3"), (LOG, worker_consumer("default"))],
)
async def test_fault_18_a_role_whose_consumer_was_deleted_reports_it_and_exits(
    world: World, stream: str, consumer: str
) -> None:
    await delete_consumer(world.nc, stream, consumer)
    error_text = await wait_for_error(world)
    expected = rf"error: consumer {consumer} of stream {stream} was deleted; .*init.*\n"
    assert re.fullmatch(expected, error_text), "expected one line with the problem and the remedy"
    await initialize(world.nc)
    await world.start_reconciler()
    await world.declare("foo", color="Blue")
    await world.until_outcome("foo", "Converged", generation=2)
    assert await world.human.effects("foo") == ["POST", "PUT"]


@pytest.mark.parametrize("is_recreated", [True, False], ids=["recreated", "deleted"])
async def test_fault_18_every_role_exits_when_its_log_was_replaced(
    world: World, *, is_recreated: bool
) -> None:
    await world.stop_reconciler()
    await world.start_reconciler(("decider", "observer", "projector"))
    config = (await api_request(world.nc, f"STREAM.INFO.{LOG}", None))["config"]
    await delete_stream(world.nc, LOG)
    if is_recreated:
        await api_request(world.nc, f"STREAM.CREATE.{LOG}", config)
    error_text = await wait_for_error(world)
    assert f"stream {LOG} was deleted" in error_text
    assert "restore the log from a backup" in error_text
    assert await world.human.effects("foo") == ["POST"]


async def test_fault_18_an_intake_whose_positions_start_over_is_refused(world: World) -> None:
    await world.stop_reconciler()
    config = (await api_request(world.nc, f"STREAM.INFO.{INTAKE}", None))["config"]
    await delete_stream(world.nc, INTAKE)
    await api_request(world.nc, f"STREAM.CREATE.{INTAKE}", config)
    with pytest.raises(
        Exception, match=r"INTAKE is at position 0, but the log refers to its position \d+"
    ):
        await world.start_reconciler(ROLES)
    await world.until_reconciler_ends()


@pytest.mark.parametrize("refused", [1, 5, 20], ids="{} refused".format)
async def test_fault_18_all_other_work_continues_without_the_rejections_stream(
    world: World, refused: int
) -> None:
    """A refused message waits, but acceptable messages in the same batch do not."""
    await delete_stream(world.nc, REJECTIONS)
    names = [f"pink-{number}" for number in range(refused)]
    await world.declare_all([manifest(name, color="Pink") for name in names] + [manifest("bar")])
    await world.until(lambda: world.human.find("bar"), "bar is created")
    [finding] = [each for each in await check_streams(world.nc) if each.verdict == "fail"]
    assert REJECTIONS in finding.details
    assert "reconciler init" in finding.remedy

    await initialize(world.nc)
    for name in names:
        await world.until_outcome(name, "Rejected")
    await world.until_settled()
    assert len(await world.dead_letters()) == refused
