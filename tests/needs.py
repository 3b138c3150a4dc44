"""What some tests need of the machine, and what is said where it is not there."""

from __future__ import annotations

import glob
import os
from typing import NoReturn

import pytest

FAKETIME_LIBRARIES = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")  # noqa: PTH207 - absolute


def faketime_problem() -> str | None:
    """Say why no process's clock can be moved; None if it can."""
    return None if FAKETIME_LIBRARIES else "libfaketime is not installed (package faketime)"


def skip_unless_in_ci(problem: str) -> NoReturn:
    """Skip the test that runs; in CI (``CI=true``), which has all that is needed, it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(problem, pytrace=False)
    pytest.skip(problem)
