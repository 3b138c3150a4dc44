"""A Git source in the whole reconciler: manifests are declared completely or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from events.composition import COMPOSED_SET_KIND, PART_OF_LABEL
from events.intake import Approved, ReconcileRequested, Withdrawn
from events.log import ActionDecided, SpecDeclared
from events.manifest import RECONCILER_API_VERSION, Fields, Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import DeletionGuard, Retry
from events.stored_content import COMPOSED_CONTENT_KIND, Part
from infra.providers.git.source import GIT_SOURCE
from infra.providers.manifest_set import MANIFEST_SET
from projections.status import StatusRow
from reconciler.errors import DeclarationRefusedError
from reconciler.provider.kind import KindRegistry
from shapes_api.kinds.shapes import SHAPE
from tests.git.repositories import Repository, signing_key
from tests.scenarios.conftest import api_url
from tests.scenarios.harness import Human, World, api_config, manifest, shape

__all__ = ["api_url"]

SHOP = ResourceKey("default", "GitSource", "shop")
CONFIG = "composition"


@pytest.fixture
async def world(tmp_path: Path, api_url: str) -> AsyncIterator[World]:
    human = Human(api_url)
    async with World(tmp_path / "nats", human).open() as world:
        world.kinds = KindRegistry([SHAPE, GIT_SOURCE, MANIFEST_SET])
        await world.start_reconciler()
        await world.configure(api_config(human.url))
        await world.configure(
            api_config(
                world.server.url,
                provider="composition",
                retry=Retry(initial_seconds=0.1, max_seconds=0.3),
                deletion_guard=DeletionGuard(),
            ),
            CONFIG,
        )
        yield world
    await human.close()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "shop")


def document(name: str, color: str = "Red") -> str:
    return (
        f"apiVersion: shapes/v1\nkind: Shape\nmetadata: {{name: {name}}}\n"
        f"spec: {{type: Square, color: {color}}}\n"
    )


def source(repository: Repository, **fields: Any) -> Manifest:
    spec: Fields = {
        "providerConfigRef": {"name": CONFIG},
        "url": repository.url,
        "intervalSeconds": 1,
        **fields,
    }
    return Manifest("git/v1", "GitSource", Metadata("shop"), spec)


async def until_ready(world: World, commit: str = "") -> StatusRow:
    async def is_ready() -> StatusRow | None:
        row = await world.client.status(SHOP)
        if row is None or row.outcome != "Converged" or row.not_ready is not None:
            return None
        return row if commit in ("", head_of(row)) else None

    try:
        return await world.until(is_ready, f"{SHOP} is ready", seconds=15)
    except AssertionError:
        for event in await world.history(SHOP):
            print(type(event.data).__name__, str(event.data)[:900])
        print(await world.client.status(SHOP))
        raise


async def until_problem(world: World, reason: str) -> str:
    """Wait until the source has this problem; return its message."""

    async def find_message() -> str | None:
        row = await world.client.status(SHOP)
        ready = None if row is None else row.not_ready
        return ready.message if ready is not None and ready.reason == reason else None

    try:
        return await world.until(find_message, f"{SHOP} is not ready: {reason}", seconds=15)
    except AssertionError:
        print(await world.client.status(SHOP))
        raise


def head_of(row: StatusRow) -> str:
    return row.outputs.get("revision", {}).get("commit", "")


async def colors(world: World) -> dict[str, str]:
    return {each["name"]: each["color"] for each in await world.human.list_all()}


async def declarations(world: World, names: Sequence[str]) -> dict[str, int]:
    """Count how often each shape was declared."""
    return {
        name: sum(type(event) is SpecDeclared for event in await world.facts(shape(name)))
        for name in names
    }


async def test_manifests_of_a_repository_are_declared_changed_and_withdrawn(
    world: World, repository: Repository
):
    repository.write(
        {"deploy/a.yaml": document("a") + "---\n# the other\n" + document("b", "Blue")}
    )
    repository.write({"README.md": "nothing", "deploy/notes.txt": "nothing"})
    first = repository.commit("two shapes")
    await world.declare_all([source(repository, path="deploy")])
    row = await until_ready(world, first)
    assert await colors(world) == {"a": "Red", "b": "Blue"}
    assert row.outputs["revision"]["author"] == "Ann <ann@example.org>"
    child = await world.client.status(shape("b"))
    assert child is not None
    assert child.labels == {PART_OF_LABEL: "default.GitSource.shop"}
    [declared] = [each for each in await world.facts(shape("b")) if type(each) is SpecDeclared]
    assert declared.reason == (
        f"part of default/GitSource/shop: deploy/a.yaml:7: commit {first[:12]} by"
        " Ann <ann@example.org>"
    )

    repository.write({"deploy/a.yaml": document("a", "Green"), "deploy/c.yaml": document("c")})
    second = repository.commit("remove b")
    await until_ready(world, second)
    assert await colors(world) == {"a": "Green", "c": "Red"}

    await world.publish(SHOP, Withdrawn())
    await world.until_outcome(SHOP, "Deleted")
    assert await colors(world) == {}

    async def is_all_withdrawn() -> bool:
        kinds = {row.kind for row in await world.client.statuses() if row.declared}
        return kinds == {"ProviderConfig"}

    await world.until(is_all_withdrawn, "no content is still declared", seconds=5)


async def test_neither_an_idle_source_nor_a_restart_writes_an_event(
    world: World, repository: Repository
):
    repository.write({"a.yaml": document("a")})
    await world.declare_all([source(repository, path="")])
    await until_problem(world, "RefGone")
    commit = repository.commit()
    await until_ready(world, commit)
    await world.until_observed_again(3)
    position_before = await world.log.last_position()
    await world.until_observed_again(8)
    await world.restart_reconciler()
    await world.until_observed_again(4)
    assert await world.log.last_position() == position_before


async def test_38_a_commit_of_200_manifests_is_applied_completely_or_not_at_all(
    world: World, repository: Repository, tmp_path: Path
):
    """The guard holds 90 deletions; a bad commit changes nothing; each commit has an author."""
    key, signer = signing_key(tmp_path)
    repository.git("config", "gpg.format", "ssh")
    repository.git("config", "user.signingkey", str(key))
    names = [f"s{number:03}" for number in range(200)]
    repository.write({f"deploy/{name}.yaml": document(name) for name in names})
    first = repository.commit("200 shapes", "-S")
    await world.declare_all([source(repository, path="deploy", signers=signer)])
    await until_ready(world, first)
    assert len(await colors(world)) == 200

    # A commit changes three.
    repository.write({f"deploy/{name}.yaml": document(name, "Blue") for name in names[:3]})
    second = repository.commit("three are blue", "-S")
    await until_ready(world, second)
    assert sum(each == "Blue" for each in (await colors(world)).values()) == 3
    assert await declarations(world, names[:5]) == dict(zip(names, [2, 2, 2, 1, 1], strict=False))

    # A commit removes 90.
    repository.remove(*(f"deploy/{name}.yaml" for name in names[110:]))
    third = repository.commit("far too many", "-S")
    held = await world.until_outcome(SHOP, "Held", reason="PruneGuard")
    assert "90 of its 200 resources would be withdrawn" in held.message
    assert held.message.startswith(f"commit {third[:12]} by Ann <ann@example.org>: ")
    await world.until_observed_again(3)
    assert len(await colors(world)) == 200
    reply = await world.ask_as("ann", SHOP, Approved("PruneGuard", reason="intended"))
    assert reply.accepted
    await until_ready(world, third)
    assert sorted(await colors(world)) == names[:110]

    # A commit breaks one, and changes another.
    repository.write(
        {
            "deploy/s007.yaml": document("s007", "Green"),
            "deploy/s008.yaml": "# broken\n\n" + document("s008", "Mauve"),
        }
    )
    bad = repository.commit("broken", "-S")
    message = await until_problem(world, "BadCommit")
    assert message.startswith(f"commit {bad[:12]} by Ann <ann@example.org>: deploy/s008.yaml:6: ")
    assert "Mauve" in message
    assert message.endswith(f"; commit {third[:12]} by Ann <ann@example.org> stays applied")
    assert (await colors(world))["s007"] == "Red", "all or nothing"

    # A commit is unsigned.
    repository.write({"deploy/s008.yaml": document("s008", "Yellow")})
    repository.commit("fixed without a signature")
    message = await until_problem(world, "Unsigned")
    assert "Ann <ann@example.org>" in message
    assert (await colors(world))["s007"] == "Red"

    # The branch is force-pushed to a commit without the previous history.
    repository.git("checkout", "--quiet", "--orphan", "again")
    forced = repository.commit("history begins here", "-S")
    repository.git("branch", "--force", "main", "again")
    row = await until_ready(world, forced)
    assert "is not an ancestor" in row.outputs["head"]["revision"]["rewritten"]
    assert (await colors(world))["s007"] == "Green"
    assert (await colors(world))["s008"] == "Yellow"

    # The branch is deleted.
    repository.git("branch", "--quiet", "-D", "main")
    repository.git("symbolic-ref", "HEAD", "refs/heads/nowhere")
    repository.git("branch", "--quiet", "-D", "again")
    await until_problem(world, "RefGone")
    assert len(await colors(world)) == 110


async def test_a_child_that_is_edited_or_withdrawn_out_of_band_is_restored(
    world: World, repository: Repository
):
    repository.write({"a.yaml": document("a"), "b.yaml": document("b")})
    await world.declare_all([source(repository)])
    await until_ready(world, repository.commit())
    await world.declare("a", color="Blue")
    await world.withdraw("b")

    async def are_restored() -> bool:
        return await colors(world) == {"a": "Red", "b": "Red"} and (
            await declarations(world, ["a", "b"]) == {"a": 3, "b": 2}
        )

    await world.until(are_restored, "both are declared again")
    await until_ready(world)


async def test_a_requested_read_does_not_wait_for_the_interval(
    world: World, repository: Repository
):
    repository.write({"a.yaml": document("a")})
    await world.declare_all([source(repository, intervalSeconds=3600)])
    await until_ready(world, repository.commit())
    repository.write({"a.yaml": document("a", "Blue")})
    commit = repository.commit()
    await world.until_observed_again(3)
    assert await colors(world) == {"a": "Red"}
    await world.publish(SHOP, ReconcileRequested("a webhook"))
    await until_ready(world, commit)
    assert await colors(world) == {"a": "Blue"}


async def test_a_source_follows_tags_and_version_ranges(world: World, repository: Repository):
    for version, color in (("v1.0.0", "Red"), ("v1.2.0", "Blue"), ("v2.0.0", "Green")):
        repository.write({"a.yaml": document("a", color)})
        repository.commit(version)
        repository.git("tag", "-a", version, "-m", version)
    await world.declare_all([source(repository, ref={"semver": "^1.0"})])
    await until_ready(world)
    assert await colors(world) == {"a": "Blue"}
    await world.declare_all([source(repository, ref={"tag": "v1.0.0"})])

    async def is_red() -> bool:
        return await colors(world) == {"a": "Red"}

    await world.until(is_red, "the tag is followed")
    await world.declare_all([source(repository, ref={"tag": "v9"})])
    assert "tag 'v9' does not exist" in await until_problem(world, "RefGone")
    assert await colors(world) == {"a": "Red"}


async def test_a_source_waits_for_its_dependencies(world: World, repository: Repository):
    repository.write({"a.yaml": document("a")})
    repository.commit()
    await world.declare_all([source(repository, dependsOn=["Shape/base"])])
    waiting = await world.until_outcome(SHOP, "Waiting", reason="ReferenceMissing")
    assert waiting.message == "waiting for default/Shape/base: it is not declared"
    await world.declare("base")
    await until_ready(world)
    assert sorted(await colors(world)) == ["a", "base"]


async def test_nothing_is_declared_elsewhere_or_twice(world: World, repository: Repository):
    elsewhere = document("b").replace("name: b", "name: b, namespace: other")
    repository.write({"a.yaml": document("a") + "---\n" + elsewhere, "z.yaml": document("a")})
    repository.commit()
    await world.declare_all([source(repository)])
    message = await until_problem(world, "BadCommit")
    assert "a.yaml:6: other/Shape/b: must be in the namespace of its set" in message
    assert "z.yaml:1: default/Shape/a is already declared in a.yaml:1" in message
    assert await colors(world) == {}


async def test_the_newest_commit_waits_for_approval(world: World, repository: Repository):
    names = [f"s{number}" for number in range(30)]
    repository.write({f"{name}.yaml": document(name) for name in names})
    await world.declare_all([source(repository)])
    await until_ready(world, repository.commit())
    repository.remove(*(f"{name}.yaml" for name in names[12:]))
    repository.commit()
    await world.until_outcome(SHOP, "Held", reason="PruneGuard")
    await world.stop_reconciler()
    repository.remove(*(f"{name}.yaml" for name in names[1:12]))
    repository.commit()
    await world.start_reconciler()

    async def is_reported() -> bool:
        row = await world.client.status(SHOP)
        return row is not None and "29 of its 30" in row.message

    await world.until(is_reported, "the newer commit is waiting")
    assert len(await colors(world)) == 30
    actions = [event for event in await world.facts(SHOP) if isinstance(event, ActionDecided)]
    assert len(actions) == 2


@pytest.fixture
def renderers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "if [ -e broken ]; then echo $PWD is broken >&2; exit 1; fi; sed s/COLOR/Blue/ *.in"
    file = tmp_path / "renderers.yaml"
    file.write_text(f"sed: [sh, -c, '{script}']")
    monkeypatch.setenv("RECONCILER_RENDERERS", str(file))


async def test_rendered_manifests_are_declared_and_renderer_errors_reported_once(
    renderers: None, world: World, repository: Repository
):
    repository.write({"deploy/a.in": document("a", "COLOR")})
    await world.declare_all([source(repository, path="deploy", render="sed")])
    await until_ready(world, repository.commit())
    assert await colors(world) == {"a": "Blue"}
    [declared] = [each for each in await world.facts(shape("a")) if type(each) is SpecDeclared]
    assert declared.reason.startswith("part of default/GitSource/shop: sed:1: commit ")
    repository.write({"deploy/broken": ""})
    repository.commit()
    message = await until_problem(world, "BadCommit")
    assert "sed: exit status 1: deploy is broken; commit" in message
    await world.until_observed_again(2)
    position_before = await world.log.last_position()
    await world.until_observed_again(12)  # over more than two intervals
    assert await world.log.last_position() == position_before


async def test_the_plan_of_a_withdrawal_contains_all_declared_resources(
    world: World, repository: Repository
):
    repository.write({f"s{number}.yaml": document(f"s{number}") for number in range(3)})
    await world.declare_all([source(repository)])
    await until_ready(world, repository.commit())
    plan = await world.client.plan(withdraw=[SHOP])
    resources = {each.resource: each for each in plan.resources}
    assert resources.keys() == {str(SHOP), *(f"default/Shape/s{number}" for number in range(3))}
    [action] = resources[str(SHOP)].actions
    assert [each.step for each in action.parts] == ["Withdraw"] * 3
    assert [each.operation for each in resources["default/Shape/s1"].actions] == ["Delete"]
    assert len(await colors(world)) == 3


async def test_content_written_out_of_band_blocks_nothing_and_declares_nothing_elsewhere(
    world: World, repository: Repository
):
    forged_set = {"parent": "default/GitSource/hand", "uid": "u", "key": "k"}
    content = {
        "parent": "default/ManifestSet/stolen",
        "children": {"other/Shape/stolen": "d"},
        "manifests": {
            "d": {
                "apiVersion": "shapes/v1",
                "labels": {},
                "annotations": {},
                "spec": {"type": "Square", "color": "Red"},
            }
        },
    }
    digest, index = "0" * 32, "1" * 32
    own = {"providerConfigRef": {"name": CONFIG}}
    await world.declare_all(
        [
            Manifest(RECONCILER_API_VERSION, kind, Metadata(name), spec)
            for kind, name, spec in (
                (COMPOSED_SET_KIND, "GitSource-hand", forged_set),
                (COMPOSED_CONTENT_KIND, digest, content),
                (COMPOSED_CONTENT_KIND, index, {"parent": content["parent"], "chunks": [digest]}),
            )
        ]
    )
    stolen = ResourceKey("default", "ManifestSet", "stolen")
    await world.declare_all(
        [Manifest("composition/v1", stolen.kind, Metadata("stolen"), {**own, "content": index})]
    )
    failed = await world.until_outcome(stolen, "Failed")
    assert "must be in the namespace of its set" in failed.message

    repository.write({"a.yaml": document("a")})
    await world.declare_all([source(repository)])
    await until_ready(world, repository.commit())
    assert await colors(world) == {"a": "Red"}


async def test_one_of_two_concurrent_declarations_of_a_set_fails(world: World):
    sets = world.client.manifest_sets()
    key = ResourceKey("default", "ManifestSet", "race")
    parts = [Part(manifest(name)) for name in ("a", "b")]
    first_change, first_content = await sets.change(key, parts[:1], prune=False)
    other_change, other_content = await sets.change(key, parts[1:], prune=False)
    await sets.declare(first_change, first_content)
    with pytest.raises(DeclarationRefusedError):
        await sets.declare(other_change, other_content)
    retried_change, retried_content = await sets.change(key, parts[1:], prune=False)
    await sets.declare(retried_change, retried_content)

    async def both_exist() -> bool:
        return sorted(await colors(world)) == ["a", "b"]

    await world.until(both_exist, "both exist")
    await world.publish(key, Withdrawn())
    await world.until_outcome(key, "Deleted")

    async def is_all_deleted() -> bool:
        kinds = {row.kind for row in await world.client.statuses() if row.declared}
        return COMPOSED_CONTENT_KIND not in kinds

    await world.until(is_all_deleted, "no content is left")


async def test_a_source_in_the_system_namespace_declares_a_kind_and_its_resources(
    world: World, repository: Repository
):
    definition = """
