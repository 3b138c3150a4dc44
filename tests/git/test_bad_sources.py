"""Malicious sources do not block others, reveal secrets or fill a disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from events.intake import Withdrawn
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from events.stored_content import COMPOSED_CONTENT_KIND, find_part_problem
from infra.providers.git import heads
from tests.git.repositories import Repository
from tests.git.test_source import (
    CONFIG,
    SHOP,
    api_url,
    colors,
    document,
    repository,
    source,
    until_problem,
    until_ready,
    world,
)
from tests.scenarios.harness import World

__all__ = ["api_url", "repository", "world"]

PASSWORD = "swordfish-of-ann"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncGenerator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/shop"


async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond one byte at a time, endlessly."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    try:
        while not writer.is_closing():
            writer.write(b"0")
            await writer.drain()
            await asyncio.sleep(0.1)
    except ConnectionError:
        return


async def echo_password(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Refuse with an echo of the password, as some servers do."""
    error_line = f"ERR no access with {PASSWORD}\n".encode()
    body = (
        b"001e# service=git-upload-pack\n0000" + f"{len(error_line) + 4:04x}".encode() + error_line
    )
    kind = b"Content-Type: application/x-git-upload-pack-advertisement\r\nConnection: close\r\n"
    writer.write(b"HTTP/1.1 200 OK\r\n" + kind + f"Content-Length: {len(body)}\r\n\r\n".encode())
    writer.write(body)
    await writer.drain()
    writer.close()


async def test_a_server_that_never_finishes_does_not_block_other_sources(
    world: World, repository: Repository, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(heads, "_MAX_SECONDS", 1)
    async with listening(drip) as url:
        spec = {"providerConfigRef": {"name": CONFIG}, "url": url, "intervalSeconds": 1}
        other_manifest = Manifest("git/v1", "GitSource", Metadata("drips"), spec)
        await world.declare_all([other_manifest])

        async def is_reported() -> bool:
            row = await world.client.status(other_manifest.key)
            condition = None if row is None else row.not_ready
            return condition is not None and "no result within 1 s" in condition.message

        await world.until(is_reported, "it is reported", seconds=20)
        repository.write({"a.yaml": document("a")})
        await world.declare_all([source(repository)])
        await until_ready(world, repository.commit())


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a variable that the namespace may read, before the roles start."""
    monkeypatch.setenv("GIT_LOGIN", f"ann:{PASSWORD}")
    monkeypatch.setenv("RECONCILER_SECRET_ENV", "default/GIT_LOGIN")


@pytest.mark.usefixtures("login")
async def test_a_password_is_also_hidden_without_its_user(world: World, repository: Repository):
    async with listening(echo_password) as url:
        manifest = source(repository, credentials={"$secret": "GIT_LOGIN", "store": "env"}, url=url)
        await world.declare_all([manifest])
        message = await until_problem(world, "Unreachable")
    assert "no access with ***" in message
    for event in await world.history(SHOP):
        assert PASSWORD.encode() not in msgspec.json.encode(event.data)


async def test_long_commit_texts_are_truncated(world: World, repository: Repository):
    folder = "/".join(letter * 200 for letter in "abcdefghij")
    names = [f"s{number}" for number in range(60)]
    repository.write({f"{folder}/{name}.yaml": document(name) for name in names})
    commit = repository.commit("s" * 5_000, f"--author={'A' * 100_000} <a@b>")
    await world.declare_all([source(repository)])
    row = await until_ready(world, commit)
    revision = row.outputs["revision"]
    assert (len(revision["author"]), len(revision["subject"])) == (200, 200)
    assert sorted(await colors(world)) == sorted(names)


async def test_a_released_source_is_not_followed(world: World, repository: Repository):
    repository.write({"a.yaml": document("a")})
    await world.declare_all([source(repository, policy={"deletion": "Orphan"})])
    await until_ready(world, repository.commit())
    await world.publish(SHOP, Withdrawn())
    await world.until_outcome(SHOP, "Released")
    await world.until_observed_again(12)  # over two intervals, so that an earlier read has ended
    position_before = await world.log.last_position()
    repository.write({"a.yaml": document("a", "Blue"), "b.yaml": document("b")})
    repository.commit()
    await world.until_observed_again(12)
    assert await world.log.last_position() == position_before
    assert await world.client.status(ResourceKey("default", "Shape", "b")) is None


def test_a_part_is_neither_its_own_parent_nor_an_internal_resource():
    assert "cannot be part of itself" in find_part_problem(SHOP, SHOP)
    own = ResourceKey("default", COMPOSED_CONTENT_KIND, "x")
    assert "only Reconciler itself declares" in find_part_problem(SHOP, own)
    assert find_part_problem(SHOP, ResourceKey("default", "Shape", "a")) == ""
