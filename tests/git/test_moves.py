"""Manifests that move between two sets: their objects are neither deleted nor created again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from events.composition import PART_OF_LABEL
from events.intake import ReconcileRequested, Withdrawn
from events.log import ActionDecided, OwnershipReleased, SpecWithdrawn
from events.manifest import Fields, Manifest, Metadata
from events.names import ResourceKey
from events.stored_content import Part
from tests.git.repositories import Repository
from tests.git.test_source import CONFIG, api_url, document, world
from tests.scenarios.harness import World, manifest, shape

__all__ = ["api_url", "world"]

A, B = (ResourceKey("default", "GitSource", name) for name in ("a", "b"))
LONG = 3_600
"""Interval of a source that reads its repository only on request."""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "shop")
    repository.write({"a/stay.yaml": document("stay-a"), "b/stay.yaml": document("stay-b")})
    return repository


def source(key: ResourceKey, repository: Repository, interval: float = 1) -> Manifest:
    spec: Fields = {
        "providerConfigRef": {"name": CONFIG},
        "url": repository.url,
        "path": key.name,
        "intervalSeconds": interval,
    }
    return Manifest("git/v1", "GitSource", Metadata(key.name), spec)


async def owners(world: World, names: Sequence[str]) -> Mapping[str, str]:
    rows = [await world.client.status(shape(name)) for name in names]
    return {
        row.name: row.labels.get(PART_OF_LABEL, "").rpartition(".")[2]
        for row in rows
        if row is not None and row.declared
    }


async def until_owned(world: World, expected: Mapping[str, str]) -> None:
    async def is_owned() -> bool:
        return await owners(world, [*expected]) == expected

    try:
        await world.until(is_owned, f"the owners are {expected}", seconds=20)
    except AssertionError:
        for key in (A, B):
            for event in await world.history(key):
                print(key.name, type(event.data).__name__, str(event.data)[:300])
        raise


async def until_wanted(world: World, name: str) -> None:
    """Wait until source b waits for this shape, or has taken it over."""

    async def is_wanted() -> bool:
        row = await world.client.status(B)
        is_waiting = row is not None and row.outcome == "Degraded"
        return is_waiting or (await owners(world, [name])).get(name) == "b"

    await world.until(is_wanted, f"b waits for {name}", seconds=20)


async def until_settled(world: World, *keys: ResourceKey) -> None:
    async def is_settled() -> bool:
        rows = [await world.client.status(key) for key in keys]
        return all(
            row is not None and row.outcome == "Converged" and row.not_ready is None for row in rows
        )

    await world.until(is_settled, f"{keys} are ready", seconds=20)


async def assert_kept(world: World, *names: str) -> None:
    """Check that the log and the API agree: the objects were created once, and never deleted."""
    for name in names:
        facts = await world.facts(shape(name))
        assert not [each for each in facts if type(each) in (SpecWithdrawn, OwnershipReleased)]
        operations = [
            event.data.action.operation
            for event in await world.history(shape(name))
            if isinstance(event.data, ActionDecided)
        ]
        assert operations.count("Create") == 1
        assert "Delete" not in operations


async def both(world: World, repository: Repository, a: float = 1, b: float = 1) -> None:
    repository.commit("first")
    await world.declare_all([source(A, repository, a), source(B, repository, b)])
    await until_settled(world, A, B)


@pytest.mark.parametrize(("a", "b"), [(1, LONG), (LONG, 1), (1, 1)])
async def test_48_a_manifest_that_moves_between_sources_keeps_its_object(
    world: World, repository: Repository, a: float, b: float
):
    repository.write({"a/mover.yaml": document("mover")})
    await both(world, repository, a, b)
    repository.git("mv", "a/mover.yaml", "b/mover.yaml")
    repository.commit("move")
    if a == LONG:  # the new source waits until the former one reads its repository
        await until_wanted(world, "mover")
        await world.publish(A, ReconcileRequested())
    await until_owned(world, {"mover": "b", "stay-a": "a", "stay-b": "b"})
    await until_settled(world, A, B)
    await assert_kept(world, "mover")


async def test_two_sources_exchange_manifests(world: World, repository: Repository):
    repository.write({"a/first.yaml": document("first"), "b/second.yaml": document("second")})
    await both(world, repository)
    repository.git("mv", "a/first.yaml", "b/first.yaml")
    repository.git("mv", "b/second.yaml", "a/second.yaml")
    repository.commit("exchange")
    await until_owned(world, {"first": "b", "second": "a"})
    await until_settled(world, A, B)
    await assert_kept(world, "first", "second")


async def test_a_removed_manifest_is_withdrawn_though_another_source_reads_the_repository(
    world: World, repository: Repository
):
    repository.write({"a/gone.yaml": document("gone")})
    await both(world, repository, 1, LONG)
    repository.remove("a/gone.yaml")
    repository.commit("remove")
    await world.until_outcome(shape("gone"), "Deleted")
    await until_settled(world, A, B)


async def test_the_resources_of_a_deleted_source_move_to_the_source_that_declares_them(
    world: World, repository: Repository
):
    await both(world, repository, LONG, LONG)
    repository.git("mv", "a/stay.yaml", "b/more.yaml")
    repository.commit("merge")
    await world.publish(B, ReconcileRequested())
    await until_wanted(world, "stay-a")
    await world.publish(A, Withdrawn())
    await world.until_outcome(A, "Deleted")
    await until_owned(world, {"stay-a": "b"})
    await assert_kept(world, "stay-a")


async def test_a_resource_moves_to_the_manifest_set_that_declares_it_first(world: World):
    sets = world.client.manifest_sets()
    old, new = (ResourceKey("default", "ManifestSet", name) for name in ("old", "new"))

    async def apply(key: ResourceKey, *names: str) -> None:
        parts = [Part(manifest(name)) for name in names]
        change, content = await sets.change(key, parts, prune=True)
        await sets.declare(change, content)

    await apply(old, "mover", "stay")
    await world.until_outcome(old, "Converged")
    await apply(new, "mover")
    waiting = await world.until_outcome(new, "Degraded")
    assert "is already part of default.ManifestSet.old" in waiting.message
    await apply(old, "stay")
    await until_owned(world, {"mover": "new", "stay": "old"})
    await assert_kept(world, "mover")
