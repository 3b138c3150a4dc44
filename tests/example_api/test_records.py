"""The records API alone, as clients other than our provider use it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shapes_api.app import create_app, latency
from shapes_api.database import open_database

ZONE = "/zones/example.org/records"
CHANGES = "/zones/example.org/changes"
BODY: dict[str, Any] = {"type": "A", "values": ["192.0.2.1"], "tags": ["prod"]}
CREATE = {"If-None-Match": "*"}


@asynccontextmanager
async def service(folder: Path) -> AsyncGenerator[httpx.AsyncClient]:
    with contextlib.closing(open_database(folder)) as database:
        transport = httpx.ASGITransport(create_app(database, latency(0)))
        async with httpx.AsyncClient(transport=transport, base_url="http://records") as client:
            yield client


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with service(tmp_path) as client:
        yield client


async def test_a_write_without_a_precondition_is_refused(client: httpx.AsyncClient) -> None:
    assert (await client.put(f"{ZONE}/www", json=BODY)).status_code == 428
    await client.put(f"{ZONE}/www", json=BODY, headers=CREATE)
    assert (await client.put(f"{ZONE}/www", json=BODY)).status_code == 428
    assert (await client.delete(f"{ZONE}/www")).status_code == 428


async def test_a_record_has_a_default_ttl_and_an_etag(client: httpx.AsyncClient) -> None:
    created = await client.put(f"{ZONE}/www", json=BODY, headers=CREATE)

    assert created.status_code == 201
    assert created.json()["ttl"] == 300
    assert created.headers["ETag"] == f'"{created.json()["etag"]}"'
    assert (await client.get(f"{ZONE}/www")).json() == created.json()


@pytest.mark.parametrize(
    "change", [{"ttl": 0}, {"values": []}, {"type": "NS2"}, {"labels": {}}, {"values": "x"}]
)
async def test_an_invalid_record_is_refused(
    client: httpx.AsyncClient, change: dict[str, Any]
) -> None:
    refused = await client.put(f"{ZONE}/www", json=BODY | change, headers=CREATE)

    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "bad_record"
    assert (await client.get(f"{ZONE}/www")).status_code == 404


@pytest.mark.parametrize("size", ["0", "1001", "many"])
async def test_a_page_size_that_is_not_allowed_is_refused(
    client: httpx.AsyncClient, size: str
) -> None:
    assert (await client.get(ZONE, params={"per_page": size})).status_code == 400


async def test_zones_are_separate_and_records_outlive_the_service(tmp_path: Path) -> None:
    async with service(tmp_path) as before:
        await before.put(f"{ZONE}/www", json=BODY, headers=CREATE)
        assert (await before.get("/zones/example.com/records")).json()["records"] == []
    async with service(tmp_path) as after:
        assert [record["name"] for record in (await after.get(ZONE)).json()["records"]] == ["www"]


async def last_change(client: httpx.AsyncClient, changes: str = CHANGES, **query: float) -> int:
    response = await client.get(changes, params=query)
    return response.raise_for_status().json()["last"]


async def test_changes_are_numbered_in_each_zone_and_outlive_the_service(tmp_path: Path) -> None:
    async with service(tmp_path) as before:
        assert await last_change(before) == 0
        await before.put(f"{ZONE}/www", json=BODY, headers=CREATE)
        assert await last_change(before) == 1
        await before.put(f"{ZONE}/www", json=BODY, headers=CREATE)  # refused: nothing changed
        assert await last_change(before) == 1
        assert await last_change(before, "/zones/example.com/changes") == 0
    async with service(tmp_path) as after:
        await after.delete(f"{ZONE}/www", headers={"If-Match": "*"})
        assert await last_change(after) == 2


async def test_a_request_that_waits_for_a_change_gets_a_response_when_it_happens(
    client: httpx.AsyncClient,
) -> None:
    """Two wait in one zone, one in another; a client that is already behind does not wait."""
    pending = [asyncio.create_task(last_change(client, after=0, wait=30)) for _ in range(2)]
    other_zone_request = asyncio.create_task(
        last_change(client, "/zones/example.com/changes", after=0, wait=30)
    )
    await asyncio.sleep(0)
    await client.put(f"{ZONE}/www", json=BODY, headers=CREATE)
    async with asyncio.timeout(20):
        assert await asyncio.gather(*pending) == [1, 1]
        assert await last_change(client, after=0, wait=30) == 1
        assert await last_change(client, after=7, wait=30) == 1, "an unknown mark must not wait"
        pending = [asyncio.create_task(last_change(client, after=1, wait=30))]
        await asyncio.sleep(0)
        await client.delete(f"{ZONE}/www", headers={"If-Match": "*"})
        assert await asyncio.gather(*pending) == [2]
    assert not other_zone_request.done()
    other_zone_request.cancel()


async def test_a_wait_without_a_change_ends(client: httpx.AsyncClient) -> None:
    assert await last_change(client, after=0, wait=0.05) == 0


@pytest.mark.parametrize("query", ["after=x", "wait=x", "wait=31", "wait=-1", "wait=nan"])
async def test_a_wait_that_is_not_allowed_is_refused(client: httpx.AsyncClient, query: str) -> None:
    assert (await client.get(f"{CHANGES}?{query}")).status_code == 400
