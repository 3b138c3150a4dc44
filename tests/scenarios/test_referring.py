"""A resource takes values from others: scenario 36, over a real server and a real folder."""

from __future__ import annotations

import base64
import string
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from events.intake import Declared, Withdrawn
from events.log import ActionDecided, SpecResolved
from events.manifest import EXTERNAL_NAME_ANNOTATION, Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from infra.bus.streams import PARTITIONS
from infra.jetstream.connection import api_request
from infra.providers.file import FILE
from infra.providers.jetstream.consumer import CONSUMER
from infra.providers.jetstream.stream import STREAM
from reconciler.provider.kind import KindRegistry
from tests.scenarios.conftest import bare_world_of_its_own as bare_world
from tests.scenarios.harness import World

__all__ = ["bare_world"]

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders" / "manifests.yaml"
DOCUMENTS = [
    msgspec.convert(document, Manifest) for document in yaml.safe_load_all(EXAMPLE.read_text())
]
MANIFESTS = [each for each in DOCUMENTS if each.kind != "ProviderConfig"]
STREAM_KEY = ResourceKey("default", "Stream", "orders")
CONSUMER_KEY = ResourceKey("default", "Consumer", "orders-billing")
FILE_KEY = ResourceKey("default", "File", "orders-env")
KEYS = (FILE_KEY, CONSUMER_KEY, STREAM_KEY)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / ".reconciler-root").touch()
    return folder


@pytest.fixture
async def example(bare_world: World, root: Path, tmp_path: Path) -> World:
    """The example's configurations, on this world's bus and in a folder of its own."""
    world = bare_world
    world.kinds = KindRegistry([STREAM, CONSUMER, FILE])
    world.secrets = tmp_path / "secrets"
    await world.start_reconciler()
    for each in DOCUMENTS:
        if each.kind == "ProviderConfig":
            endpoint = world.server.url if each.metadata.name == "messages" else root.as_uri()
            spec = {**each.spec, "endpoint": endpoint, "resyncSeconds": 0.3}
            await world.configure(msgspec.convert(spec, ProviderConfigSpec), each.metadata.name)
    return world


def env(root: Path) -> str:
    path = root / "etc" / "orders.env"
    return path.read_text() if path.exists() else ""


async def consumers(world: World) -> list[str]:
    names = (await api_request(world.nc, "CONSUMER.NAMES.orders", {}))["consumers"]
    return list(names)


async def streams(world: World) -> list[str]:
    return list((await api_request(world.nc, "STREAM.NAMES", {}))["streams"])


async def test_36_each_waits_for_the_one_before_and_says_so(example: World, root: Path):
    world = example
    file, consumer, stream = (_of(kind) for kind in ("File", "Consumer", "Stream"))
    await world.declare_all([file])
    waiting = await world.until_outcome(FILE_KEY, "Waiting", reason="ReferenceMissing")
    assert waiting.message.startswith("waits for default/")
    await world.declare_all([consumer, stream])
    for key in KEYS:
        await world.until_outcome(key, "Converged")
    assert env(root) == "ORDERS_STREAM=orders\nORDERS_CONSUMER=orders/billing\n"
    assert await consumers(world) == ["billing"]
    events = await world.facts(FILE_KEY)
    resolved = next(each for each in events if isinstance(each, SpecResolved))
    decided = next(each for each in events if isinstance(each, ActionDecided))
    assert resolved.fields["content"] == env(root), "the value is in the log, before the effect"
    assert events.index(resolved) < events.index(decided)


