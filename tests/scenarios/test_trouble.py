"""A failing API: scenarios 13, 14 and 15, and invariant 9 for the gate and the backoff."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from events.intake import ActionError
from events.log import (
    ActionDecided,
    ActionFailed,
    ActionNotDone,
    ActionRetried,
    ActionSucceeded,
    ApiThrottled,
    LookupDecided,
    OutcomeRecorded,
    RetryScheduled,
)
from events.names import SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import PROVIDER_CONFIG_KIND, Breaker, Limits, Retry
from reconciler.wiring import Role
from tests.faulty_api import FaultyApi
from tests.scenarios.harness import World, api_config, every, manifest, only
from tests.scenarios.processes import wait_for_log_line, workers

CONFIG = ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, "default")
ROLES_WITHOUT_WORKER: tuple[Role, ...] = ("decider", "observer", "projector")
SLOW_LISTINGS = 3600.0


async def calls(world: World) -> int:
    return sum(sum(each.values()) for each in (await world.human.requests()).values())


async def until_breaker(world: World, expected: str) -> OutcomeRecorded:
    return await world.until_outcome(CONFIG, expected)


# --- scenario 13


async def test_13_a_response_after_the_timeout_is_recorded_and_creates_one_object(
    bare_world: World,
) -> None:
    """Scenario 13: the retry has the same key, and receives the first call's response."""
    world = bare_world
    await world.start_reconciler()
    await world.configure(
        api_config(world.human.url, resync=SLOW_LISTINGS, limits=Limits(request_timeout_seconds=2))
    )
    await world.human.inject_faults(latency_ms=5000, methods=["POST"], remaining=1)
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")

    facts = await world.facts("foo")
    first = every(ActionFailed, facts)[0]
    assert (first.error.error_class, first.attempt) == ("Unknown", 1)
    assert "no response within 2 s" in first.error.message
    keys = {each.action.idempotency_key for each in every(ActionRetried, facts)}
    assert keys == {only(ActionDecided, facts).action.idempotency_key}
    success = only(ActionSucceeded, facts)
    assert success.replayed
    assert success.object is not None
    assert success.object.uid == (await world.human.get("foo"))["uid"]
    assert await world.human.effects() == ["POST"]


async def test_14_an_api_that_refuses_connections_is_retried(
    bare_world: World, tmp_path: Path
) -> None:
    """Scenario 14: the API's server starts late."""
    world, api = bare_world, FaultyApi()
    await api.start(tmp_path / "late")
    port = api.port
    await api.stop()
    await world.start_reconciler()
    await world.configure(
        api_config(f"http://127.0.0.1:{port}", breaker=Breaker(3, 0.5, 1.0)), name="late"
    )
    await world.declare_all([manifest("foo", config="late")])
    outcome = await world.until_outcome("foo", "Degraded")
    assert "no connection" in outcome.message
    try:
        await api.start(tmp_path / "late", port=port)
        await world.until_outcome("foo", "Converged")
    finally:
        await api.stop()
    waits = every(RetryScheduled, await world.facts("foo"))
    assert len({each.delay_seconds for each in waits}) == len(waits), "without jitter"


async def test_14_a_throttle_that_one_worker_receives_applies_to_every_worker(
    bare_world: World, tmp_path: Path
) -> None:
    """Scenario 14: 429 with Retry-After slows every worker on that API, in every process."""
    world = bare_world
    await world.start_reconciler(ROLES_WITHOUT_WORKER)
    await world.configure(api_config(world.human.url, resync=SLOW_LISTINGS))
    async with workers(world, tmp_path / "logs", 2) as both:
        await world.human.reset_counts()
        await world.human.inject_faults(
            throttle_rate=1, retry_after_seconds=8, methods=["POST"], remaining=1
        )
        started_at = time.time()
        await world.declare("foo")
        await wait_for_log_line(world, both, "calls to an API are suspended")
        others = [f"other{number}" for number in range(20)]
        await world.declare_all([manifest(name) for name in others])
        outcome = await world.until_outcome("foo", "Degraded")
        assert outcome.reason == "Throttled"
        assert "no calls before 20" in outcome.message
        for name in ("foo", *others):
            await world.until(lambda name=name: world.human.find(name), name, seconds=60)
        journal = await world.human.journal()
        assert (await world.human.requests())["POST"] == {"201": 21, "429": 1}
    assert min(_timestamp(each["time"]) for each in journal) >= started_at + 8
    only(ApiThrottled, await world.facts(CONFIG))
    spread = {round(_timestamp(each["time"]), 1) for each in journal}
    assert len(spread) > 1, "all calls arrived at the same moment"
    held = [each for name in others for each in every(ActionFailed, await world.facts(name))]
    assert held
    assert all(not each.error.attempted for each in held)
    assert {each.error.error_class for each in held} == {"Throttled"}
    assert all("does not accept calls " in each.error.message for each in held)


# --- scenario 15


async def test_15_a_permanent_refusal_is_not_retried_until_a_new_generation(world: World) -> None:
    """Scenario 15: a 422 does not cause a hot loop; the outcome quotes the API's message."""
    await world.human.inject_faults(error_rate=1, error_status=422, methods=["POST"])
    await world.human.reset_counts()
    await world.declare("foo")
    outcome = await world.until_outcome("foo", "Failed", generation=1)
    assert "422" in outcome.message
    await world.until_observed_again(3)
    assert (await world.human.requests())["POST"] == {"422": 1}
    assert len(every(ActionDecided, await world.facts("foo"))) == 1

    await world.human.clear_faults()
    await world.declare("foo", color="Blue")
    await world.until_outcome("foo", "Converged", generation=2)
    assert await world.human.effects() == ["POST"]


