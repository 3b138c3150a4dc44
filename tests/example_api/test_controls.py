"""The routes outside the contract."""

from pathlib import Path

import httpx

import shapes_api
from tests.example_api.requests import (
    create,
    effects,
    journal,
    key_header,
    last_sequence,
    replace,
    shape,
)


async def test_the_contract_is_served_as_packaged(client: httpx.AsyncClient) -> None:
    response = await client.get("/openapi.yaml")
    assert response.headers["content-type"].startswith("application/yaml")
    assert response.content == Path(shapes_api.__file__).with_name("openapi.yaml").read_bytes()


async def test_a_working_service_is_healthy(client: httpx.AsyncClient) -> None:
    response = await client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_requests_shapes_and_effects_are_counted(client: httpx.AsyncClient) -> None:
    await create(client, "a", "counted")
    await create(client, "a", "counted")
    await create(client, "b")
    await replace(client, "a")
    await replace(client, "z")
    await client.delete("/shapes/b")
    await client.get("/healthz")
    assert (await client.get("/_stats")).json() == {
        "requests": {"POST": {"201": 3}, "PUT": {"200": 1, "404": 1}, "DELETE": {"204": 1}},
        "shapes": 1,
        "effective": {"creates": 2, "updates": 1, "deletes": 1},
    }


async def test_counts_start_from_zero_after_a_reset(client: httpx.AsyncClient) -> None:
    await create(client, "a")
    assert (await client.delete("/_stats")).status_code == 204
    statistics = (await client.get("/_stats")).json()
    assert (statistics["requests"], statistics["shapes"]) == ({}, 1)
    assert set((await effects(client)).values()) == {0}


async def test_the_journal_lists_the_effects_and_nothing_else(client: httpx.AsyncClient) -> None:
    sequence_before = await last_sequence(client)
    created = (await create(client, "a", "journal-1")).json()
    await create(client, "a", "journal-1")
    await create(client, "a")
    await client.put("/shapes/a", json=shape("a", color="Blue"), headers=key_header("journal-2"))
    await client.put("/shapes/a", json=shape("a"), headers={"If-Match": '"9"'})
    await client.delete("/shapes/a")
    await client.delete("/shapes/a")
    entries = await journal(client, sequence_before)
    assert [
        (
            entry["sequence"] - sequence_before,
            entry["method"],
            entry["name"],
            entry["idempotency_key"],
        )
        for entry in entries
    ] == [(1, "POST", "a", "journal-1"), (2, "PUT", "a", "journal-2"), (3, "DELETE", "a", None)]
    assert {entry["uid"] for entry in entries} == {created["uid"]}
    assert entries == sorted(entries, key=lambda entry: entry["time"])


async def test_the_journal_is_read_in_pages(client: httpx.AsyncClient) -> None:
    sequence_before = await last_sequence(client)
    for name in ("a", "b", "c"):
        await create(client, name)
    response = await client.get("/_journal", params={"after": sequence_before + 1, "limit": 1})
    assert [entry["name"] for entry in response.json()["entries"]] == ["b"]
