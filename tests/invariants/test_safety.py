"""Invariants 6, 7, 8 and 12: absence needs a proof, and foreign objects are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.external import ExternalObject
from events.intake import Observed
from events.log import ActionDecided, ActionFailed, DriftDetected, OwnershipReleased
from events.names import ResourceKey
from events.provider_config import CredentialsRef
from infra.bus.streams import LOG
from infra.jetstream.reads import read_subject
from reconciler.resource.owner_label import OWNER_LABEL, owner
from tests.scenarios.harness import World, api_config, every, manifest, only, shape

ABSENT: ExternalObject | None = None


async def test_6_only_an_observation_after_our_last_effect_proves_absence(bare_world: World):
    """The observations come from another observer, on the bus."""
    world = bare_world
    await world.start_reconciler(["decider", "worker", "projector"])
    await world.configure(api_config(world.human.url))
    before = await world.client.observation_time()
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")

    stale = Observed("default", "foo", ABSENT, "CompleteListing", as_of=before)
    await world.client.publish_observation(shape("foo"), stale)
    undated = Observed("default", "foo", ABSENT, "CompleteListing")
    await world.client.publish_observation(shape("foo"), undated)
    await world.until_settled()
    assert every(DriftDetected, await world.facts("foo")) == []

    await world.human.delete("foo")
    after = await world.client.observation_time()
    proof = Observed("default", "foo", ABSENT, "CompleteListing", as_of=after)
    await world.client.publish_observation(shape("foo"), proof)

    await world.until(lambda: world.human.find("foo"), "foo is recreated")
    await world.until_outcome("foo", "Converged")
    assert only(DriftDetected, await world.facts("foo")).missing


@pytest.mark.parametrize("exclusive", [False, True])
async def test_6_a_partial_listing_proves_nothing(bare_world: World, exclusive: bool):
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, page_size=1, exclusive=exclusive))
    await world.declare_all([manifest(name) for name in ("foo-1", "foo-2", "foo-3")])
    for name in ("foo-1", "foo-2", "foo-3"):
        await world.until_outcome(name, "Converged")
    await world.until_observed_again()
    await world.human.inject_faults(listing_fail_after_pages=1)
    await world.human.delete("foo-3")
    await world.human.reset_counts()
    position = await world.log_position()

    async def has_failed_three_times() -> bool:
        return (await world.human.requests()).get("GET", {}).get("500", 0) >= 3

    await world.until(has_failed_three_times, "three listings failed")
    await world.until_settled()
    assert await world.log_position() == position


async def test_7_an_object_with_our_label_that_the_log_never_created_is_disputed(
    exclusive_world: World,
):
    world = exclusive_world
    await world.human.create("bar", labels=world.owner_of("bar"))
    another_log = owner("another-log", ResourceKey("default", "Shape", "baz"))
    await world.human.create("baz", labels={OWNER_LABEL: another_log})

    await world.until_outcome("bar", "Disputed", reason="LabelNotInLog")
    await world.until_outcome("baz", "Disputed", reason="OwnedByAnother")
    await world.until_observed_again()
    assert await world.human.effects() == ["human POST", "human POST"]


async def test_7_a_foreign_object_that_took_our_objects_name_is_not_deleted(world: World):
    """The withdrawal is decided before any observation: the call itself must detect it."""
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.stop_reconciler()
    await world.human.delete("foo")
    await world.human.create("foo", color="Green")
    foreign_shape = await world.human.get("foo")
    await world.withdraw("foo")

    await world.start_reconciler(["decider", "worker", "projector"])

    await world.until_outcome("foo", "Deleted", reason="NotOurs")
    assert await world.human.get("foo") == foreign_shape
    facts = await world.facts("foo")
    assert only(ActionFailed, facts).error.error_class == "Conflict"
    assert only(OwnershipReleased, facts).reason == "Replaced"


async def test_7_a_foreign_object_that_took_our_objects_name_is_not_updated(world: World):
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged")
    await world.stop_reconciler()
    await world.human.delete("foo")
    await world.human.create("foo", color="Green")
    foreign_shape = await world.human.get("foo")
    await world.declare("foo", color="Purple")

    await world.start_reconciler()

    await world.until_outcome("foo", "Conflict", generation=2, reason="AlreadyExists")
    await world.until_observed_again()
    assert await world.human.get("foo") == foreign_shape


async def test_8_a_foreign_write_without_a_change_does_not_cause_events_or_writes(world: World):
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged")
    await world.until_observed_again()
    position, observed_at = await world.log_position(), await world.client.observation_time()

    await world.human.update("foo")  # a new version with the same content
    await world.until_observed_again()
    assert await world.log_position() == position
    assert (
        await world.client.observation_time() == observed_at
    )  # the observer found no change to report

    existing_shape = await world.human.get("foo")
    fields = {"type": existing_shape["type"], "color": existing_shape["color"]}
    same = ExternalObject(
        "foo",
        fields,
        existing_shape["uid"],
        str(existing_shape["version"]),
        existing_shape["labels"],
    )
    await world.client.publish_observation(
        shape("foo"), Observed("default", "foo", same, "Read", as_of=observed_at)
    )
    await world.until_settled()
    assert await world.log_position() == position

    await world.human.update("foo", labels={"team": "b", **world.owner_of("foo")})
    await world.until_observed_again()
    assert await world.human.effects() == ["POST", "human PUT", "human PUT"]
    assert only(ActionDecided, await world.facts("foo")).action.operation == "Create"

    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=2)
    existing_shape = await world.human.get("foo")
    assert existing_shape["labels"] == {"team": "b", **world.owner_of("foo")}


async def test_12_a_secret_is_used_but_never_logged(
    bare_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    world = bare_world
    secret = "hunter2-7f3a"
    (tmp_path / "token").write_text(secret)
    await world.start_reconciler()
    config = api_config(
        world.human.url, credentials_ref=CredentialsRef(file=str(tmp_path / "token"))
    )
    await world.configure(config)
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.human.inject_faults(error_rate=1, methods=["PUT"], remaining=1)
    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=2)

    stored = await read_subject(world.nc, LOG, "log.>")
    assert stored
    assert not any(secret.encode() in message.payload for message in stored)
