"""The crash matrix: a crash at every step of every operation, without a loss or a duplicate.

Each case has real processes: one that dies (or whose server or API dies) at the step, and one that
continues. The case ends when the resource is as requested. There must be exactly one effect, and
exactly one action and its end in the log. The judge must find no problem on that bus.
"""

from __future__ import annotations

import pytest

from reconciler.failpoints import Failpoint
from tests.crashes.cases import (
    API_KILLED,
    OPERATIONS,
    PROCESS_KILLED,
    PROCESS_PAUSED,
    REAL_APIS,
    SEPARATE_STEPS,
    SERVER_KILLED,
    Case,
)
from tests.crashes.matrix import Matrix

pytestmark = pytest.mark.asyncio(loop_scope="session")

_ONE_PER_STEP = list({case.point: case for case in reversed(PROCESS_KILLED)}.values())
_REST = [case for case in PROCESS_KILLED if case not in _ONE_PER_STEP]


@pytest.mark.parametrize("case", _ONE_PER_STEP, ids=str)
async def test_a_process_killed_at_a_step_costs_only_time(matrix: Matrix, case: Case) -> None:
    await matrix.result(case)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("case", _REST, ids=str)
async def test_a_process_killed_at_any_step_of_any_operation_costs_only_time(
    matrix: Matrix, case: Case
) -> None:
    await matrix.result(case)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("case", REAL_APIS, ids=str)
async def test_the_requirements_of_real_apis_survive_a_kill_at_each_step(
    matrix: Matrix, case: Case
) -> None:
    await matrix.result(case)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("case", SERVER_KILLED, ids=str)
async def test_a_server_killed_at_any_step_costs_only_time(matrix: Matrix, case: Case) -> None:
    await matrix.result(case)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("case", API_KILLED, ids=str)
async def test_an_api_killed_at_any_step_costs_only_time(matrix: Matrix, case: Case) -> None:
    await matrix.result(case)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("case", PROCESS_PAUSED, ids=str)
async def test_a_paused_process_that_resumes_after_a_takeover_changes_nothing(
    matrix: Matrix, case: Case
) -> None:
    await matrix.result(case)


async def test_every_failpoint_is_reached_with_every_operation() -> None:
    """A case fails unless its process died at the step, so each listed step is reached."""
    reached = {(case.point, case.operation) for case in PROCESS_KILLED}
    # A plain shape takes only one request to create.
    reached |= {(case.point, case.operation) for case in REAL_APIS if case.row == "white"}
    expected = {
        (point, operation)
        for point in Failpoint
        if point not in SEPARATE_STEPS
        for operation in OPERATIONS
    }
    assert reached == expected
