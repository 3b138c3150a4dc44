"""Reads of several tenants' repositories: a slow tenant or a full quota does not affect others."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from events.allow import NOTHING
from events.composition import ComposedSetSpec
from events.documents import ParsedManifest, Source
from events.manifest import Manifest, Metadata
from events.stored_content import StoredContent
from infra.providers.composition.contents import ContentRefusedError
from infra.providers.git import heads
from infra.providers.git.checks import Check
from infra.providers.git.heads import Heads
from infra.providers.git.reader_process import Document, Failure, Reply, Request
from reconciler.composites.git_source import PROBLEM, SOURCE
from reconciler.provider.secrets import SecretKey, Secrets

COMMIT = "c0ffee" + "0" * 34


class Contents:
    """Contents in memory; ``is_full``: the namespace's quota is exhausted."""

    is_full = False

    async def store(self, namespace: str, content: StoredContent) -> None:
        del namespace, content
        if self.is_full:
            raise ContentRefusedError("storing its content failed: QuotaExceeded", status=409)

    async def load(self, namespace: str, digest: str) -> list[Any] | None:
        del namespace, digest
        return []


def source_of(namespace: str, number: int = 0) -> ComposedSetSpec:
    fields = {SOURCE: {"url": f"https://git.test/{number}", "intervalSeconds": 60.0}}
    return ComposedSetSpec(f"{namespace}/GitSource/s{number}", "uid", "key", fields=fields)


@pytest.fixture
def contents() -> Contents:
    return Contents()


@pytest.fixture
async def source_heads(contents: Contents):
    def accept(_manifest: Manifest) -> None:
        return

    async def check() -> Check:
        return accept

    storage: Any = contents
    heads = Heads(storage, Secrets(), check, timeout_seconds=1.0, allow=NOTHING)
    yield heads
    await heads.close()


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reply immediately, except for the tenant whose servers hang."""

    async def read(request: Request) -> Reply:
        if request.namespace == "hostile":
            await asyncio.Event().wait()
        manifest = Manifest("shapes/v1", "Shape", Metadata("a", request.namespace), {})
        read_result = ParsedManifest(Source("a.yaml", 1, 1), manifest, manifest.key)
        location = (read_result.source.file, read_result.source.number, read_result.source.line)
        return Reply("main", COMMIT, {"commit": COMMIT}, [Document(*location, manifest)])

    monkeypatch.setattr(heads, "read_source", read)


@pytest.fixture
async def hanging(source_heads: Heads):
    """Many sources of one tenant, whose servers never respond."""
    specs = [source_of("hostile", number) for number in range(20)]
    tasks = [asyncio.create_task(source_heads.refresh(each, is_requested=False)) for each in specs]
    await asyncio.sleep(0)
    yield tasks
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.usefixtures("hanging")
async def test_hanging_servers_leave_slots_for_other_tenants_sources(source_heads: Heads) -> None:
    async with asyncio.timeout(5):
        objects = await source_heads.refresh(source_of("billing"), is_requested=False)
    assert objects["head"]["revision"]["commit"] == COMMIT


async def test_a_listing_shows_the_known_state_of_a_source_that_waits_for_a_slot(
    source_heads: Heads, hanging: list[asyncio.Task[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "_LISTING_SECONDS", 0.05)
    async with asyncio.timeout(5):
        assert await source_heads.refresh(source_of("hostile", 99), is_requested=False) == {}
    assert not any(each.done() for each in hanging)


async def test_reads_of_withdrawn_sources_end(
    source_heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each would occupy a slot for a minute."""
    monkeypatch.setattr(heads, "_LISTING_SECONDS", 0.01)
    await asyncio.gather(
        *(
            source_heads.refresh(source_of("hostile", each), is_requested=False)
            for each in range(20)
        )
    )
    billing = source_of("billing")
    source_heads.keep_only_sources([billing.parent])
    async with asyncio.timeout(5):
        while source_heads.has_reads:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)


