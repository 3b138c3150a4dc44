"""Latencies of single declarations, one after another."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from benchmarks.converge.client import Bus


async def latencies(bus: Bus, phase: str, samples: int) -> list[float]:
    """Declare single resources; return how many milliseconds each took until it was Converged."""
    found: list[float] = []
    for number in range(samples):
        name = f"{phase}-{number}"
        bus.expect([name], "Converged")
        began = time.perf_counter()
        await bus.declare([name])
        await bus.expected()
        found.append((time.perf_counter() - began) * 1_000)
        await asyncio.sleep(random.uniform(0.01, 0.03))
    return found


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the sample that such a share of the samples does not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
