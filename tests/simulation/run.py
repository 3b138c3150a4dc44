"""Runs one plan to its end, and returns the result."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation import plan as p
from tests.simulation.ending import find_undecided, settle_and_check
from tests.simulation.world import World, watch_services


@dataclass
class Result:
    """The result of a run, with its first violations, if any."""

    plan: p.Plan
    violations: list[str]
    steps: int
    events: int
    effects: int
    seconds: float
    step_counts: Counter[str] = field(default_factory=Counter[str])
    strike_counts: Counter[str] = field(default_factory=Counter[str])


def run(plan: p.Plan, *, trace: Callable[[str], None] | None = None) -> Result:
    """Play a plan, stop the faults, and check everything."""
    start_seconds = time.process_time()
    world = World(plan, trace=trace)
    original_hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None  # killed coroutines raise when they are freed
    try:
        with watch_services(world):
            world.play()
            undecided = find_undecided(world)
            world.heal()
            violations = list(world.checks.violations) or undecided or settle_and_check(world)
            world.close()
    finally:
        sys.unraisablehook = original_hook
    return Result(
        plan=plan,
        violations=violations,
        steps=world.loop.steps,
        events=world.log.last_position,
        effects=world.checks.effects,
        seconds=time.process_time() - start_seconds,
        step_counts=world.step_counts,
        strike_counts=world.network.strike_counts,
    )
