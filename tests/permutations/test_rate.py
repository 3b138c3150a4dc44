"""One rate limit for all workers of an API, checked against the API's journal."""

from __future__ import annotations

import time

from events.provider_config import Limits
from tests.scenarios.harness import World, api_config


async def test_listings_count_toward_the_rate_limit(bare_world: World) -> None:
    world = bare_world
    await world.start_reconciler()
    await world.human.reset_counts()
    began = time.time()
    limits = Limits(requests_per_second=5)
    await world.configure(api_config(world.human.url, resync=0.05, limits=limits))
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.until_observed_again(5)
    requests = await world.human.requests()
    assert sum(sum(each.values()) for each in requests.values()) <= 5 * (time.time() - began) + 1
