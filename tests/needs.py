"""What some tests need of the machine, and what is said where it is not there."""

from __future__ import annotations

import glob
import os
from pkgutil import resolve_name
from typing import NoReturn

import pytest

FAKETIME_LIBRARIES = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")  # noqa: PTH207 - absolute

_PROBLEMS = {
    "docker": "tests.docker.engine:engine_problem",
    "dockerd": "tests.engines:dockerd_problem",
    "own_dockerd": "tests.engines:own_dockerd_problem",
    "faketime": "tests.needs:faketime_problem",
    "postgres": "infra.components.postgres:problem",
    "disks": "tests.disks:problem",
    "nftables": "tests.nftables:nftables_problem",
    "caddy": "infra.components.caddy:problem",
    "pebble": "infra.components.certificates:problem",
}
"""For each marker, the function that returns what is missing on this machine, or None.

They are named here and imported when a marked test runs: collecting the others imports no system.
"""


def skip_where_a_need_is_missing(item: pytest.Item) -> None:
    """Skip a test whose markers name something that this machine does not have."""
    for marker, name in _PROBLEMS.items():
        if item.get_closest_marker(marker) is not None:
            problem = resolve_name(name)()
            if problem is not None:
                skip_unless_in_ci(problem)


def faketime_problem() -> str | None:
    """Say why no process's clock can be moved; None if it can."""
    return None if FAKETIME_LIBRARIES else "libfaketime is not installed (package faketime)"


def skip_unless_in_ci(problem: str) -> NoReturn:
    """Skip the test that runs; in CI (``CI=true``), which has all that is needed, it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(problem, pytrace=False)
    pytest.skip(problem)
