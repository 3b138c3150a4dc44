"""Idempotency keys: one effect, and a replay of the first response."""

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from pathlib import Path

import httpx
import pytest

from shapes_api.app import create_app, latency
from shapes_api.database import open_database
from tests.example_api.requests import (
    create,
    effects,
    inject_faults,
    journal,
    key_header,
    kind,
    last_sequence,
    replace,
    shape,
)

DAY_SECONDS = 24 * 3600


@pytest.fixture
def key() -> str:
    return str(uuid.uuid4())


def assert_replayed(first: httpx.Response, repeated: httpx.Response) -> None:
    assert "idempotent-replayed" not in first.headers
    assert repeated.headers["idempotent-replayed"] == "true"
    assert (repeated.status_code, repeated.content) == (first.status_code, first.content)
    for header in ("etag", "location", "content-type"):
        assert repeated.headers.get(header) == first.headers.get(header)


async def test_a_repeated_create_has_one_effect_and_the_same_response(
    client: httpx.AsyncClient, key: str
) -> None:
    first = await create(client, "a", key)
    repeated = await create(client, "a", key)
    assert_replayed(first, repeated)
    assert (await effects(client))["creates"] == 1


async def test_the_first_response_is_replayed_after_the_shape_has_changed(
    client: httpx.AsyncClient, key: str
) -> None:
    first = await create(client, "a", key)
    await replace(client, "a", color="Blue")
    assert_replayed(first, await create(client, "a", key))
    await client.delete("/shapes/a")
    assert_replayed(first, await create(client, "a", key))
    assert (await client.get("/shapes/a")).status_code == 404


async def test_a_repeated_replacement_has_one_effect(client: httpx.AsyncClient, key: str) -> None:
    await create(client, "a")
    first = await replace(client, "a", key, color="Blue")
    assert_replayed(first, await replace(client, "a", key, color="Blue"))
    assert (await client.get("/shapes/a")).json()["version"] == 2


async def test_a_repeated_deletion_has_one_effect(client: httpx.AsyncClient, key: str) -> None:
    await create(client, "a")
    first = await client.delete("/shapes/a", headers=key_header(key))
    await create(client, "a")
    repeated = await client.delete("/shapes/a", headers=key_header(key))
    assert repeated.status_code == first.status_code == 204
    assert repeated.headers["idempotent-replayed"] == "true"
    assert (await client.get("/shapes/a")).status_code == 200


async def test_a_refusal_is_also_replayed(client: httpx.AsyncClient, key: str) -> None:
    await create(client, "a")
    first = await create(client, "a", key)
    assert (first.status_code, kind(first)) == (409, "name-taken")
    await client.delete("/shapes/a")
    assert_replayed(first, await create(client, "a", key))
    invalid = await client.post("/shapes", json={}, headers=key_header(key + "-other"))
    repeated = await client.post("/shapes", json={}, headers=key_header(key + "-other"))
    assert_replayed(invalid, repeated)


async def test_another_body_path_or_method_with_the_key_is_refused(
    client: httpx.AsyncClient, key: str
) -> None:
    await create(client, "a", key)
    others = [
        await create(client, "a", key, color="Blue"),
        await create(client, "b", key),
        await client.put("/shapes/a", json=shape("a"), headers=key_header(key)),
        await client.delete("/shapes/a", headers=key_header(key)),
    ]
    assert [(each.status_code, kind(each)) for each in others] == [(422, "key-used-otherwise")] * 4
    assert (await create(client, "a", key)).status_code == 201
    assert await effects(client) == {"creates": 1, "updates": 0, "deletes": 0}


async def test_a_key_is_refused_while_its_request_is_running(
    client: httpx.AsyncClient, key: str
) -> None:
    await inject_faults(client, latency_ms=300, remaining=1)
    slow = asyncio.create_task(create(client, "a", key))
    while (await client.get("/_faults")).json()["remaining"]:
        pass  # the slow request has not arrived yet
    refused = await create(client, "a", key)
    assert (refused.status_code, kind(refused)) == (409, "key-still-running")
    assert refused.headers["retry-after"] == "1"
    first = await slow
    assert first.status_code == 201
    assert_replayed(first, await create(client, "a", key))


async def test_concurrent_requests_with_the_same_key_have_one_effect(
    client: httpx.AsyncClient, key: str
) -> None:
    sequence_before = await last_sequence(client)
    responses = await asyncio.gather(*(create(client, "a", key) for _ in range(50)))
    statuses = Counter(response.status_code for response in responses)
    assert set(statuses) <= {201, 409}
    assert {kind(each) for each in responses if each.status_code == 409} <= {"key-still-running"}
    created = [response for response in responses if response.status_code == 201]
    assert len({response.content for response in created}) == 1
    assert sum("idempotent-replayed" not in response.headers for response in created) == 1
    assert [entry["idempotency_key"] for entry in await journal(client, sequence_before)] == [key]


async def test_concurrent_creates_of_one_name_with_different_keys_have_one_winner(
    client: httpx.AsyncClient,
) -> None:
    keys = [str(uuid.uuid4()) for _ in range(50)]
    responses = await asyncio.gather(*(create(client, "a", key) for key in keys))
    statuses = Counter(response.status_code for response in responses)
    assert statuses == {201: 1, 409: 49}
    assert (await effects(client))["creates"] == 1


@pytest.mark.parametrize(
    "faults", [{"error_rate": 1}, {"throttle_rate": 1}, {"error_rate": 1, "error_status": 409}]
)
async def test_a_request_that_fails_before_its_effect_does_not_use_its_key(
    client: httpx.AsyncClient, key: str, faults: dict[str, float]
) -> None:
    await inject_faults(client, **faults, remaining=1)
    assert (await create(client, "a", key)).status_code >= 400
    repeated = await create(client, "a", key)
    assert repeated.status_code == 201
    assert "idempotent-replayed" not in repeated.headers


async def test_a_key_that_is_too_long_is_refused(client: httpx.AsyncClient) -> None:
    assert (await create(client, "a", str(uuid.uuid4()).ljust(255, "k"))).status_code == 201
    refused = await create(client, "b", "k" * 256)
    assert (refused.status_code, kind(refused)) == (422, "not-valid")


async def test_without_a_key_every_request_counts(client: httpx.AsyncClient) -> None:
    await create(client, "a")
    assert (await create(client, "a")).status_code == 409
    assert (await create(client, "b", "")).status_code == 201
    assert (await create(client, "c", "")).status_code == 201


async def test_responses_are_stored_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for now, status in ((0.0, 201), (DAY_SECONDS, 201), (1.5 * DAY_SECONDS, 409)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        with contextlib.closing(open_database(tmp_path)) as database:
            transport = httpx.ASGITransport(create_app(database, latency(0)))
            async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
                assert (await create(client, "a", "key")).status_code == status
