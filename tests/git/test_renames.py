"""Manifests of a set that are renamed with `moved-from` keep their objects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from events.log import ActionDecided
from events.manifest import MOVED_FROM_ANNOTATION, Manifest
from events.names import ResourceKey
from events.stored_content import Part
from tests.git.repositories import Repository
from tests.git.test_source import api_url, document, source, until_ready, world
from tests.scenarios.harness import World, manifest, shape

__all__ = ["api_url", "world"]

SET = ResourceKey("default", "ManifestSet", "shop")


def renamed(name: str, former: str) -> Manifest:
    declared = manifest(name)
    declared.metadata.annotations[MOVED_FROM_ANNOTATION] = former
    return declared


async def apply(world: World, manifests: Sequence[Manifest], key: ResourceKey = SET) -> None:
    sets = world.client.manifest_sets()
    change, content = await sets.change(key, [Part(each) for each in manifests], prune=True)
    await sets.declare(change, content)


async def until_kept(world: World, moves: dict[str, str]) -> None:
    """Wait until each new name has the object of its former name."""
    for new, former in moves.items():
        if former not in moves:
            await world.until_outcome(shape(former), "Deleted", reason="Moved")
        await world.until_outcome(shape(new), "Converged")
    for name in {*moves, *moves.values()}:
        decided = [
            each.action.operation
            for each in await world.facts(shape(name))
            if isinstance(each, ActionDecided)
        ]
        assert "Delete" not in decided, name
        assert ("Create" in decided) == (name in moves.values() and name not in moves), name


async def test_48_a_set_renames_a_resource_in_one_apply(world: World):
    await apply(world, [manifest("old"), manifest("stay")])
    await world.until_outcome(SET, "Converged")
    await apply(world, [renamed("new", "old"), manifest("stay")])
    await until_kept(world, {"new": "old"})
    await world.until_outcome(SET, "Converged")
    assert sorted(each["name"] for each in await world.human.list_all()) == ["old", "stay"]
    await apply(world, [manifest("stay")])
    await world.until_outcome(shape("new"), "Deleted", reason="Gone")
    assert [each["name"] for each in await world.human.list_all()] == ["stay"]


async def test_a_set_renames_a_chain_before_the_first_rename_ends(world: World):
    await apply(world, [manifest("a"), manifest("x")])
    await world.until_outcome(SET, "Converged")
    await apply(world, [renamed("b", "a"), renamed("y", "x")])
    await apply(world, [renamed("c", "b"), renamed("z", "y")])
    await world.until_outcome(shape("c"), "Converged")
    await world.until_outcome(shape("z"), "Converged")
    assert sorted(each["name"] for each in await world.human.list_all()) == ["a", "x"]


async def test_the_former_resource_of_a_refused_rename_stays(world: World):
    await apply(world, [manifest("old"), manifest("stay")])
    await world.until_outcome(SET, "Converged")
    refused = renamed("new", "old")
    refused.spec["policy"] = {"mode": "ObserveOnly"}
    await apply(world, [refused, manifest("stay")])

    async def is_refused() -> bool:
        row = await world.client.status(SET)
        return row is not None and "ObserveOnly" in str(row.not_ready)

    await world.until(is_refused, "the set shows the refusal", seconds=20)
    await world.until_observed_again()
    await world.until_observed_again()
    assert sorted(each["name"] for each in await world.human.list_all()) == ["old", "stay"]
    await apply(world, [renamed("new", "old"), manifest("stay")])
    await until_kept(world, {"new": "old"})
    await world.until_outcome(SET, "Converged")


async def test_48_a_git_source_renames_a_resource_in_one_commit(world: World, tmp_path: Path):
    repository = Repository(tmp_path / "shop")
    repository.write({"old.yaml": document("old"), "stay.yaml": document("stay")})
    repository.commit("first")
    await world.declare_all([source(repository)])
    await until_ready(world)
    repository.remove("old.yaml")
    repository.write(
        {
            "new.yaml": document("new").replace(
                "{name: new}", "{name: new, annotations: {reconciler/moved-from: old}}"
            )
        }
    )
    commit = repository.commit("rename")
    await until_kept(world, {"new": "old"})
    await until_ready(world, commit)
    assert sorted(each["name"] for each in await world.human.list_all()) == ["old", "stay"]


async def test_a_change_of_a_set_shows_renames(world: World):
    sets = world.client.manifest_sets()
    await apply(world, [manifest("old"), manifest("gone"), manifest("stay")])
    await world.until_outcome(SET, "Converged")
    members = [renamed("new", "old"), renamed("second", "old"), renamed("other", "stay")]
    members.append(manifest("stay"))
    change, _ = await sets.change(SET, [Part(each) for each in members], prune=True)
    assert change.renamed == {str(shape("new")): str(shape("old"))}
    assert change.added == (str(shape("other")), str(shape("second")))
    assert change.removed == (str(shape("gone")),)
    assert str(change) == "2 added, 1 withdrawn, 1 renamed"
    kept, _ = await sets.change(SET, [Part(each) for each in members], prune=False)
    assert (kept.renamed, kept.removed) == ({}, ())
