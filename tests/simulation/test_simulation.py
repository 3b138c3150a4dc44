"""The whole loop under every fault: no leak, no duplicate, no loss."""

from __future__ import annotations

from inspect import isfunction, signature
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.simulation.generator import plan_of
from tests.simulation.many import run_seeds
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.plan import Plan, decode_plan, encode_plan
from tests.simulation.run import Result, run
from tests.simulation.shrink import failure_pattern, shrink

_MAX_SEEDS_PER_MUTATION = 2_000
_MISFIT_ERRORS = ("TypeError", "AttributeError", "NameError")
"""Errors of a mutation that does not fit the current product and so proves nothing."""

_OPEN_FAILURES = {
    # A worker deletes an object and dies, and the next one reports a throttled call as its first.
    # The action is abandoned as if it had had no effect.
    19_137,
}
"""Seeds with a known defect that is not mended yet."""

_MIN_DISTINCT_EVENTS = 80
"""Distinct faults and events in 50 seeds: 98 to 110 in the first thousand seeds.

An individual fault strikes two to seven times in 50 seeds, and never in some slices.
"""

_STORED_PLANS = sorted(Path(__file__).with_name("plans").glob("*.json"))
"""Shrunk plans that once failed: a seed yields a different plan when the generator changes."""


def _slices(first: int, last: int, count: int, *marks: pytest.MarkDecorator) -> list[ParameterSet]:
    return [
        pytest.param(start, count, id=f"{start}-{start + count - 1}", marks=marks)
        for start in range(first, last, count)
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("first", "count"),
    [
        *_slices(0, 100, 50),
        *_slices(100, 1_000, 50, pytest.mark.tier("ci")),
        *_slices(1_000, 21_000, 250, pytest.mark.tier("night")),
    ],
)
def test_no_seed_breaks_an_invariant(first: int, count: int) -> None:
    seeds = [seed for seed in range(first, first + count) if seed not in _OPEN_FAILURES]
    total = run_seeds(seeds)
    failures = [
        f"./run python -m tests.simulation --seed {seed}\n    {violation}"
        for seed, violation in total.failed.items()
    ]
    assert not failures, "\n" + "\n".join(failures)
    assert total.seeds == len(seeds)
    assert total.effects > count
    assert len(total.counts) > _MIN_DISTINCT_EVENTS


@pytest.mark.parametrize("path", _STORED_PLANS, ids=lambda path: path.stem)
def test_a_plan_that_once_failed_passes(path: Path) -> None:
    result = run(decode_plan(path.read_bytes()))
    assert not result.violations
    assert result.events


def _first_detection(mutation: Mutation) -> tuple[int, Result] | None:
    for seed in range(_MAX_SEEDS_PER_MUTATION):
        with pytest.MonkeyPatch.context() as patch:
            mutation.apply_to(patch)
            result = run(plan_of(seed))
        if result.violations:
            return seed, result
    return None


class _CheckedPatch:
    """Checks that a replacement accepts the calls of what it replaces, and replaces nothing."""

    def setattr(self, target: object, name: str, value: object) -> None:
        replaced = getattr(target, name)
        if not isfunction(replaced) or not isfunction(value):
            assert callable(replaced) == callable(value), f"{target}.{name}"
            return
        parameters = signature(replaced).parameters.values()
        named = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY}
        try:
            signature(value).bind(*(None for each in parameters if each.name not in named), **named)
        except TypeError as error:
            pytest.fail(f"{name}{signature(value)} replaces {name}{signature(replaced)}: {error}")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_functions_that_it_replaces(mutation: Mutation) -> None:
    mutation.apply_to(_CheckedPatch())


@pytest.mark.tier("night")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
@pytest.mark.timeout(900)  # some take a hundred runs
def test_a_defect_in_the_product_is_detected(mutation: Mutation) -> None:
    detection = _first_detection(mutation)
    assert detection is not None, f"not detected in {_MAX_SEEDS_PER_MUTATION} seeds"
    seed, result = detection
    assert not any(each in result.violations[0] for each in _MISFIT_ERRORS), result.violations[0]
    print(f"{mutation.name}: detected after {seed + 1} seeds: {result.violations[0]}")
    assert not run(plan_of(seed)).violations, "the plan fails without the defect too"


@pytest.mark.parametrize("seed", [1, 17, 99])
def test_a_seed_determines_the_run(seed: int) -> None:
    assert _trace(plan_of(seed)) == _trace(plan_of(seed))


def test_different_seeds_give_different_runs() -> None:
    assert _trace(plan_of(1)) != _trace(plan_of(2))


def test_a_plan_can_be_stored_and_run_again() -> None:
    plan = plan_of(3)
    stored = decode_plan(encode_plan(plan))
    assert stored == plan
    assert _trace(stored) == _trace(plan)


@pytest.mark.tier("night")
def test_a_failing_plan_is_shrunk_to_its_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    [defect] = [each for each in MUTATIONS if each.name == "everything is adopted"]
    detection = _first_detection(defect)
    assert detection is not None
    defect.apply_to(monkeypatch)

    def fails(plan: Plan) -> str | None:
        violations = run(plan).violations
        return violations[0] if violations else None

    whole = plan_of(detection[0])
    smallest = shrink(whole, fails)
    message = fails(smallest)
    assert message is not None
    assert failure_pattern(message) == failure_pattern(detection[1].violations[0])
    assert len(smallest.steps) <= min(8, len(whole.steps) // 3)


def _trace(plan: Plan) -> list[str]:
    trace_lines: list[str] = []
    run(plan, trace=trace_lines.append)
    assert len(trace_lines) > 10
    return trace_lines
