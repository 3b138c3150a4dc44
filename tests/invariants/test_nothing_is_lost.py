"""Invariant 11: every decided action has an outcome, a live lease or a scheduled retry."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from events.log import ActionDecided, DriftDetected, LogEvent, RetryScheduled, SpecDeclared
from events.names import ResourceKey
from events.provider_config import Limits, Retry
from events.subjects import schedule
from infra.bus.streams import INTAKE, LOG, TIMERS, worker_consumers
from infra.jetstream.connection import api_request
from infra.jetstream.reads import read_subject, stream_state
from reconciler.resource.evolve import fold
from tests.bus.histories import history_of
from tests.scenarios.harness import World, api_config, every, manifest, now, type_names

_TIMER_TOLERANCE = timedelta(seconds=0.25)
NAMES = [f"foo-{number}" for number in range(40)]


async def find_lost_actions(world: World) -> list[str]:
    """Return the resources with an action in flight that no process is working on.

    The order of reads may count a moving message twice, but never misses it: the log first, then
    the queue of actions, then the intake and the timers.
    """
    histories: dict[ResourceKey, list[LogEvent]] = {}
    for stored in await world.log.read_kind("default", "Shape"):
        histories.setdefault(stored.event.key, []).append(stored.event)
    states = {key: fold(events) for key, events in histories.items()}
    actions = {key: state.actions for key, state in states.items()}
    in_flight = {key: each.in_flight for key, each in actions.items() if each.in_flight}
    if not in_flight:
        return []
    workers = await worker_consumers(world.nc)
    if any(each["num_pending"] or each["num_ack_pending"] for each in workers):
        return []  # leased, or will be
    deciders = await api_request(world.nc, f"CONSUMER.LIST.{INTAKE}", {})
    if any(each["num_pending"] or each["num_ack_pending"] for each in deciders["consumers"]):
        return []  # its result is waiting to be decided
    lost_actions: list[str] = []
    for key, flight in in_flight.items():
        timer = await read_subject(world.nc, TIMERS, schedule(key, "retry"))
        newest = fold(await history_of(world.log, key))
        settled = newest.actions.in_flight != flight
        is_due = flight.retry_at is not None and flight.retry_at <= now() + _TIMER_TOLERANCE
        if not settled and not (flight.retry_at and (timer or is_due)):
            lost_actions.append(f"{key}: {flight.action.operation}, attempt {flight.attempt}")
    return lost_actions


async def all_converged(world: World) -> bool:
    return {each["name"] for each in await world.human.list_all()} == set(NAMES) and all(
        [type_names(await world.facts(name))[-1:] == ["OutcomeRecorded"] for name in NAMES]
    )


async def watch_until_converged(world: World) -> None:
    async def is_done_without_loss() -> bool:
        assert await find_lost_actions(world) == []
        return await all_converged(world)

    await world.until(is_done_without_loss, "all converge, and nothing is lost", seconds=40)


@pytest.mark.parametrize("fault", ["error_rate", "error_after_rate", "throttle_rate"])
async def test_11_while_the_api_fails_each_action_is_leased_or_scheduled(
    bare_world: World, fault: str
):
    world = bare_world
    await world.start_reconciler()
    await world.configure(
        api_config(world.human.url, retry=Retry(initial_seconds=0.1, max_seconds=0.3))
    )
    await world.human.inject_faults(
        **{fault: 0.5, "methods": ["POST"], "seed": 7, "retry_after_seconds": 0}
    )

    await world.declare_all([manifest(name) for name in NAMES])

    await watch_until_converged(world)
    assert await world.human.effects() == ["POST"] * len(NAMES)
    retried = [every(RetryScheduled, await world.facts(name)) for name in NAMES]
    assert any(retried)


async def test_11_a_reconciler_stopped_in_the_middle_does_not_lose_actions(world: World):
    await world.human.inject_faults(latency_ms=100, methods=["POST"])
    await world.declare_all([manifest(name) for name in NAMES])

    async def some_are_in_flight() -> bool:
        return any(
            [type_names(await world.facts(name))[-1:] == ["ActionDecided"] for name in NAMES[:5]]
        )

    await world.until(some_are_in_flight, "some actions are in flight")
    await world.stop_reconciler()  # cuts off its calls; its leases end after 30 s
    assert await find_lost_actions(world) == []
    await world.human.clear_faults()

    await world.start_reconciler()

    await watch_until_converged(world)
    assert sorted(each["name"] for each in await world.human.journal()) == sorted(NAMES)


async def test_11_a_killed_server_causes_a_delay_but_no_duplicate(
    bare_world_on_own_server: World,
):
    """nats-server is killed and restarted while forty resources are being created."""
    world = bare_world_on_own_server
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, limits=Limits(concurrency=4)))
    await world.declare("first")
    await world.until_outcome("first", "Converged")
    await world.human.inject_faults(latency_ms=50, methods=["POST"])
    await world.declare_all([manifest(name) for name in NAMES])

    async def are_some_created() -> bool:
        return 1 < len(await world.human.journal()) < len(NAMES)

    await world.until(are_some_created, "some are created")
    await world.kill_nats()
    await world.human.reset_counts()

    async def is_api_idle() -> bool:
        requests_before = await world.human.requests()
        await asyncio.sleep(0.1)
        return requests_before == await world.human.requests()

    await world.until(is_api_idle, "the workers have nothing more to do")
    await world.start_nats()

    async def are_all_recreated() -> bool:
        are_converged = [
            type_names(await world.facts(name))[-1:] == ["OutcomeRecorded"] for name in NAMES
        ]
        return all(are_converged)

    await world.until(are_all_recreated, "all converge", seconds=60)
    assert await find_lost_actions(world) == []
    journal = [each["name"] for each in await world.human.journal()]
    assert sorted(journal) == sorted(["first", *NAMES])
    for name in NAMES:
        facts = await world.facts(name)
        assert len(every(SpecDeclared, facts)) == len(every(ActionDecided, facts)) == 1
        assert every(DriftDetected, facts) == []


async def test_11_the_log_continues_after_the_server_was_killed(
    bare_world_on_own_server: World,
):
    world = bare_world_on_own_server
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    before = await stream_state(world.nc, LOG)

    await world.kill_nats()
    await world.start_nats()
    await world.until(lambda: world.history("foo"), "the log is available again")

    after = await stream_state(world.nc, LOG)
    assert after.last_seq >= before.last_seq
    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=2)
    assert await world.human.effects() == ["POST", "PUT"]