apiVersion: reconciler/v1
kind: KindDefinition
metadata: {name: Badge, namespace: system}
spec:
  apiVersion: badges/v1
  provider: badges
  over: Shape
  fields: {color: {values: [Red, Blue]}}
  constants: {type: Circle}
---
apiVersion: reconciler/v1
kind: ProviderConfig
metadata: {name: badges, namespace: system}
spec: {provider: badges, endpoint: URL}
---
apiVersion: badges/v1
kind: Badge
metadata: {name: pin, namespace: team}
spec: {color: Blue, providerConfigRef: {name: badges}}
"""
    repository.write({"all.yaml": definition.replace("URL", world.human.url)})
    commit = repository.commit()
    created_manifest = source(repository)
    metadata = msgspec.structs.replace(created_manifest.metadata, namespace="system")
    await world.declare_all([msgspec.structs.replace(created_manifest, metadata=metadata)])
    key = ResourceKey("system", "GitSource", "shop")
    pin = ResourceKey("team", "Badge", "pin")
    await world.until_outcome(pin, "Converged")
    assert (await colors(world))["pin"] == "Blue"
    assert commit[:12] in next(
        each.reason for each in await world.facts(pin) if isinstance(each, SpecDeclared)
    )
    await world.publish(key, Withdrawn())
    await world.until_outcome(key, "Deleted")
    assert await colors(world) == {}

    async def is_all_deleted() -> bool:
        rows = [row for row in await world.client.statuses() if row.declared]
        return {row.name for row in rows} == {"default", CONFIG}

    await world.until(is_all_deleted, "the definition and configuration are also deleted")
