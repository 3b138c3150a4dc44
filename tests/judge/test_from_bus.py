"""The judge reads the history from a real bus and a real API."""

from __future__ import annotations

from events.log import ActionDecided
from events.names import ResourceKey
from tests.judge.from_bus import check, last_effect, read_history
from tests.judge.history import AcknowledgedMessage
from tests.scenarios.conftest import api_url, bare_world, world
from tests.scenarios.harness import World, shape

__all__ = ["api_url", "bare_world", "world"]


async def test_a_run_without_faults_has_no_findings(world: World) -> None:
    position_before = await last_effect(world.human.url)
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=2)
    await world.declare("leaving")
    await world.until_outcome("leaving", "Converged")
    await world.withdraw("leaving")
    await world.until_outcome("leaving", "Deleted")
    await world.until_settled()

    history = await read_history(world.nc, world.human.url, after_effect=position_before)

    assert [each.name for each in history.objects or ()] == ["foo"]
    events = [each.event.data for each in history.log]
    keys = [each.action.idempotency_key for each in events if isinstance(each, ActionDecided)]
    effects = history.effects or ()
    assert [each.key for each in effects if each.key in keys] == keys
    operations = [each.operation for each in effects if each.key in keys]
    assert operations == ["Create", "Update", "Create", "Delete"]
    assert sum(each.event.key == shape("foo") for each in history.log) == 8
    assert await check(world.nc, world.human.url, after_effect=position_before) == []


async def test_changes_made_without_the_log_are_detected(world: World) -> None:
    position_before = await last_effect(world.human.url)
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.stop_reconciler()
    await world.human.delete("foo")
    await world.human.create("bar")
    lost_message = AcknowledgedMessage(ResourceKey("default", "Shape", "baz"), "m1")

    breaches = await check(
        world.nc,
        world.human.url,
        acknowledged=[lost_message],
        by_hand=["foo"],
        after_effect=position_before,
    )

    assert {(each.rule, each.subject) for each in breaches} == {
        ("lost_message", "default/Shape/baz"),
        ("loss", "default/Shape/foo"),
        ("effect_without_intent", "bar"),
    }
