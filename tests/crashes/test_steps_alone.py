"""The steps that belong to no operation, and an error where others die."""

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


async def test_an_init_killed_at_any_step_is_completed_by_the_next(tmp_path: Path) -> None:
    """Each run has one step more behind it than the one before, until one has no step left."""
    server = EmbeddedServer()
    url = await server.start(tmp_path / "nats")
    nc = await connect(url, name="test")
    log_ids: set[str] = set()
    for step in range(1, STREAMS_AND_CONSUMERS + 1):
        log = tmp_path / f"{step}.log"
        dying = RoleProcess.fork(url, log, roles=INIT, failpoint=f"{Failpoint.INIT_STEP}:{step}")
        await dying.killed_at(Failpoint.INIT_STEP)
        if step > 1:  # the log is made behind what its format cannot be without
            log_ids.add(await find_log_id(nc))
    whole = RoleProcess.fork(url, tmp_path / "whole.log", roles=INIT)
    assert await whole.ended() == 0
    assert {name for name, wrong in (await topology_differences(nc)).items() if wrong} == set()
    assert log_ids == {await find_log_id(nc)}, "one log, one name: keys are derived from it"
    await close(nc)
    await server.kill()


async def test_a_dead_letter_is_stored_once_though_its_decider_dies_before_it_acknowledges(
    lane: Lane, name: str
) -> None:
    header = {MESSAGE_ID: name}
    await publish(lane.nc, intake("desired", key(name)), b"not a declaration", headers=header)
    dying = lane.fork(Failpoint.DECIDER_DEAD_LETTERED)
    await dying.killed_at(Failpoint.DECIDER_DEAD_LETTERED)
    following = lane.fork()
    await following.ready()
    await lane.until_at_rest()
    messages = await read_subject(lane.nc, DEADLETTERS, "deadletter.>")
    assert [letter.subject.split(".")[1] for letter in messages] == ["intake"]
    await lane.assert_sound()
    await following.stop()


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
async def test_an_error_at_a_step_is_tried_again_by_the_same_process(
    lane: Lane, name: str, point: Failpoint
) -> None:
    process = lane.fork(f"{point}=error")
    await lane.declare(name)
    await process.reached(point)
    await lane.until_outcome(name, "Converged")
    await lane.until_at_rest()
    assert await lane.effects(name) == ["POST"]
    await lane.assert_sound()
    await process.stop()


@pytest.mark.tier("ci")
async def test_a_defect_in_the_worker_ends_its_process_in_one_line_and_the_next_continues(
    lane: Lane, name: str
) -> None:
    await lane.declare(name)
    failing = lane.fork(f"{Failpoint.WORKER_CALLED}=error")
    assert await failing.ended() == 1
    assert failing.error_output.splitlines()[-1] == "error: failpoint worker.called"
    following = lane.fork()
    await lane.until_outcome(name, "Converged")
    await lane.until_at_rest()
    assert await lane.effects(name) == ["POST"]
    await lane.assert_sound()
    await following.stop()
