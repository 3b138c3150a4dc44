"""Fault 25: everything at random for 20 seconds; ``python -m tests.crashes.soak`` for longer."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests.crashes.nemesis import FIRST_FAULTS, shuffled_faults
from tests.crashes.soak import MIN_DECLARATIONS, soak

SECONDS = 20.0
SEED = 25
KINDS = 9


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_25_nothing_is_lost_leaked_or_duplicated_under_any_fault(tmp_path: Path) -> None:
    result = await soak(tmp_path, seed=SEED, seconds=SECONDS)
    print(result)
    assert not result.findings, str(result)
    assert result.deaths > 0
    assert len(result.fault_counts) == KINDS
    assert result.declarations >= MIN_DECLARATIONS


@pytest.mark.parametrize("seed", range(5))
def test_25_every_fault_occurs_once_before_any_occurs_twice(seed: int) -> None:
    kinds = ("API paused", "process killed", "server killed", "process paused", "timers purged")

    def deal() -> list[str]:
        return list(itertools.islice(shuffled_faults(kinds, random.Random(seed)), 2 * len(kinds)))

    fault_counts = deal()
    assert tuple(fault_counts[: len(FIRST_FAULTS)]) == FIRST_FAULTS
    assert sorted(fault_counts[: len(kinds)]) == sorted(fault_counts[len(kinds) :]) == sorted(kinds)
    assert deal() == fault_counts, "a seed must reproduce the choices"