# --- scenario 44


@pytest.mark.parametrize(("status", "outcome"), [(422, "Failed"), (403, "Degraded")])
async def test_44_after_a_refused_creation_only_newer_declarations_are_applied(
    world: World, status: int, outcome: str
) -> None:
    """Scenario 44: one resource is corrected and one is withdrawn, with a restart in between.

    422 is permanent; after 403 the same call may succeed later.
    """
    await world.human.inject_faults(error_rate=1, error_status=status, methods=["POST"])
    await world.human.reset_counts()
    for name in ("foo", "bar"):
        await world.declare(name)
        await world.until_outcome(name, outcome, generation=1)
    await world.withdraw("bar")
    await world.until_outcome("bar", "Deleted")
    await world.restart_reconciler()
    await world.declare("foo", color="Blue")
    await world.until_outcome("foo", outcome, generation=2)
    await world.human.clear_faults()
    if status == 422:  # the newer generation was refused, too
        await world.declare("foo", color="Green")
    await world.until_outcome("foo", "Converged")
    await world.until_observed_again(2)

    requests = await world.human.requests()
    assert requests["POST"].keys() == {str(status), "201"}
    assert requests["POST"]["201"] == 1, "no refused creation is repeated"
    assert not {"PUT", "DELETE"} & requests.keys()
    assert (await world.human.get("foo"))["color"] == ("Green" if status == 422 else "Blue")
    assert await world.human.find("bar") is None
    for name in ("foo", "bar"):
        assert not every(LookupDecided, await world.facts(name)), "a refusal does not need a lookup"


async def test_44_a_refusal_after_an_unknown_result_ends_the_action_after_a_lookup(
    world: World,
) -> None:
    """Scenario 44: the earlier attempt may have created the object, so a read comes first."""
    await world.human.inject_faults(error_rate=1, error_status=500, methods=["POST"])
    await world.declare("foo")
    await world.until_outcome("foo", "Degraded", generation=1)
    await world.human.inject_faults(error_rate=1, error_status=422, methods=["POST"])
    await world.until_outcome("foo", "Failed", generation=1)

    facts = await world.facts("foo")
    assert every(LookupDecided, facts)
    assert every(ActionNotDone, facts)
    refusals = [each for each in every(ActionFailed, facts) if each.error.error_class == "Refused"]
    assert [each.consequence for each in refusals] == ["Retry", "Refused"]


# --- invariant 9


async def test_14_a_breaker_survives_a_restart_and_no_resource_is_woken_without_cause(
    bare_world_on_own_server: World, tmp_path: Path
) -> None:
    """Invariant 9, scenario 14: the breaker stays open after the workers and the bus are killed."""
    world = bare_world_on_own_server
    await world.start_reconciler(ROLES_WITHOUT_WORKER)
    await world.configure(
        api_config(
            world.human.url,
            resync=SLOW_LISTINGS,
            breaker=Breaker(3, initial_seconds=600.0, max_seconds=600.0),
        )
    )
    await world.human.inject_faults(error_rate=1, error_status=500)
    async with workers(world, tmp_path / "first", 2):
        await world.declare("foo")
        await until_breaker(world, "Degraded")
        await _until_held(world, "foo")
    await world.stop_reconciler()
    await world.kill_nats()
    await world.start_nats()
    await world.human.reset_counts()
    await world.start_reconciler(ROLES_WITHOUT_WORKER)
    position = await world.log_position()
    async with workers(world, tmp_path / "second", 2):
        await world.until_settled()
        assert await world.log_position() == position, "a resource was woken without cause"
        await world.declare("bar")
        outcome = await world.until_outcome("bar", "Degraded")
        assert "breaker for API 'default' open until" in outcome.message
        await world.until_settled()
    assert await calls(world) == 0, "the API was called while its breaker was open"
    failed = only(ActionFailed, await world.facts("bar")).error
    assert failed == ActionError(
        "NotDone", failed.message, None, failed.retry_after_seconds, attempted=False
    )
    assert failed.retry_after_seconds is not None
    assert 100 < failed.retry_after_seconds <= 600


async def test_14_a_backoff_survives_killed_workers(bare_world: World, tmp_path: Path) -> None:
    """Invariant 9, scenario 14: the next attempt is made at the time in the log, not earlier."""
    world = bare_world
    await world.start_reconciler(ROLES_WITHOUT_WORKER)
    await world.configure(
        api_config(
            world.human.url,
            resync=SLOW_LISTINGS,
            retry=Retry(initial_seconds=4.0, max_seconds=4.0),
        )
    )
    await world.human.inject_faults(error_rate=1, error_status=500, methods=["POST"], remaining=1)
    async with workers(world, tmp_path / "first", 2):
        await world.declare("foo")
        await world.until_outcome("foo", "Degraded")
    async with workers(world, tmp_path / "second", 2):
        await world.until(lambda: world.human.find("foo"), "foo")
    (waits,) = every(RetryScheduled, await world.facts("foo"))
    (journal,) = await world.human.journal()
    assert 2.0 <= waits.delay_seconds <= 4.0
    assert _timestamp(journal["time"]) >= waits.at.timestamp()


# --- helpers


def _shape(name: str) -> ResourceKey:
    return ResourceKey("default", "Shape", name)


def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def _until_held(world: World, name: str) -> None:
    async def is_held() -> bool:
        recorded = await world.outcomes(_shape(name))
        return bool(recorded) and "breaker for API" in recorded[-1].message

    await world.until(is_held, f"{name} waits for the breaker")
    await world.until_settled()
