"""Latencies of individual declarations, one at a time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from benchmarks.converge.client import Bus


async def latencies(bus: Bus, phase: str, samples: int) -> list[float]:
    """Declare resources one at a time; return the milliseconds until each converged."""
    milliseconds: list[float] = []
    for number in range(samples):
        name = f"{phase}-{number}"
        bus.expect([name], "Converged")
        began = time.perf_counter()
        await bus.declare([name])
        await bus.wait_for_expected()
        milliseconds.append((time.perf_counter() - began) * 1_000)
        await asyncio.sleep(random.uniform(0.01, 0.03))
    return milliseconds


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the value that this share of the samples does not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
