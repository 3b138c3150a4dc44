"""What the checker is given is what really happened: read from a real bus and a real API."""

from __future__ import annotations

from events.names import ResourceKey
from tests.history_checker import Acknowledged
from tests.history_reading import check, last_effect, read_history
from tests.scenarios.conftest import api_url, bare_world, world
from tests.scenarios.harness import World, shape

__all__ = ["api_url", "bare_world", "world"]


async def test_a_real_story_without_fault_has_no_findings(world: World) -> None:
    before = await last_effect(world.human.url)
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=2)
    await world.declare("leaving")
    await world.until_outcome("leaving", "Converged")
    await world.withdraw("leaving")
    await world.until_outcome("leaving", "Deleted")
    await world.until_settled()

    history = await read_history(world.nc, world.human.url, after_effect=before)

    assert [each.name for each in history.listing] == ["foo"]
    methods = [each.method for each in history.journal if each.idempotency_key in history.decided]
    assert methods == ["POST", "PUT", "POST", "DELETE"]
    assert len(history.by_resource[shape("foo")]) == 8
    assert await check(world.nc, world.human.url, after_effect=before) == []


async def test_what_goes_wrong_behind_the_log_is_found(world: World) -> None:
    before = await last_effect(world.human.url)
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.stop_reconciler()
    await world.human.deletes("foo")
    await world.human.makes("bar")
    nowhere = Acknowledged(ResourceKey("default", "Shape", "baz"), "m1")

    found = await check(
        world.nc, world.human.url, acknowledged=[nowhere], by_hand=["foo"], after_effect=before
    )

    assert {(each.rule, each.subject) for each in found} == {
        ("undecided", "default/Shape/baz"),
        ("loss", "default/Shape/foo"),
        ("intent", "bar"),
    }
