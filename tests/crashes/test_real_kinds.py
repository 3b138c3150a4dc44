"""The crash matrix on real systems: a kill around each call and between any two calls."""

from __future__ import annotations

import pytest

from tests.crashes.cases import REAL_KINDS, Case
from tests.crashes.matrix import Matrix

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.dockerd,
    pytest.mark.postgres,
    pytest.mark.slow,
]


_CASES = [
    pytest.param(each, marks=pytest.mark.disks) if each.row in ("disk", "attachment") else each
    for each in REAL_KINDS
]


@pytest.mark.parametrize("case", _CASES, ids=str)
async def test_a_kill_around_any_call_leaves_one_object_as_declared(
    kinds_matrix: Matrix, case: Case
) -> None:
    await kinds_matrix.result(case)
