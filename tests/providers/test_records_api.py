"""The records API by itself: what callers other than our provider meet."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.records_api.app import build_app
from infra.records_api.store import RecordStore

ZONE = "/zones/example.org/records"
BODY: dict[str, Any] = {"type": "A", "values": ["192.0.2.1"], "tags": ["prod"]}
CREATE = {"If-None-Match": "*"}


@asynccontextmanager
async def service(folder: Path) -> AsyncGenerator[httpx.AsyncClient]:
    store = RecordStore(folder)
    transport = httpx.ASGITransport(build_app(store))
    async with httpx.AsyncClient(transport=transport, base_url="http://records") as client:
        yield client
    store.close()


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with service(tmp_path) as client:
        yield client


async def test_a_write_without_a_precondition_is_refused(client: httpx.AsyncClient) -> None:
    assert (await client.put(f"{ZONE}/www", json=BODY)).status_code == 428
    await client.put(f"{ZONE}/www", json=BODY, headers=CREATE)
    assert (await client.put(f"{ZONE}/www", json=BODY)).status_code == 428
    assert (await client.delete(f"{ZONE}/www")).status_code == 428


async def test_a_record_gets_a_default_ttl_and_its_etag(client: httpx.AsyncClient) -> None:
    created = await client.put(f"{ZONE}/www", json=BODY, headers=CREATE)

    assert created.status_code == 201
    assert created.json()["ttl"] == 300
    assert created.headers["ETag"] == f'"{created.json()["etag"]}"'
    assert (await client.get(f"{ZONE}/www")).json() == created.json()


@pytest.mark.parametrize(
    "change", [{"ttl": 0}, {"values": []}, {"type": "NS2"}, {"labels": {}}, {"values": "x"}]
)
async def test_what_is_no_record_is_refused(
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


async def test_zones_are_apart_and_records_outlive_the_service(tmp_path: Path) -> None:
    async with service(tmp_path) as before:
        await before.put(f"{ZONE}/www", json=BODY, headers=CREATE)
        assert (await before.get("/zones/example.com/records")).json()["records"] == []
    async with service(tmp_path) as after:
        assert [record["name"] for record in (await after.get(ZONE)).json()["records"]] == ["www"]
