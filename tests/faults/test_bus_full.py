"""Fault 14: a stream is full.

Publishers get an error, no acknowledged message is lost, and work continues once there is space.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.names import ResourceKey
from events.subjects import intake
from infra.bus.streams import DEADLETTERS, INTAKE, LOG
from infra.jetstream.connection import api_request
from infra.jetstream.errors import StreamFullError
from infra.jetstream.publish import publish
from infra.jetstream.reads import stream_state
from reconciler.cli.doctor import run_checks
from tests.faulty_api import FaultyApi
from tests.judge.from_bus import check
from tests.scenarios.harness import Human, World, api_config, manifest

TIMEOUT_SECONDS = 60.0
COUNT = 50


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    process = FaultyApi()
    human = Human(await process.start(tmp_path / "api"))
    async with World(tmp_path / "nats", human).open() as world:
        await world.start_reconciler()
        await world.configure(api_config(human.url))
        await world.declare("first")
        await world.until_outcome("first", "Converged")
        await world.until_settled()
        yield world
    await human.close()
    await process.stop()


async def leave_room(world: World, stream: str, room_bytes: int) -> None:
    """Limit a stream to ``room_bytes`` more bytes; a negative number removes the limit."""
    state = await stream_state(world.nc, stream)
    max_bytes = state.bytes + room_bytes if room_bytes >= 0 else -1
    await api_request(world.nc, f"STREAM.UPDATE.{stream}", {**state.config, "max_bytes": max_bytes})


async def read_stream_limits(world: World) -> str:
    findings = await run_checks(world.nc, full=False)
    return " | ".join(
        f"{finding.verdict}: {finding.details}"
        for finding in findings
        if finding.check == "stream limits"
    )


async def declare_one_by_one(world: World) -> None:
    for number in range(COUNT):
        await world.declare_all([manifest(f"s{number}")])


async def test_fault_14_a_full_intake_refuses_messages_and_loses_no_acknowledged_one(
    world: World,
) -> None:
    await leave_room(world, INTAKE, 6_000)
    with pytest.raises(StreamFullError, match=r"stream INTAKE is full: .*max_bytes"):
        await declare_one_by_one(world)
    assert "fail: full or nearly full: INTAKE" in await read_stream_limits(world)
    await leave_room(world, INTAKE, -1)
    await world.declare_all([manifest(f"s{number}") for number in range(COUNT)])
    for number in range(COUNT):
        await world.client.wait_for(f"default/Shape/s{number}", generation=1)
    await world.until_settled()
    assert await check(world.nc, world.human.url) == []


async def test_fault_14_a_full_log_delays_all_work_until_there_is_space(world: World) -> None:
    await leave_room(world, LOG, 4_000)
    await world.declare_all([manifest(f"s{number}") for number in range(COUNT)])  # some 70 kB

    async def is_full() -> bool:
        return "fail: full or nearly full: LOG_1" in await read_stream_limits(world)

    await world.until(is_full, "doctor reports it")
    assert await world.history(f"s{COUNT - 1}") == [], "it waits in the intake"
    await leave_room(world, LOG, -1)
    for number in range(COUNT):
        await world.client.wait_for(f"default/Shape/s{number}", generation=1)
    await world.until_settled()
    assert await check(world.nc, world.human.url) == []


async def test_fault_14_a_full_dead_letter_stream_delays_only_unusable_messages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.roles.decider.decider._FIRST_DELAY_SECONDS", 0.5)
    await leave_room(world, DEADLETTERS, 1)
    await publish(world.nc, intake("desired", ResourceKey("default", "Shape", "bad")), b"not JSON")
    await world.declare("good")
    await world.until_outcome("good", "Converged")
    assert "fail: full or nearly full: DEADLETTERS" in await read_stream_limits(world)
    assert await world.dead_letters() == []
    await leave_room(world, DEADLETTERS, -1)

    async def is_stored() -> bool:
        return bool(await world.dead_letters())

    await world.until(is_stored, "the dead letter is stored")
    await world.until_settled()
    assert [letter.stage for letter in await world.dead_letters()] == ["intake"]
