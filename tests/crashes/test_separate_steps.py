"""Kills at the steps that belong to no operation, and errors instead of kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.subjects import intake
from infra.bus.streams import DEADLETTERS, find_log_id, topology_differences
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import close, connect
from infra.jetstream.outgoing import MESSAGE_ID
from infra.jetstream.publish import publish
from infra.jetstream.reads import read_subject
from reconciler.failpoints import Failpoint
from tests.crashes.lane import Lane, key
from tests.crashes.role_process import RoleProcess
from tests.crashes.roles import INIT

STREAMS_AND_CONSUMERS = 18

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_next_init_completes_one_that_was_killed_at_any_step(tmp_path: Path) -> None:
    """Each run completes one more step than the previous one, until no step is left."""
    server = EmbeddedServer()
    url = await server.start(tmp_path / "nats")
    nc = await connect(url, name="test")
    log_ids: set[str] = set()
    for step in range(1, STREAMS_AND_CONSUMERS + 1):
        log = tmp_path / f"{step}.log"
        dying = RoleProcess.fork(url, log, roles=INIT, failpoint=f"{Failpoint.INIT_STEP}:{step}")
        await dying.wait_until_killed_at(Failpoint.INIT_STEP)
        if step > 1:  # the first step creates what the log's format requires
            log_ids.add(await find_log_id(nc))
    last = RoleProcess.fork(url, tmp_path / "last.log", roles=INIT)
    assert await last.wait_for_exit() == 0
    assert {
        name for name, differences in (await topology_differences(nc)).items() if differences
    } == set()
    assert log_ids == {await find_log_id(nc)}, (
        "the log's ID must not change: keys are derived from it"
    )
    await close(nc)
    await server.kill()


async def test_a_dead_letter_is_stored_once_if_the_decider_dies_before_the_ack(
    lane: Lane, name: str
) -> None:
    header = {MESSAGE_ID: name}
    await publish(lane.nc, intake("desired", key(name)), b"not a declaration", headers=header)
    dying = lane.fork(Failpoint.DECIDER_DEAD_LETTERED)
    await dying.wait_until_killed_at(Failpoint.DECIDER_DEAD_LETTERED)
    next_process = lane.fork()
    await next_process.wait_until_ready()
    await lane.wait_until_idle()
    messages = await read_subject(lane.nc, DEADLETTERS, "deadletter.>")
    assert [letter.subject.split(".")[1] for letter in messages] == ["intake"]
    await lane.assert_sound()
    await next_process.stop()


@pytest.mark.tier("ci")
@pytest.mark.parametrize(
    "point",
    [
        Failpoint.DECIDER_TOOK,
        Failpoint.DECIDER_DECIDED,
        Failpoint.DECIDER_BETWEEN_EVENTS,
        Failpoint.DECIDER_APPENDED,
        Failpoint.DECIDER_TOLD,
        Failpoint.WORKER_REPORTED,
        Failpoint.OBSERVER_LISTED,
        Failpoint.PROJECTOR_FOLDED,
    ],
)
async def test_the_same_process_retries_after_an_error_at_a_step(
    lane: Lane, name: str, point: Failpoint
) -> None:
    process = lane.fork(f"{point}=error")
    await lane.declare(name)
    await process.wait_until_reached(point)
    await lane.wait_for_outcome(name, "Converged")
    await lane.wait_until_idle()
    assert await lane.effects(name) == ["POST"]
    await lane.assert_sound()
    await process.stop()


@pytest.mark.tier("ci")
async def test_a_worker_bug_ends_the_process_with_one_line_and_the_next_process_continues(
    lane: Lane, name: str
) -> None:
    await lane.declare(name)
    failing = lane.fork(f"{Failpoint.WORKER_CALLED}=error")
    assert await failing.wait_for_exit() == 1
    assert failing.error_output.splitlines()[-1] == "error: failpoint worker.called"
    next_process = lane.fork()
    await lane.wait_for_outcome(name, "Converged")
    await lane.wait_until_idle()
    assert await lane.effects(name) == ["POST"]
    await lane.assert_sound()
    await next_process.stop()
