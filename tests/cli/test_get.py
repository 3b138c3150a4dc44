"""`get`: what is asked for is checked."""

from __future__ import annotations

from typing import get_args

import pytest

from events.log import OutcomeName
from tests.cli.runner import Cli


def test_an_unknown_outcome_is_an_error_that_names_the_known_ones(live: Cli) -> None:
    ran = live.run("get", "-A", "--outcome", "Bogus")
    assert ran.status == 2
    for outcome in {*get_args(OutcomeName), "Pending"} - {"Rejected"}:
        assert outcome in ran.err


@pytest.mark.parametrize("outcome", ["converged", "Pending", "FAILED"])
def test_an_outcome_is_known_however_it_is_written(live: Cli, outcome: str) -> None:
    live.ok("get", "-A", "--outcome", outcome)
