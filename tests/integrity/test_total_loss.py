"""After the loss of the broker and its disk, a backup restores ownership without leaks."""

from __future__ import annotations

import shutil

from events.log import Action, ActionDecided
from infra.bus.event_log import open_log
from infra.bus.streams import LogIdentity, begin_restoration, find_log
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.wiring import initialize
from tests.integrity.operator import Operator
from tests.scenarios.harness import World, api_config, every, now


async def _lose_everything(world: World) -> None:
    await world.stop_reconciler()
    await world.kill_nats()
    shutil.rmtree(world.server.data_dir / "jetstream")
    await world.start_nats()

    async def is_connected() -> bool:
        return world.nc.is_connected

    await world.until(is_connected, "reconnected")


async def _settle(world: World, *names: str) -> None:
    for name in names:
        await world.until_outcome(name, "Converged")
    await world.until_settled()


async def test_a_restore_recovers_ownership_and_the_next_listing_repairs_the_rest(
    bare_world: World, operator: Operator
) -> None:
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    for name in ("kept", "edited", "withdrawn"):
        await world.declare(name)
    await world.declare("released", policy={"deletion": "Orphan"})
    await _settle(world, "kept", "edited", "withdrawn", "released")
    url = world.server.url
    saved = (await operator.run_ok(url, "backup", "monday", "-o", "json")).json
    before = (await operator.run_ok(url, "replay", "-o", "json")).json["fleet"]
    identity = await find_log(world.nc)

    # After the backup, one resource is declared, one withdrawn, one released and one changed.
    await world.declare("later")
    await _settle(world, "later")
    await world.withdraw("withdrawn")
    await world.until_outcome("withdrawn", "Deleted")
    await world.withdraw("released")
    await world.until_outcome("released", "Released")
    assert (await world.human.get("released"))["labels"] == {}
    await world.stop_reconciler()
    await world.human.update("edited", color="Blue")
    lost_keys = [each.idempotency_key for each in await _keys(world, "withdrawn")]
    await _lose_everything(world)
    await world.human.reset_counts()

    restored = (await operator.run_ok(url, "restore", "monday", "-o", "json")).json
    assert restored["events"] == saved["events"] == saved["position"]
    assert await world.human.requests() == {}
    after = (await operator.run_ok(url, "replay", "--verify", "-o", "json")).json
    assert after["fleet"] == before
    assert after["integrity"]["damage"] == []
    again = await find_log(world.nc)
    assert again.log_id == identity.log_id
    assert again.epoch != identity.epoch

    await world.start_reconciler()
    await world.until_observed_again()
    await _settle(world, "kept", "edited", "withdrawn")
    assert (await world.human.get("edited"))["color"] == "Red"
    await _settle(world, "released")
    assert (await world.human.get("released"))["labels"] == world.owner_of("released")
    # According to this log it was never withdrawn, so it was recreated once.
    assert (await world.human.effects("withdrawn")) == ["POST", "DELETE", "POST"]
    fresh = [each.idempotency_key for each in await _keys(world, "withdrawn")]
    assert not set(fresh[1:]) & set(lost_keys), "the lost keys are not reused"

    # The object that was created after the backup is reported and left alone.
    disputed = await world.until_outcome("later", "Disputed", reason="LabelNotInLog")
    _expect_guidance(await operator.diagnose(url, "restored"), again, disputed.message)
    assert (await world.human.get("later"))["labels"][OWNER_LABEL] == world.owner_of("later")[
        OWNER_LABEL
    ]
    await world.declare("later", color="Green")
    conflict = await world.until_outcome("later", "Conflict", reason="AlreadyExists")
    _expect_guidance(await operator.diagnose(url, "restored"), again, conflict.message)
    await world.declare("later", color="Green", policy={"adoption": "Adopt"})
    await world.until_outcome("later", "Converged")
    assert (await world.human.effects("later")) == ["POST", "PUT"], "nothing was created twice"
    assert (await world.human.get("later"))["color"] == "Green"


def _expect_guidance(finding: dict[str, str], restored: LogIdentity, message: str) -> None:
    assert f"the log was restored from a backup made at {restored.restored_as_of}" in message
    origin = f"from a backup made at {restored.restored_as_of} (epoch {restored.epoch})"
    affected = "1 resource may be affected: default/Shape/later"
    assert finding["status"] == "warn"
    assert finding["details"].startswith(f"{origin}; {affected}")
    assert "spec.policy.adoption: Adopt" in finding["remedy"]


async def test_an_action_with_the_id_of_a_lost_one_has_a_different_key(
    bare_world: World, operator: Operator
) -> None:
    """The API keeps the response to the lost one; under its key, nothing would be created."""
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.until_settled()
    await operator.run_ok(world.server.url, "backup", "monday")
    await world.declare("foo")
    await _settle(world, "foo")
    await world.stop_reconciler()
    (lost_action,) = await _keys(world, "foo")
    await world.human.delete("foo")
    await _lose_everything(world)
    await operator.run_ok(world.server.url, "restore", "monday")

    await world.start_reconciler()
    await world.declare("foo")
    await _settle(world, "foo")
    (fresh,) = await _keys(world, "foo")
    assert fresh.action_id == lost_action.action_id
    assert fresh.idempotency_key != lost_action.idempotency_key
    assert (await world.human.get("foo"))["color"] == "Red"


async def _keys(world: World, name: str) -> list[Action]:
    return [each.action for each in every(ActionDecided, await world.facts(name))]


async def test_waiting_declarations_are_decided_after_a_restore(
    bare_world: World, operator: Operator
) -> None:
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("foo")
    await _settle(world, "foo")
    await world.stop_reconciler()
    await world.declare("foo", color="Green")
    await world.declare("bar")
    url = world.server.url
    saved = (await operator.run_ok(url, "backup", "b", "-o", "json")).json
    assert saved["declarations"] == 2
    await _lose_everything(world)
    began = int(now().timestamp() * 1e6)
    restored = (await operator.run_ok(url, "restore", "b", "-o", "json")).json
    assert restored["declarations"] == 2
    await world.start_reconciler()
    await _settle(world, "foo", "bar")
    await world.until_outcome("foo", "Converged", generation=2)
    assert (await world.human.get("foo"))["color"] == "Green"
    newest = (await world.history("foo"))[-1]
    assert newest.causationposition >= began, "the new intake continues with higher sequences"


async def test_init_does_not_touch_a_log_that_is_only_partially_restored(
    bare_world: World, operator: Operator
) -> None:
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.stop_reconciler()
    url = world.server.url
    await operator.run_ok(url, "backup", "b")
    await _lose_everything(world)
    await begin_restoration(world.nc, LogIdentity("abc", "def"))
    refused = await operator.run(url, "init")
    assert refused.status == 1
    assert "` with the same file again" in refused.err
    refused = await operator.run(url, "get")
    assert "being restored" in refused.err
    await operator.run_ok(url, "restore", "b")
    await initialize(world.nc)
    assert (await open_log(world.nc)).log_id != "abc"
