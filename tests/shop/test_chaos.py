"""The shop during random kills; ``python -m tests.shop.chaos`` runs it for longer."""

from __future__ import annotations

import time

import pytest

from tests.folders import short_folder
from tests.needs import skip_unless_in_ci
from tests.shop.chaos import chaos
from tests.shop.image import psql_problem

ROUNDS = 14


@pytest.mark.own_dockerd
@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nothing_is_duplicated_leaked_or_unexplained_after_any_kill() -> None:
    if (problem := psql_problem()) is not None:
        skip_unless_in_ci(problem)
    seed = int(time.time())
    print(f"seed {seed}")
    with short_folder() as folder:
        record = await chaos(folder, seed=seed, rounds=ROUNDS)
    print(record)
    assert not record.problems, str(record)
    assert record.fault_counts.total() > ROUNDS
