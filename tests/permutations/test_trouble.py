"""A failing API: permutations of scenario 14."""

from __future__ import annotations

import asyncio

from events.log import (
    ActionDecided,
    ActionRetried,
    BreakerClosed,
    BreakerOpened,
)
from events.names import SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import PROVIDER_CONFIG_KIND, Breaker, Limits
from tests.memory_bus.actions import LEASE_SECONDS
from tests.memory_bus.deliveries import Consumer
from tests.permutations.world import MemoryWorld
from tests.scenarios.harness import World, api_config, every, manifest, only, shape
from tests.scenarios.test_trouble import CONFIG, SLOW_LISTINGS, until_breaker

SILENT_PORT = 9


async def test_14_a_failing_api_is_not_called_and_every_outcome_names_the_reason(
    world: World,
) -> None:
    """Scenario 14: 500 opens the breaker, a probe closes it, and one effect remains."""
    await world.configure(
        api_config(world.human.url, breaker=Breaker(3, initial_seconds=5.0, max_seconds=5.0))
    )
    await world.human.inject_faults(error_rate=1, error_status=500)
    await world.declare("foo")
    outcome = await until_breaker(world, "Degraded")
    assert outcome.reason == "BreakerOpen"
    assert "consecutive failures" in outcome.message

    async def foo_waits_for_the_breaker() -> bool:
        recorded = await world.outcomes(shape("foo"))
        return any("breaker for API 'default' open until" in each.message for each in recorded)

    await world.until(foo_waits_for_the_breaker, "foo Degraded because of the breaker")
    await world.human.clear_faults()
    await world.until_outcome("foo", "Converged")
    await until_breaker(world, "Converged")
    assert await world.human.effects() == ["POST"]
    facts = await world.facts("foo")
    keys = {each.action.idempotency_key for each in every(ActionRetried, facts)}
    assert keys == {only(ActionDecided, facts).action.idempotency_key}
    gate = await world.facts(CONFIG)
    assert every(BreakerOpened, gate)
    assert every(BreakerClosed, gate)


async def test_14_an_unresponsive_api_does_not_starve_the_others(bare_world: MemoryWorld) -> None:
    """Scenario 14: its actions return to the log, so that those of other APIs are delivered."""
    world, leases = bare_world, 16
    await world.start_reconciler()
    workers = world.bus.actions.consumers
    workers["dead"] = Consumer(LEASE_SECONDS, max_ack_pending=leases)
    world.bus.loop.listen(SILENT_PORT, asyncio.Protocol)  # accepts connections, and never responds
    await world.configure(
        api_config(
            f"http://127.0.0.1:{SILENT_PORT}",
            resync=SLOW_LISTINGS,
            limits=Limits(request_timeout_seconds=1),
            breaker=Breaker(3, initial_seconds=60.0, max_seconds=60.0),
        ),
        name="dead",
    )
    await world.configure(api_config(world.human.url, resync=SLOW_LISTINGS))
    names = [f"dead{number}" for number in range(4 * leases)]
    await world.declare_all([manifest(name, config="dead") for name in names])
    await world.until_outcome(_config("dead"), "Degraded")
    await world.declare("alive")
    await world.until_outcome("alive", "Converged")

    async def holds_nothing() -> bool:
        return all(consumer.is_idle for consumer in workers.values())

    await world.until(holds_nothing, "no action of the dead API is leased")
    for name in names:
        await world.until_outcome(name, "Degraded")


def _config(name: str) -> ResourceKey:
    return ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, name)
