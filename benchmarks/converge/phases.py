"""The phases of one case in order; each leaves the system idle."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks.converge import settings
from benchmarks.converge.api import Api, count_reads, count_writes, effect_time, last_effect_time
from benchmarks.converge.client import TIMEOUT_SECONDS, Bus
from benchmarks.converge.listings import read_listing_times
from benchmarks.converge.results import Converge, Drift, Latency, Restart, Withdrawal
from benchmarks.converge.stack import Stack
from benchmarks.converge.usage import Meter, usage_since_start
from infra.bus.streams import INTAKE
from infra.jetstream.reads import stream_state
from tests.faulty_api.app import Statistics

_POLL_SECONDS = 0.02
_WARM_UP = 5


async def converge(stack: Stack, bus: Bus, api: Api, names: Sequence[str]) -> Converge:
    """Declare all resources in one batch."""
    await _wait_until_read(api, 1)  # the first listing, which is empty
    await bus.wait_until_idle()
    await api.new_effects()
    await api.reset_counts()
    events_before = await bus.log_position()
    meter = Meter(stack.pids)
    bus.expect(names, "Converged")
    start_time, began = time.time(), time.perf_counter()
    await bus.declare(names)
    declared = time.perf_counter() - began
    await bus.wait_for_expected()
    seconds = time.perf_counter() - began
    usage = meter.read()
    statistics = await api.statistics()
    events = await bus.log_position() - events_before
    return Converge(
        seconds=round(seconds, 3),
        shapes_per_second=round(len(names) / seconds),
        exist_seconds=round(last_effect_time(await api.new_effects()) - start_time, 3),
        declare_seconds=round(declared, 3),
        events=events,
        events_per_second=round(events / seconds),
        requests=statistics.requests,
        shapes_in_api=statistics.shapes,
        usage=usage,
    )


async def restart(stack: Stack, bus: Bus, api: Api, shapes: int) -> Restart:
    """Stop and start the reconciler while nothing changes.

    The API counts requests by method, not by path. The phase has one listing (the next one is an
    hour away), so every GET beyond its pages reads an individual resource.
    """
    await bus.wait_until_idle()
    events_before = await bus.log_position()
    stopped = await stack.stop_reconcilers()
    await api.reset_counts()
    others = Meter({name: stack.pids[name] for name in ("nats-server", "example-api")})
    began = time.perf_counter()
    ready = await stack.start_reconcilers()
    await _wait_until_read(api, settings.pages(shapes))
    await bus.wait_until_idle()
    settled = time.perf_counter() - began
    usage = others.read() + usage_since_start(stack.reconciler_pids)
    await asyncio.sleep(settings.SETTLE_SECONDS)
    await bus.wait_until_idle()
    statistics = await api.statistics()
    return Restart(
        stop_seconds=round(stopped, 3),
        ready_seconds=round(ready, 3),
        settled_seconds=round(settled, 3),
        external_writes=count_writes(statistics),
        listing_requests=settings.pages(shapes),
        resource_reads=count_reads(statistics) - settings.pages(shapes),
        new_events=await bus.log_position() - events_before,
        usage=usage,
    )


async def drift(stack: Stack, bus: Bus, api: Api, names: Sequence[str]) -> Drift:
    """Delete a tenth of the objects out of band, while the reconciler lists often."""
    victims = random.Random(len(names)).sample(list(names), max(1, len(names) // 10))
    await bus.configure(settings.config(stack.api.url, settings.SHORT_RESYNC_SECONDS))
    await api.reset_counts()
    await _wait_until_read(api, 2 * settings.pages(len(names)))
    await api.new_effects()
    intake_before = (await stream_state(bus.nc, INTAKE)).last_seq
    meter, began = Meter(stack.pids), time.perf_counter()
    await api.delete(victims)
    deleting = time.perf_counter() - began
    await _wait_until(
        api, lambda statistics: statistics.shapes == len(names), "all resources to be restored"
    )
    await bus.wait_until_idle()
    usage = meter.read()
    effects = await api.new_effects()
    deletions = [each for each in effects if each.idempotency_key is None]
    restored = {
        each.name: effect_time(each)
        for each in effects
        if each.idempotency_key is not None and each.method == "POST"
    }
    listing_times = await read_listing_times(bus.nc, intake_before)
    await _list_infrequently(stack, bus, api, len(names))
    return Drift(
        resync_seconds=settings.SHORT_RESYNC_SECONDS,
        deleted=len(deletions),
        deleting_seconds=round(deleting, 3),
        restored=len(restored.keys() & set(victims)),
        seconds=round(max(restored.values()) - last_effect_time(deletions), 3),
        since_listing_seconds=round(_longest(listing_times, restored), 3),
        other_effects=len(effects) - len(deletions) - len(restored.keys() & set(victims)),
        usage=usage,
    )


async def withdraw(stack: Stack, bus: Bus, api: Api, names: Sequence[str]) -> Withdrawal:
    """Withdraw all resources."""
    await bus.wait_until_idle()
    await api.new_effects()
    await api.reset_counts()
    bus.expect(names, "Deleted")
    meter = Meter(stack.pids)
    start_time, began = time.time(), time.perf_counter()
    await bus.withdraw(names)
    await bus.wait_for_expected()
    seconds = time.perf_counter() - began
    usage = meter.read()
    statistics = await api.statistics()
    return Withdrawal(
        seconds=round(seconds, 3),
        shapes_per_second=round(len(names) / seconds),
        empty_seconds=round(last_effect_time(await api.new_effects()) - start_time, 3),
        shapes_in_api=statistics.shapes,
        requests=statistics.requests,
        usage=usage,
    )


async def idle(bus: Bus, api: Api, samples: int) -> Latency:
    """Declare resources one at a time, under no other load.

    The API's journal records the time of a creation in the same transaction, and all processes use
    the same clock, so nothing is polled.
    """
    await bus.wait_until_idle()
    await api.new_effects()
    published: dict[str, float] = {}
    outcomes: list[float] = []
    for number in range(_WARM_UP + samples):
        name = f"idle-{number}"
        bus.expect([name], "Converged")
        start_time, began = time.time(), time.perf_counter()
        await bus.declare([name])
        await bus.wait_for_expected()
        if number >= _WARM_UP:
            published[name] = start_time
            outcomes.append((time.perf_counter() - began) * 1_000)
        await asyncio.sleep(random.uniform(0.01, 0.03))
    exists = [
        (effect_time(each) - published[each.name]) * 1_000
        for each in await api.new_effects()
        if each.name in published
    ]
    return Latency(
        samples=len(exists),
        exists_p50_ms=_percentile(exists, 0.50),
        exists_p99_ms=_percentile(exists, 0.99),
        outcome_p50_ms=_percentile(outcomes, 0.50),
        outcome_p99_ms=_percentile(outcomes, 0.99),
    )


async def _list_infrequently(stack: Stack, bus: Bus, api: Api, shapes: int) -> None:
    """Return to infrequent listings. The change itself causes one more listing."""
    await api.reset_counts()
    await bus.configure(settings.config(stack.api.url, settings.LONG_RESYNC_SECONDS))
    await _wait_until_read(api, settings.pages(shapes))
    await asyncio.sleep(settings.SETTLE_SECONDS)


async def _wait_until_read(api: Api, requests: int) -> None:
    await _wait_until(
        api, lambda statistics: count_reads(statistics) >= requests, f"{requests} reads"
    )


async def _wait_until(api: Api, holds: Callable[[Statistics], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds(await api.statistics()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"still waiting for {what} after {TIMEOUT_SECONDS:.0f} s")
        await asyncio.sleep(_POLL_SECONDS)


def _longest(listing_times: Mapping[str, float], restored: Mapping[str, float]) -> float:
    return max(restored[name] - listing_times[name] for name in restored)


def _percentile(values: Sequence[float], share: float) -> float:
    return round(sorted(values)[min(len(values) - 1, int(len(values) * share))], 2)
