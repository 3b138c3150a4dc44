"""No namespace can use a secret of the roles or of another namespace without a grant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from events.manifest import Manifest
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from infra.providers.file import FILE
from infra.secrets import FileSecrets
from reconciler.provider.kind import KindRegistry
from reconciler.provider.secrets import SecretKey
from tests.scenarios.conftest import api_url
from tests.scenarios.conftest import bare_world_on_own_server as bare_world
from tests.scenarios.harness import World

__all__ = ["api_url", "bare_world"]

URL = "nats://planted-user:planted-password@nats.example.com"
DB = SecretKey("billing", "db")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / ".reconciler-root").touch()
    return folder


@pytest.fixture
def secrets(tmp_path: Path) -> FileSecrets:
    return FileSecrets(tmp_path / "secrets")


@pytest.fixture
async def world(
    bare_world: World,
    root: Path,
    tmp_path: Path,
    secrets: FileSecrets,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    del secrets
    monkeypatch.setenv("RECONCILER_PLANTED_URL", URL)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", URL)
    monkeypatch.setenv("TLS_KEY", "planted-tls-key")
    monkeypatch.setenv("RECONCILER_SECRET_ENV", "billing/TLS_KEY")
    world = bare_world
    world.kinds = KindRegistry([FILE])
    world.secrets = tmp_path / "secrets"
    await world.start_reconciler()
    await world.configure(ProviderConfigSpec("file", root.as_uri(), resync_seconds=0.3), "files")
    return world


def file(own_namespace: str, file_name: str, **secret: str) -> Manifest:
    content = {"$secret" if key == "secret" else key: value for key, value in secret.items()}
    plain: dict[str, Any] = {
        "apiVersion": "files/v1",
        "kind": "File",
        "metadata": {"name": file_name, "namespace": own_namespace},
        "spec": {"providerConfigRef": {"name": "files"}, "content": content},
    }
    return msgspec.convert(plain, Manifest)


def key_of(manifest: Manifest) -> ResourceKey:
    return ResourceKey(manifest.metadata.namespace, manifest.kind, manifest.metadata.name)


async def test_no_declaration_can_read_the_roles_environment(world: World, root: Path) -> None:
    hostile = [
        file("shop", "url", secret="RECONCILER_PLANTED_URL", store="env"),
        file("shop", "cloud", secret="AWS_SECRET_ACCESS_KEY", store="env"),
        file("shop", "home", secret="HOME", store="env"),
        file("shop", "foreign", secret="TLS_KEY", store="env"),
        file("shop", "named", secret="TLS_KEY", store="env", namespace="billing"),
    ]
    listed = file("billing", "listed", secret="TLS_KEY", store="env")
    await world.declare_all([*hostile, listed])
    await world.until_outcome(key_of(listed), "Converged")
    for each in hostile:
        await world.until_outcome(key_of(each), "Waiting", reason="SecretMissing")
    assert (root / "listed").read_text() == "planted-tls-key"
    assert not any((root / key_of(each).name).exists() for each in hostile)


async def test_a_secret_of_another_namespace_needs_a_grant(
    world: World, root: Path, secrets: FileSecrets
) -> None:
    secrets.put(DB, "planted-db-1")
    own = file("billing", "own", secret="db")
    same_name = file("shop", "same", secret="db")
    foreign = file("shop", "foreign", secret="db", namespace="billing")
    absent = file("shop", "absent", secret="nothing", namespace="billing")
    await world.declare_all([own, same_name, foreign, absent])
    await world.until_outcome(key_of(own), "Converged")
    messages = [
        (await world.until_outcome(key_of(each), "Waiting", reason="SecretMissing")).message
        for each in (same_name, foreign, absent)
    ]
    assert messages[1] == messages[2].replace("nothing", "db"), "existence is not revealed"
    assert "is not granted to this namespace" in messages[1]
    assert "granted" not in messages[0]

    secrets.grants.add(DB, "shop")
    await world.until_outcome(key_of(foreign), "Converged")
    assert (root / "foreign").read_text() == "planted-db-1"

    secrets.grants.discard(DB, "shop")
    await world.until_outcome(key_of(foreign), "Waiting", reason="SecretMissing")
    secrets.put(DB, "planted-db-2")

    async def is_rotated() -> bool:
        return (root / "own").read_text() == "planted-db-2"

    await world.until(is_rotated, "the owner's file has the new value")
    assert (root / "foreign").read_text() == "planted-db-1", (
        "a revoked reader does not receive new values"
    )
    assert not (root / "same").exists()
