"""Two holders of one log: a copied data directory, an old copy of it, and a restored backup."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.intake import Declared
from events.log import HoldApproved, TwinDetected
from events.manifest import Fields, Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import config_key
from reconciler.provider.kind import KindRegistry
from reconciler.resource.owner_label import OWNER_LABEL
from tests.faulty_api.kinds import FIXED
from tests.integrity.operator import Operator
from tests.scenarios.harness import Human, World, api_config, every

CONFIG = config_key("default")


class Onlooker(Human):
    """Leaves the API unchanged, for a world that shares it."""

    async def reset(self) -> None: ...


def block(name: str) -> ResourceKey:
    return ResourceKey("default", FIXED.name, name)


async def declare(world: World, name: str, color: str, policy: Fields | None = None) -> None:
    spec: Fields = {"type": "Square", "color": color, "policy": policy or {}}
    declared = Manifest("shapes/v1", FIXED.name, Metadata(name), spec)
    await world.publish(block(name), Declared(declared))


@pytest.fixture
async def original(bare_world: World) -> World:
    """An installation with one object; the API returns the key of an object's last write."""
    bare_world.kinds = KindRegistry([FIXED])
    await bare_world.start_reconciler()
    await bare_world.configure(api_config(bare_world.human.url, provider="fixed"))
    await declare(bare_world, "foo", "Red")
    await bare_world.until_outcome(block("foo"), "Converged")
    await bare_world.until_settled()
    return bare_world


@pytest.fixture
async def copy(original: World, tmp_path: Path, api_url: str) -> AsyncIterator[World]:
    """A copy of the data directory on a separate server; the original keeps running."""
    await original.stop_reconciler()
    await original.kill_nats()
    shutil.copytree(original.server.data_dir, tmp_path / "copy")
    await original.start_nats()
    await original.start_reconciler()
    human = Onlooker(api_url)
    async with World(tmp_path / "copy", human).open() as world:
        world.kinds = original.kinds
        yield world
    await human.close()


async def test_a_copy_that_is_behind_writes_nothing_until_it_is_approved(
    original: World, copy: World
) -> None:
    for generation, color in enumerate(("Blue", "Yellow"), 2):
        await declare(original, "foo", color)
        await original.until_outcome(block("foo"), "Converged", generation=generation)
    await declare(original, "later", "Red")
    await original.until_outcome(block("later"), "Converged")
    await original.until_settled()
    journal_before = await original.human.journal()

    await copy.start_reconciler()
    held = await copy.until_outcome(CONFIG, "Held", reason="Twin")
    assert "another installation is running on a copy of this log" in held.message
    (detected,) = every(TwinDetected, await copy.facts(CONFIG))
    assert {each.name for each in detected.objects} == {"foo", "later"}, "all are listed together"
    await declare(copy, "foo", "Green")
    await declare(copy, "another", "Green")
    for name in ("foo", "another"):
        waiting = await copy.until_outcome(block(name), "Held", reason="Twin")
        assert "approve system/ProviderConfig/default --hold Twin" in waiting.message
    await copy.until_observed_again()
    assert await original.human.journal() == journal_before

    await original.stop_reconciler()
    await copy.client.approve_many([CONFIG], hold="Twin", reason="the original has stopped")
    for name in ("foo", "another"):
        await copy.until_outcome(block(name), "Converged")
        assert (await original.human.get(name))["color"] == "Green"
    await copy.until_outcome(block("later"), "Disputed", reason="LabelNotInLog")
    await copy.until_observed_again()
    assert (await copy.outcomes(CONFIG))[-1].outcome == "Converged", "one approval is enough"
    assert (await original.human.get("later"))["color"] == "Red"


async def test_a_copy_at_the_same_version_is_detected_at_the_next_one(
    original: World, copy: World
) -> None:
    """Both decide an update at one version, with the same key, and the API applies the first."""
    await declare(copy, "foo", "Green")
    await declare(original, "foo", "Blue")
    await original.until_outcome(block("foo"), "Converged", generation=2)
    await copy.start_reconciler()
    await copy.until_observed_again()
    await declare(original, "foo", "Yellow")
    await original.until_outcome(block("foo"), "Converged", generation=3)
    await copy.until_outcome(CONFIG, "Held", reason="Twin")
    await copy.until_observed_again()
    assert (await original.human.get("foo"))["color"] == "Yellow"
    assert (await original.human.effects("foo")) == ["POST", "PUT", "PUT"]


async def test_all_newer_objects_are_approved_together_after_a_restore(
    original: World, tmp_path: Path, operator: Operator, api_url: str
) -> None:
    await operator.run_ok(original.server.url, "backup", "monday")
    for name in ("a", "b", "c"):
        await declare(original, name, "Red")
        await original.until_outcome(block(name), "Converged")
    await declare(original, "foo", "Blue")
    await original.until_outcome(block("foo"), "Converged", generation=2)
    await original.until_settled()
    await original.stop_reconciler()
    await original.kill_nats()
    shutil.rmtree(original.server.data_dir / "jetstream")
    await original.start_nats()
    await operator.run_ok(original.server.url, "restore", "monday")
    journal_before = await original.human.journal()

    await original.start_reconciler()
    await original.until_outcome(CONFIG, "Held", reason="Twin")
    (detected,) = every(TwinDetected, await original.facts(CONFIG))
    assert {each.name for each in detected.objects} == {"a", "b", "c", "foo"}
    await original.until_outcome(block("foo"), "Held", reason="Twin")
    assert await original.human.journal() == journal_before
    approved = await operator.run_ok(
        original.server.url, "approve", "--all", "--hold", "Twin", "--reason", "restored"
    )
    assert "approved" in approved.out
    await original.until_outcome(block("foo"), "Converged")
    assert (await original.human.get("foo"))["color"] == "Red"
    assert len(every(HoldApproved, await original.facts(CONFIG))) == 1


async def test_a_label_that_an_operator_copied_does_not_cause_a_hold(original: World) -> None:
    """Only that object is disputed; other resources are unaffected."""
    own_shape = await original.human.get("foo")
    await original.human.create("bar", labels=own_shape["labels"])
    await original.human.delete("foo")
    await original.human.create("foo", color="Blue", labels=own_shape["labels"])
    await original.until_observed_again(3)
    await declare(original, "other", "Green")
    await original.until_outcome(block("other"), "Converged")
    assert not every(TwinDetected, await original.facts(CONFIG))
    copied = (await original.human.get("bar"))["labels"][OWNER_LABEL]
    assert copied == own_shape["labels"][OWNER_LABEL]
    assert (await original.human.effects("bar")) == ["human POST"]
