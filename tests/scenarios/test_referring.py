"""A resource takes values from others: scenario 36, with a real server and a real folder."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from events.intake import Withdrawn
from events.log import ActionDecided, SpecResolved
from events.manifest import Manifest
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from infra.jetstream.connection import api_request
from infra.providers.file import FILE
from infra.providers.jetstream.consumer import CONSUMER
from infra.providers.jetstream.stream import STREAM
from reconciler.provider.kind import KindRegistry
from tests.scenarios.conftest import bare_world_on_own_server as bare_world
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
    """A world with the example's configurations and a new folder."""
    world = bare_world
    world.kinds = KindRegistry([STREAM, CONSUMER, FILE])
    world.secrets = tmp_path / "secrets"
    await world.start_reconciler()
    for each in DOCUMENTS:
        if each.kind == "ProviderConfig":
            spec = {**each.spec, "endpoint": root.as_uri(), "resyncSeconds": 0.3}
            await world.configure(msgspec.convert(spec, ProviderConfigSpec), each.metadata.name)
    bus = ProviderConfigSpec("jetstream", world.server.url, resync_seconds=0.3)
    await world.configure(bus, "jetstream")  # as `up --with jetstream`
    return world


def env(root: Path) -> str:
    path = root / "etc" / "orders.env"
    return path.read_text() if path.exists() else ""


async def consumers(world: World) -> list[str]:
    names = (await api_request(world.nc, "CONSUMER.NAMES.orders", {}))["consumers"]
    return list(names)


async def streams(world: World) -> list[str]:
    return list((await api_request(world.nc, "STREAM.NAMES", {}))["streams"])


async def test_36_each_resource_waits_for_its_target_and_reports_it(example: World, root: Path):
    world = example
    file, consumer, stream = (_manifest_of_kind(kind) for kind in ("File", "Consumer", "Stream"))
    await world.declare_all([file])
    waiting = await world.until_outcome(FILE_KEY, "Waiting", reason="ReferenceMissing")
    assert waiting.message.startswith("waiting for default/")
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


async def test_36_a_referenced_resource_is_kept_and_deleted_last(example: World, root: Path):
    world = example
    await world.declare_all(MANIFESTS)
    for key in KEYS:
        await world.until_outcome(key, "Converged")
    await world.publish(STREAM_KEY, Withdrawn())
    await world.publish(CONSUMER_KEY, Withdrawn())
    held = await world.until_outcome(STREAM_KEY, "Held", reason="Referenced")
    assert "default/Consumer/orders-billing" in held.message
    assert "default/File/orders-env" in held.message
    await world.until_outcome(CONSUMER_KEY, "Held", reason="Referenced")
    (root / "etc" / "orders.env").unlink()
    await world.until_observed_again()
    await world.until_outcome(FILE_KEY, "Converged")
    assert env(root), "what is kept for the file still serves it"
    await world.publish(FILE_KEY, Withdrawn())
    for key in KEYS:
        await world.until_outcome(key, "Deleted")
    assert not env(root)
    assert "orders" not in await streams(world)


async def test_a_secret_is_written_and_rotated_but_never_logged(example: World, root: Path):
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
    stored = _read_all_files(world.server.data_dir)
    assert b"tls-key" in stored, "the right folder is searched"
    assert b"planted-s3cr3t" not in stored
    assert base64.b64encode(b"planted-s3cr3t")[:-2] not in stored


def _read_all_files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def _manifest_of_kind(kind: str) -> Manifest:
    (manifest,) = (each for each in MANIFESTS if each.kind == kind)
    return manifest


def _file(name: str, content: Any, **more: Any) -> Manifest:
    spec = {"providerConfigRef": {"name": "files"}, "content": content, **more}
    plain = {"apiVersion": "files/v1", "kind": "File", "metadata": {"name": name}, "spec": spec}
    return msgspec.convert(plain, Manifest)


def _put_secret(world: World, name: str, value: str) -> None:
    assert world.secrets is not None
    path = world.secrets / "default" / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(value + "\n")
