"""A resource takes values from others: scenario 36, over a real folder."""

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


async def test_36_a_changed_output_is_followed(example: MemoryWorld, root: Path):
    world = example
    number = ResourceKey("default", "File", "number")
    copy = ResourceKey("default", "File", "copy")
    await world.declare_all([_file("number", "abc"), _file("copy", _size_of("number"))])
    await world.until_outcome(copy, "Failed", reason="InvalidInput")  # a number is no text
    filled = _file("copy", "${size}", values={"size": _size_of("number")})
    await world.declare_all([filled])
    await world.until_outcome(copy, "Converged")
    assert (root / "copy").read_text() == "3"
    await world.declare_all([_file("number", "abcdef")])

    async def is_followed() -> bool:
        return (root / "copy").read_text() == "6"

    await world.until(is_followed, "the copy follows")
    await world.until_outcome(number, "Converged", generation=2)
    await world.until_outcome(copy, "Converged")


async def test_36_a_circle_is_named_on_each_member_and_ends_with_one(example: MemoryWorld):
    world = example
    names = _of_one_partition(3)
    keys = [ResourceKey("default", "File", name) for name in names]
    await world.stop_reconciler()  # decided in one batch, none sees the others
    await world.declare_all(
        [_file(name, _path_of(names[number - 1])) for number, name in enumerate(names)]
    )
    await world.start_reconciler()
    for key in keys:
        stands = await world.until_outcome(key, "Waiting", reason="DependencyCycle")
        assert all(f"default/File/{name}" in stands.message for name in names)
    await world.declare_all([_file(names[0], "plain")])
    for key in keys:
        await world.until_outcome(key, "Converged")


def _file(name: str, content: Any, **more: Any) -> Manifest:
    spec = {"providerConfigRef": {"name": "files"}, "content": content, **more}
    plain = {"apiVersion": "files/v1", "kind": "File", "metadata": {"name": name}, "spec": spec}
    return msgspec.convert(plain, Manifest)


def _size_of(name: str) -> dict[str, str]:
    return {"$ref": f"File/{name}", "field": "outputs.bytes"}


def _of_one_partition(count: int) -> list[str]:
    """Name files whose messages are in one partition of the intake."""
    expected = partition_of(ResourceKey("default", "File", "a"))
    same = [
        name
        for name in string.ascii_lowercase
        if partition_of(ResourceKey("default", "File", name)) == expected
    ]
    return same[:count]


def _path_of(name: str) -> dict[str, str]:
    return {"$ref": f"File/{name}", "field": "outputs.path"}


async def test_a_circle_of_several_is_refused_by_the_states_of_those_referred_to(
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
    way = "default/File/c → default/File/a → default/File/b → default/File/c"
    assert refused.message == f"the references form a cycle, {way}; remove one of them"
    assert (await example.ask(key("b"), file("b", needs="d"))).accepted
    answer = await example.ask(key("c"), file("c", needs="a"))
    assert answer.accepted, "what was redeclared does not count any more"
