"""A resource takes values from others: scenario 36, with a real folder."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import msgspec
import pytest

from events.intake import Declared
from events.manifest import EXTERNAL_NAME_ANNOTATION, Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from infra.providers.file import FILE
from reconciler.provider.kind import KindRegistry
from tests.memory_bus.intake import partition_of
from tests.permutations.world import MemoryWorld
from tests.scenarios.test_referring import root

__all__ = ["root"]


@pytest.fixture
async def example(bare_world: MemoryWorld, root: Path) -> MemoryWorld:
    """A world with one kind, whose objects are files in a folder."""
    bare_world.kinds = KindRegistry([FILE])
    await bare_world.start_reconciler()
    await bare_world.configure(
        ProviderConfigSpec("file", root.as_uri(), resync_seconds=0.3), "files"
    )
    return bare_world


async def test_36_a_changed_output_updates_its_references(example: MemoryWorld, root: Path):
    world = example
    number = ResourceKey("default", "File", "number")
    copy = ResourceKey("default", "File", "copy")
    await world.declare_all([_file("number", "abc"), _file("copy", _size_of("number"))])
    await world.until_outcome(copy, "Failed", reason="InvalidInput")  # a number is not text
    filled = _file("copy", "${size}", values={"size": _size_of("number")})
    await world.declare_all([filled])
    await world.until_outcome(copy, "Converged")
    assert (root / "copy").read_text() == "3"
    await world.declare_all([_file("number", "abcdef")])

    async def is_followed() -> bool:
        return (root / "copy").read_text() == "6"

    await world.until(is_followed, "the copy is updated")
    await world.until_outcome(number, "Converged", generation=2)
    await world.until_outcome(copy, "Converged")


async def test_36_a_cycle_is_reported_on_each_member_until_one_changes(
    example: MemoryWorld,
):
    world = example
    names = _names_in_one_partition(3)
    keys = [ResourceKey("default", "File", name) for name in names]
    await world.stop_reconciler()  # so that all are decided in one batch
    await world.declare_all(
        [_file(name, _path_of(names[number - 1])) for number, name in enumerate(names)]
    )
    await world.start_reconciler()
    for key in keys:
        outcome = await world.until_outcome(key, "Waiting", reason="DependencyCycle")
        assert all(f"default/File/{name}" in outcome.message for name in names)
    await world.declare_all([_file(names[0], "plain")])
    for key in keys:
        await world.until_outcome(key, "Converged")


def _file(name: str, content: Any, **more: Any) -> Manifest:
    spec = {"providerConfigRef": {"name": "files"}, "content": content, **more}
    plain = {"apiVersion": "files/v1", "kind": "File", "metadata": {"name": name}, "spec": spec}
    return msgspec.convert(plain, Manifest)


def _size_of(name: str) -> dict[str, str]:
    return {"$ref": f"File/{name}", "field": "outputs.bytes"}


def _names_in_one_partition(count: int) -> list[str]:
    """Return names of files whose messages are in one partition of the intake."""
    expected = partition_of(ResourceKey("default", "File", "a"))
    same = [
        name
        for name in string.ascii_lowercase
        if partition_of(ResourceKey("default", "File", name)) == expected
    ]
    return same[:count]


def _path_of(name: str) -> dict[str, str]:
    return {"$ref": f"File/{name}", "field": "outputs.path"}


async def test_a_cycle_of_several_resources_is_refused(
    example: MemoryWorld,
):
    def file(name: str, *, needs: str) -> Declared:
        spec = {
            "content": {"$ref": f"File/{needs}", "field": "name"},
            "providerConfigRef": {"name": "files"},
        }
        return Declared(
            Manifest(
                "files/v1",
                "File",
                Metadata(name, annotations={EXTERNAL_NAME_ANNOTATION: f"etc/{name}"}),
                spec,
            )
        )

    def key(name: str) -> ResourceKey:
        return ResourceKey("default", "File", name)

    for name, needs in (("a", "b"), ("b", "c")):
        assert (await example.ask(key(name), file(name, needs=needs))).accepted
    refused = await example.ask(key("c"), file("c", needs="a"))
    assert (refused.accepted, refused.reason) == (False, "DependencyCycle")
    cycle = "default/File/c → default/File/a → default/File/b → default/File/c"
    assert refused.message == f"the references form a cycle, {cycle}; remove one of them"
    assert (await example.ask(key("b"), file("b", needs="d"))).accepted
    reply = await example.ask(key("c"), file("c", needs="a"))
    assert reply.accepted, "the replaced declaration no longer counts"
