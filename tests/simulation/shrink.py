"""Makes a failing plan smaller while it still fails in the same way.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002)
over the steps. Then processes are dropped, and the traits of
the API and the numbers are reset to their defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from tests.simulation import plan as p

_MAX_RUNS = 1_500
_DETAILS = re.compile(r"\b(default/Shape/)?(foo|bar|baz|qux|zoo)\b|[0-9.]+|; the API has.*|\{.*")

Fails = Callable[[p.Plan], str | None]
"""Runs a plan and returns its first violation, or None."""


def failure_pattern(violation: str) -> str:
    """Return a violation without its names and numbers."""
    return _DETAILS.sub("_", violation)[:120]


def shrink(plan: p.Plan, fails: Fails, *, progress: Callable[[int], None] | None = None) -> p.Plan:
    """Return the smallest plan found that fails like this one."""
    first = fails(plan)
    if first is None:
        return plan
    expected, runs = failure_pattern(first), 0

    def still_fails(smaller: p.Plan) -> bool:
        nonlocal runs
        runs += 1
        if progress is not None:
            progress(len(smaller.steps))
        failure = fails(smaller) if runs <= _MAX_RUNS else None
        return failure is not None and failure_pattern(failure) == expected

    while True:
        previous_plan = plan
        plan = _fewer_steps(plan, still_fails)
        for make in (_fewer_processes, _simpler_api, _simpler_steps, _shorter):
            for smaller in make(plan):
                if smaller != plan and still_fails(smaller):
                    plan = smaller
        if plan == previous_plan:
            return plan


def _fewer_steps(plan: p.Plan, still_fails: Callable[[p.Plan], bool]) -> p.Plan:
    parts = 2
    while len(plan.steps) >= 1:
        size = max(1, len(plan.steps) // parts)
        for start in range(0, len(plan.steps), size):
            remaining_steps = (*plan.steps[:start], *plan.steps[start + size :])
            smaller = replace(plan, steps=remaining_steps)
            if still_fails(smaller):
                plan, parts = smaller, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(plan.steps), parts * 2)
    return plan


def _fewer_processes(plan: p.Plan) -> Iterator[p.Plan]:
    for deleted_process in plan.processes:
        yield replace(
            plan, processes=tuple(each for each in plan.processes if each is not deleted_process)
        )
    default = tuple(replace(each, clock_seconds=0.0) for each in plan.processes)
    yield replace(plan, processes=default)


def _simpler_api(plan: p.Plan) -> Iterator[p.Plan]:
    default = p.ApiTraits()
    for name in p.ApiTraits.__struct_fields__:
        changed: dict[str, object] = {name: getattr(default, name)}
        yield replace(plan, api=replace(plan.api, **changed))
    yield replace(plan, limits=p.Limits())


def _simpler_steps(plan: p.Plan) -> Iterator[p.Plan]:
    for index, step in enumerate(plan.steps):
        for name, value in _simpler_values(step):
            changed: dict[str, object] = {name: value}
            simpler: Sequence[p.Step] = [replace(step, **changed)]
            yield replace(plan, steps=(*plan.steps[:index], *simpler, *plan.steps[index + 1 :]))


def _simpler_values(step: p.Step) -> Iterator[tuple[str, object]]:
    if isinstance(step, p.Declare):
        yield "policy", {}
        yield "labels", {}
        yield "moved_from", ""
        yield "fields", {"color": step.fields["color"]}
    if isinstance(step, p.Declare | p.Withdraw):
        yield "copies", 1
    rounded = round(step.at, 1)
    if rounded != step.at and msgspec.to_builtins(step)["at"] > 0:
        yield "at", rounded


def _shorter(plan: p.Plan) -> Iterator[p.Plan]:
    last = max((step.at for step in plan.steps), default=0.0)
    yield replace(plan, seconds=round(last + 1.0, 1))