@pytest.mark.parametrize("fresh", [False, True])
async def test_a_hanging_source_does_not_delay_reads_of_others(
    source_heads: Heads, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    """A page, or the objects of an API that are not ready, are read together."""
    monkeypatch.setattr(heads, "_REQUEST_SECONDS" if fresh else "_LISTING_SECONDS", 0.05)
    specs = [*(source_of("hostile", number) for number in range(5)), source_of("billing")]
    async with asyncio.timeout(5):
        read = (source_heads.refresh(each, is_requested=fresh) for each in specs)
        *hostile, billing = await asyncio.gather(*read)
        assert not await source_heads.has_new_commits()
    assert hostile == [{}] * 5
    assert billing["head"]["revision"]["commit"] == COMMIT


async def test_requests_during_a_read_share_the_next_one(
    source_heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, read, count = asyncio.Event(), heads.read_source, 0

    async def read_and_count(request: Request) -> Reply:
        nonlocal count
        count += 1
        await may_end.wait()
        return await read(request)

    monkeypatch.setattr(heads, "read_source", read_and_count)
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, each: failures.append(each))
    spec = source_of("billing")
    reads = [source_heads.refresh(spec, is_requested=fresh) for fresh in (False, True, True)]
    tasks = [asyncio.create_task(each) for each in reads]
    while not count:  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(0)
    may_end.set()
    async with asyncio.timeout(5):
        results = await asyncio.gather(*tasks)
    assert results[0] == results[1] == results[2] != {}
    assert (count, failures) == (2, [])


async def test_a_slow_read_is_reported_once_it_has_ended(
    source_heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "_LISTING_SECONDS", 0.01)
    may_end, read = asyncio.Event(), heads.read_source

    async def read_slowly(request: Request) -> Reply:
        await may_end.wait()
        return await read(request)

    monkeypatch.setattr(heads, "read_source", read_slowly)
    spec = source_of("billing")
    assert await source_heads.refresh(spec, is_requested=False) == {}
    assert not await source_heads.has_new_commits()
    may_end.set()
    async with asyncio.timeout(5):
        while not await source_heads.has_new_commits():  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)
    assert source_heads.known_outputs(spec)["head"]["revision"]["commit"] == COMMIT
    assert not await source_heads.has_new_commits(), "it is reported once"


async def test_a_failure_to_store_content_does_not_break_a_listing(
    source_heads: Heads, contents: Contents
) -> None:
    contents.is_full = True
    objects = await source_heads.refresh(source_of("billing"), is_requested=False)
    assert "QuotaExceeded" in objects[PROBLEM]["message"]
    contents.is_full = False
    objects = await source_heads.refresh(source_of("billing"), is_requested=True)
    assert PROBLEM not in objects
    assert "content" in objects["head"]


class Tokens:
    """A store with one secret, which can be replaced."""

    value = "the first token of the source"

    async def read(self, key: SecretKey, reader: str) -> str:
        del key, reader
        return self.value

    async def write(self, key: SecretKey, value: str) -> None:
        raise AssertionError(key, value)

    async def remove(self, key: SecretKey) -> None:
        raise AssertionError(key)


async def test_a_commit_is_searched_for_replaced_credentials(
    contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Request] = []

    async def read(request: Request) -> Reply:
        requests.append(request)
        return Reply(failure=Failure("Unreachable", "not now"))

    monkeypatch.setattr(heads, "read_source", read)
    tokens, storage = Tokens(), cast("Any", contents)
    secrets = Secrets(None, {"files": tokens}, key=b"a key")
    source_heads = Heads(storage, secrets, cast("Any", None), timeout_seconds=1.0, allow=NOTHING)
    spec = source_of("billing")
    spec.fields[SOURCE]["credentials"] = {"$secret": "git"}
    await source_heads.refresh(spec, is_requested=True)
    tokens.value = "the second token of the source"
    await source_heads.refresh(spec, is_requested=True)
    assert [each.credential for each in requests] == [Tokens.value, tokens.value]
    assert Tokens.value in requests[1].former_credentials
