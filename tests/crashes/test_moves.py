"""Kills during a move: the object never has two owners or none (scenario 48)."""

from __future__ import annotations

import pytest

from events.intake import Declared
from events.log import OwnershipClaimed, OwnershipReleased
from events.manifest import MOVED_FROM_ANNOTATION, Manifest, Metadata
from infra.bus.event_log import open_log
from reconciler.failpoints import Failpoint
from tests.crashes.lane import Lane, key

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    "point",
    [Failpoint.DECIDER_DECIDED, Failpoint.DECIDER_BATCH_HALF_SENT, Failpoint.DECIDER_APPENDED],
)
async def test_a_move_is_complete_or_has_not_begun_after_a_kill(
    lane: Lane, name: str, point: Failpoint
) -> None:
    new = f"{name}-new"
    await lane.declare(name)
    await lane.settle()
    metadata = Metadata(new, annotations={MOVED_FROM_ANNOTATION: name})
    spec = {"type": "Square", "color": "Red"}
    await lane.publish(key(new), Declared(Manifest("shapes/v1", "Shape", metadata, spec)))
    await lane.settle()
    await lane.wait_for_outcome(new, "Waiting")
    await lane.withdraw(name)
    dying = lane.fork(point)
    await dying.wait_until_killed_at(point)
    moved = await _owners(lane, name, new)
    assert moved in ((True, False), (False, True)), "exactly one of them owns the object"
    next_process = lane.fork()
    await lane.wait_for_outcome(new, "Converged")
    await lane.wait_until_idle()
    assert await _owners(lane, name, new) == (False, True)
    assert await lane.effects(name) == ["POST", "PUT"]
    await lane.assert_sound()
    await next_process.stop()


async def test_a_withdrawal_of_the_new_resource_ends_the_move_after_a_kill(
    lane: Lane, name: str
) -> None:
    new = f"{name}-new"
    await lane.declare(name)
    await lane.settle()
    metadata = Metadata(new, annotations={MOVED_FROM_ANNOTATION: name})
    spec = {"type": "Square", "color": "Red", "policy": {"paused": True}}
    await lane.publish(key(new), Declared(Manifest("shapes/v1", "Shape", metadata, spec)))
    await lane.settle()
    await lane.wait_for_outcome(new, "Paused")
    await lane.withdraw(name)
    await lane.settle()
    await lane.wait_for_outcome(name, "Waiting")
    await lane.withdraw(new)
    dying = lane.fork(Failpoint.DECIDER_APPENDED)
    await dying.wait_until_killed_at(Failpoint.DECIDER_APPENDED)
    next_process = lane.fork()
    await lane.wait_for_outcome(name, "Deleted")
    await lane.wait_until_idle()
    assert await lane.effects(name) == ["POST", "DELETE"]
    await lane.assert_sound()
    await next_process.stop()


async def _owners(lane: Lane, former: str, new: str) -> tuple[bool, bool]:
    """Return whether the log shows that each resource owns the object."""
    loaded = await (await open_log(lane.nc)).load([key(former), key(new)], use_cache=False)
    former_events, new_events = (
        [type(event.data) for event in loaded[each].events] for each in (key(former), key(new))
    )
    return OwnershipReleased not in former_events, OwnershipClaimed in new_events
