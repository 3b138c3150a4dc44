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


@pytest.mark.parametrize("end", ["withdrawn", "no longer renamed"])
async def test_a_move_ends_though_only_the_message_that_ends_it_is_stored(
    lane: Lane, name: str, end: str
) -> None:
    """The redelivered message changes nothing, so the state names the former resource."""
    new = f"{name}-new"
    await lane.declare(name)
    await lane.settle()
    await _rename(lane, name, new, policy={"paused": True})
    await lane.settle()
    await lane.wait_for_outcome(new, "Paused")
    await lane.withdraw(name)
    await lane.settle()
    await lane.wait_for_outcome(name, "Waiting")
    if end == "withdrawn":
        await lane.withdraw(new)
    else:
        await lane.declare(new)
    await _kill_during_moves(lane)
    assert await _owners(lane, name, new) == (True, False)
    next_process = lane.fork()
    await lane.wait_for_outcome(name, "Deleted")
    await lane.wait_for_outcome(new, "Deleted" if end == "withdrawn" else "Converged")
    await lane.wait_until_idle()
    created_again = [] if end == "withdrawn" else ["POST"]  # by the new resource
    assert sorted(await lane.effects(name)) == ["DELETE", "POST", *created_again]
    await lane.assert_sound()
    await next_process.stop()


@pytest.mark.parametrize("kills", [0, 1, 2])
async def test_a_resource_that_is_renamed_twice_keeps_its_object(
    lane: Lane, name: str, kills: int
) -> None:
    second, third = f"{name}-second", f"{name}-third"
    await lane.declare(name)
    await lane.settle()
    await _rename(lane, name, second)
    await lane.settle()
    await lane.wait_for_outcome(second, "Waiting")
    await _rename(lane, second, third)
    await lane.settle()
    await lane.wait_for_outcome(third, "Waiting")
    await lane.withdraw(second)
    if kills > 0:
        await _kill_during_moves(lane)
    await lane.settle()
    await lane.wait_for_outcome(second, "Waiting")
    await lane.withdraw(name)
    if kills > 1:
        await _kill_during_moves(lane)
    next_process = lane.fork()
    await lane.wait_for_outcome(third, "Converged")
    await lane.wait_for_outcome(second, "Deleted")
    await lane.wait_for_outcome(name, "Deleted")
    await lane.wait_until_idle()
    assert await lane.effects(name) == ["POST", "PUT"], "created once, and relabeled"
    await lane.assert_sound()
    await next_process.stop()


async def test_a_resource_with_an_object_refuses_to_take_over_another_one(
    lane: Lane, name: str
) -> None:
    """Two resources are renamed at once: each new name is the former name of the next."""
    second, third = f"{name}-second", f"{name}-third"
    for each in (name, second):
        await lane.declare(each)
    await lane.settle()
    await _rename(lane, name, second)
    await _rename(lane, second, third)
    process = lane.fork()
    await lane.wait_for_outcome(third, "Waiting")
    await lane.wait_until_idle()
    assert await lane.effects(name, second, third) == ["POST", "POST"]
    await lane.withdraw(second)
    await lane.wait_for_outcome(third, "Converged")
    await lane.wait_for_outcome(second, "Deleted")
    await _rename(lane, name, second)
    await lane.wait_for_outcome(second, "Waiting")
    await lane.withdraw(name)
    await lane.wait_for_outcome(second, "Converged")
    await lane.wait_for_outcome(name, "Deleted")
    await lane.wait_until_idle()
    assert await lane.effects(name, second, third) == ["POST", "POST", "PUT", "PUT"]
    await lane.assert_sound()
    await process.stop()


async def _rename(lane: Lane, former: str, new: str, **spec: object) -> None:
    metadata = Metadata(new, annotations={MOVED_FROM_ANNOTATION: former})
    fields = {"type": "Square", "color": "Red", **spec}
    await lane.publish(key(new), Declared(Manifest("shapes/v1", "Shape", metadata, fields)))


async def _kill_during_moves(lane: Lane) -> None:
    """Kill a process after it has stored a turn, before the next steps of the moves."""
    dying = lane.fork(Failpoint.DECIDER_MOVES)
    await dying.wait_until_killed_at(Failpoint.DECIDER_MOVES)


async def _owners(lane: Lane, former: str, new: str) -> tuple[bool, bool]:
    """Return whether the log shows that each resource owns the object."""
    loaded = await (await open_log(lane.nc)).load([key(former), key(new)], use_cache=False)
    former_events, new_events = (
        [type(event.data) for event in loaded[each].events] for each in (key(former), key(new))
    )
    return OwnershipReleased not in former_events, OwnershipClaimed in new_events
