"""The ``File`` kind's page: its manifests are applied, and have the described effects."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
import yaml

from events.log import DriftDetected
from events.manifest import Manifest
from infra.embedded import EmbeddedServer
from infra.providers.file_root import ROOT_MARKER
from infra.secrets import open_stores
from reconciler.provider.secrets import SecretKey
from reconciler.sdk import Client, client_on
from reconciler.wiring import ROLES, initialize, open_connection, run_roles

PAGE = (Path(__file__).parents[2] / "docs/kinds/file.md").read_text()
PATIENCE_SECONDS = 30
PLANTED = "planted-s3cr3t-of-the-page-90c1"


def manifests(root: Path) -> dict[str, Manifest]:
    """The page's manifests by name, with the root replaced and more frequent listings."""
    blocks = re.findall(r"<!-- applied by [^\n]*-->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```yaml") == 2
    text = "---\n".join(blocks).replace("file:///srv/files", root.as_uri())
    read = [msgspec.convert(document, Manifest) for document in yaml.safe_load_all(text)]
    manifests_by_name = {manifest.metadata.name: manifest for manifest in read}
    frequent = {"resyncSeconds": 0.2, "leastResyncSeconds": 0.1}
    manifests_by_name["etc"] = msgspec.structs.replace(
        manifests_by_name["etc"], spec={**manifests_by_name["etc"].spec, **frequent}
    )
    return manifests_by_name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    assert f"touch /srv/files/{ROOT_MARKER}" in PAGE
    (folder / ROOT_MARKER).touch()
    return folder


@pytest.fixture
async def client(tmp_path: Path, root: Path) -> AsyncIterator[Client]:
    """Run all roles on their own server; yield a client."""
    secrets = tmp_path / "secrets"
    await open_stores(secrets).by_name["files"].write(SecretKey("default", "app-password"), PLANTED)
    server = EmbeddedServer()
    await server.start(tmp_path / "nats")
    try:
        async with open_connection(server.url) as nc:
            await initialize(nc)
            async with (
                run_roles(nc, ROLES, secrets=secrets),
                client_on(nc, source="test") as connected,
            ):
                await connected.declare(manifests(root)["etc"])
                yield connected
    finally:
        await server.stop()


async def until(holds: Callable[[], bool], what: str) -> None:
    for _ in range(PATIENCE_SECONDS * 20):
        if holds():
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"{what}: not within {PATIENCE_SECONDS} s")


async def outcome(client: Client, manifest: Manifest, generation: int) -> str:
    result = await client.wait_for(
        manifest.key, generation=generation, timeout_seconds=PATIENCE_SECONDS
    )
    return result.outcome


async def test_the_smallest_file_is_created_with_its_default_mode(
    client: Client, root: Path
) -> None:
    manifest, path = manifests(root)["motd"], root / "motd"
    generation = (await client.declare(manifest)).generation
    assert await outcome(client, manifest, generation) == "Converged"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("Welcome\n", 0o644)


async def test_the_file_is_created_maintained_and_removed(client: Client, root: Path) -> None:
    manifest, path = manifests(root)["app-config"], root / "app/config.ini"
    generation = (await client.declare(manifest)).generation
    assert await outcome(client, manifest, generation) == "Converged"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("[server]\nport = 8080\n", 0o640)

    path.write_text("[server]\nport = 9090\n")
    path.chmod(0o666)
    await until(
        lambda: "8080" in path.read_text() and path.stat().st_mode & 0o777 == 0o640,
        "content and mode are restored",
    )
    history = [each.event.data for each in await client.history(manifest.key)]
    paths = {
        difference.path
        for each in history
        if isinstance(each, DriftDetected)
        for difference in each.differences
    }
    assert "content.sha256" in paths

    withdrawal = await client.withdraw(manifest.key)
    assert await outcome(client, manifest, withdrawal.generation) == "Deleted"
    assert not path.parent.exists(), "Reconciler created it"


async def test_a_file_that_was_replaced_is_foreign_unless_it_is_to_be_adopted(
    client: Client, root: Path
) -> None:
    manifest, path = manifests(root)["app-config"], root / "app/config.ini"
    generation = (await client.declare(manifest)).generation
    await outcome(client, manifest, generation)

    other_file = root / "other"
    other_file.write_text("theirs\n")
    other_file.replace(path)  # as `sed -i` does
    result = await client.wait_for(
        manifest.key, generation=generation, outcomes={"Conflict"}, timeout_seconds=PATIENCE_SECONDS
    )
    assert (result.outcome, path.read_text()) == ("Conflict", "theirs\n")

    adopting = {**manifest.spec, "policy": {"adoption": "Adopt"}}
    manifest = msgspec.structs.replace(manifest, spec=adopting)
    generation = (await client.declare(manifest)).generation
    assert await outcome(client, manifest, generation) == "Converged"
    assert "8080" in path.read_text()
    other_file.write_text("theirs\n")
    other_file.replace(path)
    await until(lambda: "8080" in path.read_text(), "it is adopted and corrected")


async def test_the_secret_is_in_the_file_and_not_in_the_log(client: Client, root: Path) -> None:
    manifest, path = manifests(root)["app-password"], root / "app/password"
    await client.declare(manifest)
    await until(path.exists, "it is created")
    assert (path.read_text(), path.stat().st_mode & 0o777) == (PLANTED, 0o600)
    output = ""
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.replay(follow=True)) as batches:
        async for batch in batches:
            output += repr(batch)
            if re.search(r"ActionSucceeded\(.*'app/password'", output):
                break
    assert PLANTED not in output
