"""Runs many seeds in several processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.simulation.generator import plan_of
from tests.simulation.run import run

_SEEDS_PER_TASK = 20


@dataclass
class Tally:
    """The results of several seeds: failed seeds with their first violation, and counts."""

    seeds: int = 0
    steps: int = 0
    events: int = 0
    effects: int = 0
    seconds: float = 0.0
    failed: dict[int, str] = field(default_factory=dict[int, str])
    counts: Counter[str] = field(default_factory=Counter[str])

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.events += other.events
        self.effects += other.effects
        self.seconds += other.seconds
        self.failed |= other.failed
        self.counts.update(other.counts)


def run_seeds(seeds: Sequence[int]) -> Tally:
    """Run seeds one after the other."""
    tally = Tally()
    for seed in seeds:
        result = run(plan_of(seed))
        tally.seeds += 1
        tally.steps += result.steps
        tally.events += result.events
        tally.effects += result.effects
        tally.seconds += result.seconds
        tally.counts.update(result.step_counts)
        tally.counts.update(result.strike_counts)
        if result.violations:
            tally.failed[seed] = result.violations[0]
    return tally


def run_many(
    first: int, count: int, *, processes: int = 2, progress: Callable[[int], None] | None = None
) -> Tally:
    """Run ``count`` seeds from ``first``; ``progress`` receives the number of new results."""
    total = Tally()
    for tally in _tallies(first, count, processes):
        total.add(tally)
        if progress is not None:
            progress(tally.seeds)
    return total


def _tallies(first: int, count: int, processes: int) -> Iterator[Tally]:
    last = first + count
    parts = [
        range(start, min(start + _SEEDS_PER_TASK, last))
        for start in range(first, last, _SEEDS_PER_TASK)
    ]
    if processes == 1:
        yield from map(run_seeds, parts)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_seeds, parts)
