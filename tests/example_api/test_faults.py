"""Faults of individual requests apply as described, and only to the specified requests."""

import time
from typing import Any

import httpx
import pytest

from tests.example_api.requests import create, effects, inject_faults, kind, listed_names, replace
from tests.faulty_api.faults import FaultInjector, Faults


async def test_an_error_before_the_effect_has_no_effect(client: httpx.AsyncClient) -> None:
    await inject_faults(client, error_rate=1, error_status=502)
    failed = await create(client, "a")
    assert (failed.status_code, kind(failed)) == (502, "injected-fault")
    assert (await effects(client))["creates"] == 0


async def test_an_error_after_the_effect_has_an_effect(client: httpx.AsyncClient) -> None:
    await inject_faults(client, error_after_rate=1, remaining=1)
    failed = await create(client, "a", "error-after")
    assert (failed.status_code, kind(failed)) == (503, "injected-fault")
    assert (await effects(client))["creates"] == 1
    repeated = await create(client, "a", "error-after")
    assert repeated.status_code == 201
    assert repeated.headers["idempotent-replayed"] == "true"


async def test_a_throttled_response_has_retry_after(client: httpx.AsyncClient) -> None:
    await inject_faults(client, throttle_rate=1, retry_after_seconds=7)
    throttled = await create(client, "a")
    assert (throttled.status_code, kind(throttled)) == (429, "throttled")
    assert throttled.headers["retry-after"] == "7"
    assert (await effects(client))["creates"] == 0


async def test_a_lost_reply_has_an_effect_but_no_response(client: httpx.AsyncClient) -> None:
    await inject_faults(client, lost_reply_rate=1, remaining=1)
    with pytest.raises(httpx.RemoteProtocolError):
        await create(client, "a", "lost-reply")
    repeated = await create(client, "a", "lost-reply")
    assert repeated.status_code == 201
    assert repeated.headers["idempotent-replayed"] == "true"
    assert (await effects(client))["creates"] == 1
    requests = (await client.get("/_stats")).json()["requests"]
    assert requests == {"POST": {"201": 1, "lost": 1}}


async def test_latency_delays_the_response(client: httpx.AsyncClient) -> None:
    await inject_faults(client, latency_ms=100, latency_jitter_ms=50)
    start = time.perf_counter()
    assert (await create(client, "a")).status_code == 201
    assert time.perf_counter() - start >= 0.1


@pytest.mark.parametrize("call", [create, replace])
async def test_faults_apply_only_to_their_methods(client: httpx.AsyncClient, call: Any):
    await create(client, "a")
    await inject_faults(client, error_rate=1, methods=["PUT"])
    assert ((await call(client, "a")).status_code == 503) == (call is replace)
    assert await listed_names(client) == ["a"]


async def test_faults_apply_only_to_their_names(client: httpx.AsyncClient) -> None:
    await inject_faults(client, error_rate=1, name_prefix="bad-")
    assert (await create(client, "bad-1")).status_code == 503
    assert (await client.get("/shapes/bad-1")).status_code == 503
    assert (await create(client, "good-1")).status_code == 201
    assert await listed_names(client) == ["good-1"]


async def test_faults_apply_only_the_remaining_number_of_times(client: httpx.AsyncClient) -> None:
    await inject_faults(client, error_rate=1, latency_ms=1, remaining=2)
    statuses = [(await create(client, name)).status_code for name in ("a", "b", "c")]
    assert statuses == [503, 503, 201]
    assert (await client.get("/_faults")).json()["remaining"] == 0


async def test_cleared_faults_no_longer_apply(client: httpx.AsyncClient) -> None:
    await inject_faults(client, error_rate=1)
    assert (await client.delete("/_faults")).status_code == 204
    assert (await create(client, "a")).status_code == 201
    assert (await client.get("/_faults")).json()["error_rate"] == 0


async def test_faults_never_apply_to_controls(client: httpx.AsyncClient) -> None:
    await inject_faults(client, error_rate=1)
    for path in ("/healthz", "/openapi.yaml", "/_faults", "/_stats", "/_journal"):
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    "document",
    [
        {"eror_rate": 1},
        {"error_rate": 1.1},
        {"latency_ms": -1},
        {"error_status": 200},
        {"methods": ["PATCH"]},
        {"remaining": 1.5},
        {"remaining": -1},
        [],
    ],
)
async def test_an_invalid_document_changes_nothing(
    client: httpx.AsyncClient, document: Any
) -> None:
    faults_before = (await client.get("/_faults")).json()
    refused = await client.put("/_faults", json=document)
    assert (refused.status_code, kind(refused)) == (422, "not-valid")
    assert (await client.get("/_faults")).json() == faults_before


async def test_returned_faults_can_be_set_again(client: httpx.AsyncClient) -> None:
    await inject_faults(client, listing_drop_names=["a"], methods=["GET"], seed=3, remaining=4)
    faults = (await client.get("/_faults")).json()
    assert (await client.put("/_faults", json=faults)).json() == faults


def test_a_seed_makes_the_choices_repeatable() -> None:
    def choices(seed: int) -> list[bool]:
        injector = FaultInjector()
        injector.replace(Faults(error_rate=0.5, seed=seed))
        return [injector.judge("POST", "a").refusal is not None for _ in range(100)]

    assert choices(1) == choices(1) != choices(2)
    assert 25 < sum(choices(1)) < 75