async def test_36_what_is_needed_is_kept_and_goes_last(example: World, root: Path):
    world = example
    await world.declare_all(MANIFESTS)
    for key in KEYS:
        await world.until_outcome(key, "Converged")
    await world.tell(STREAM_KEY, Withdrawn())
    await world.tell(CONSUMER_KEY, Withdrawn())
    held = await world.until_outcome(STREAM_KEY, "Held", reason="Referenced")
    assert "default/Consumer/orders-billing" in held.message
    assert "default/File/orders-env" in held.message
    await world.until_outcome(CONSUMER_KEY, "Held", reason="Referenced")
    await world.until_outcome(FILE_KEY, "Waiting", reason="ReferenceMissing")
    assert env(root), "nothing is undone"
    await world.tell(FILE_KEY, Withdrawn())
    for key in KEYS:
        await world.until_outcome(key, "Deleted")
    assert not env(root)
    assert "orders" not in await streams(world)


async def test_36_a_changed_output_is_followed(example: World, root: Path):
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


async def test_36_a_circle_is_named_on_each_member_and_ends_with_one(example: World):
    world = example
    names = _of_one_partition(3)
    keys = [ResourceKey("default", "File", name) for name in names]
    await world.stop_reconciler()  # decided in one batch, none sees the others
    await world.declare_all(
        [_file(name, _path_of(names[number - 1])) for number, name in enumerate(names)]
    )
    await world.start_reconciler()
    for key in keys:
        stands = await world.until_outcome(key, "Waiting", reason="Circle")
        assert all(f"default/File/{name}" in stands.message for name in names)
    await world.declare_all([_file(names[0], "plain")])
    for key in keys:
        await world.until_outcome(key, "Converged")


async def test_a_secret_is_written_and_rotated_and_never_in_the_log(example: World, root: Path):
    world = example
    key = ResourceKey("default", "File", "key")
    await world.declare_all([_file("key", {"$secret": "tls-key"}, mode="0600")])
    await world.until_outcome(key, "Waiting", reason="SecretMissing")
    for value in ("planted-s3cr3t-1", "planted-s3cr3t-2"):
        _put_secret(world, "tls-key", value)

        async def is_written(value: str = value) -> bool:
            path = root / "key"
            return path.exists() and path.read_text() == value

        await world.until(is_written, "the file has the secret")
        await world.until_outcome(key, "Converged")
    stored = _all_bytes_below(world.server.data_dir)
    assert b"tls-key" in stored, "what is searched is the right folder"
    assert b"planted-s3cr3t" not in stored
    assert base64.b64encode(b"planted-s3cr3t")[:-2] not in stored


def _all_bytes_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def _of(kind: str) -> Manifest:
    (found,) = (each for each in MANIFESTS if each.kind == kind)
    return found


def _file(name: str, content: Any, **more: Any) -> Manifest:
    spec = {"providerConfigRef": {"name": "files"}, "content": content, **more}
    plain = {"apiVersion": "files/v1", "kind": "File", "metadata": {"name": name}, "spec": spec}
    return msgspec.convert(plain, Manifest)


def _size_of(name: str) -> dict[str, str]:
    return {"$ref": f"File/{name}", "field": "outputs.bytes"}


def _of_one_partition(count: int) -> list[str]:
    """Name files whose messages the server puts into one partition: by FNV-1a of their tokens."""

    def partition(name: str) -> int:
        found = 0x811C9DC5
        for byte in f"defaultFile{name}".encode():
            found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
        return found % PARTITIONS

    return [name for name in string.ascii_lowercase if partition(name) == partition("a")][:count]


def _path_of(name: str) -> dict[str, str]:
    return {"$ref": f"File/{name}", "field": "outputs.path"}


def _put_secret(world: World, name: str, value: str) -> None:
    assert world.secrets is not None
    path = world.secrets / name
    path.touch(mode=0o600)
    path.write_text(value + "\n")


async def test_a_circle_of_several_is_refused_by_the_states_of_those_referred_to(example: World):
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
    assert (refused.accepted, refused.reason) == (False, "Circle")
    way = "default/File/c → default/File/a → default/File/b → default/File/c"
    assert refused.message == f"each would wait for the next: {way}: leave one out"
    assert (await example.ask(key("b"), file("b", needs="d"))).accepted
    answer = await example.ask(key("c"), file("c", needs="a"))
    assert answer.accepted, "what was redeclared does not count any more"
