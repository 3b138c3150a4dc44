"""Machine requirements of some tests, and the skip reasons if one is missing."""

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

They are named here and imported when a marked test runs: collecting other tests imports no system.
"""


def skip_unless_needs_are_met(item: pytest.Item) -> None:
    """Skip a test if the machine lacks a requirement that its markers name."""
    for marker, name in _PROBLEMS.items():
        if item.get_closest_marker(marker) is not None:
            problem = resolve_name(name)()
            if problem is not None:
                skip_unless_in_ci(problem)


def faketime_problem() -> str | None:
    """Return why the clock of a process cannot be changed; None if it can."""
    return None if FAKETIME_LIBRARIES else "libfaketime is not installed (faketime package)"


def skip_unless_in_ci(problem: str) -> NoReturn:
    """Skip the running test; in CI (``CI=true``), which meets all requirements, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(problem, pytrace=False)
    pytest.skip(problem)
