"""Tiers: every test is in one of them, and a run that starts too many processes fails."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.tiers import TIERS, Tier, tiers_of

REPOSITORY = Path(__file__).parents[1]
FILES = sorted(
    path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "tests").rglob("*.py")
)

SLEEPS: dict[Tier, int] = {"default": 35, "ci": 70, "night": 9}
"""Calls of ``sleep`` with a delay in the files of each tier; most are between two polls."""


def test_the_longest_matching_prefix_determines_the_tiers() -> None:
    assert tiers_of("tests/resource/test_decide.py") == ("default",)
    assert tiers_of("tests/faults/test_bus_full.py") == ("ci",)
    assert tiers_of("tests/faults/test_fault_25_soak.py") == ("night",)


@pytest.mark.parametrize("prefix", TIERS)
def test_each_prefix_has_tests(prefix: str) -> None:
    assert any(path.startswith(prefix) for path in FILES), f"{prefix}: delete it from TIERS"


def test_sleeps_are_within_the_budget() -> None:
    counts: Counter[str] = Counter()
    for path in FILES:
        if path.startswith("tests/permutations/"):
            continue  # virtual time
        counts[tiers_of(path)[0]] += _sleeps_in((REPOSITORY / path).read_text())
    exceeded = {tier: counts[tier] for tier, limit in SLEEPS.items() if counts[tier] > limit}
    assert not exceeded, "wait for a condition, or raise SLEEPS and say why in the commit"


def _sleeps_in(source: str) -> int:
    """Count calls of ``sleep`` whose delay is not 0."""
    return sum(
        isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == "sleep"
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
        for node in ast.walk(ast.parse(source))
    )


# --- runs of a small separate suite

_SUITE = {
    "tests/test_default.py": """
        import subprocess, sys
        def test_pure(): pass
        def test_process(): subprocess.run([sys.executable, "-c", ""], check=True)
    """,
    "tests/faults/test_ci.py": """
        import pytest
        def test_ci(): pass
    """,
    "tests/crashes/test_matrix.py": """
        import pytest
        def test_default(): pass
        @pytest.mark.tier("ci")
        def test_rest(): pass
    """,
    "tests/cluster/test_night.py": """
        import pytest
        @pytest.mark.parametrize("number", range(7))
        def test_night(number): pass
    """,
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name, text in _SUITE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line[8:] for line in text.splitlines()))
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\ntestpaths = ["tests"]\naddopts = "-p tests.tiers"\n'
    )
    return tmp_path


def _run(suite: Path, *arguments: str, patch: str = "") -> tuple[int, str]:
    """Run pytest on the suite; ``patch`` is run first, with the plugin as ``tiers``."""
    code = f"import pytest, tests.tiers as tiers\n{patch}\nraise SystemExit(pytest.main())"
    process = subprocess.run(
        [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", "-rA", *arguments],
        cwd=suite,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    return process.returncode, process.stdout + process.stderr


def _passed(output: str) -> set[str]:
    lines = [line for line in output.splitlines() if line.startswith("PASSED ")]
    return {line.rpartition("::")[2] for line in lines}


@pytest.mark.tier("night")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), {"test_pure", "test_process", "test_default"}),
        (("--tier", "ci"), {"test_ci", "test_rest"}),
        (("tests/crashes",), {"test_default", "test_rest"}),
        (("tests/crashes", "--tier", "ci"), {"test_rest"}),
        (("tests/faults/test_ci.py::test_ci",), {"test_ci"}),
    ],
)
def test_a_run_has_the_tests_of_its_tier(
    suite: Path, arguments: tuple[str, ...], expected: set[str]
) -> None:
    status, output = _run(suite, *arguments)
    assert (status, _passed(output)) == (0, expected), output


@pytest.mark.tier("night")
def test_the_parts_of_a_tier_make_up_the_whole_tier(suite: Path) -> None:
    parts = [_passed(_run(suite, "--tier", "night", "--part", f"{n}/3")[1]) for n in (1, 2, 3)]
    assert sorted(len(part) for part in parts) == [2, 2, 3]
    assert len(set[str]().union(*parts)) == 7


@pytest.mark.tier("night")
@pytest.mark.parametrize("part", ["0/3", "4/3", "1", "a/b"])
def test_a_part_that_does_not_exist_is_refused(suite: Path, part: str) -> None:
    status, output = _run(suite, "--tier", "night", "--part", part)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "expected K/N with K from 1 to N" in output


@pytest.mark.tier("night")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_tier_that_starts_too_many_processes_fails(suite: Path, workers: str) -> None:
    none = "tiers.BUDGETS = {'default': tiers.Starts(servers=0, processes=0)}"
    options = ["-p", "xdist", "-n", workers]
    status, output = _run(suite, *options, patch=none)
    assert status == pytest.ExitCode.TESTS_FAILED, output
    assert "over budget: " in output
    status, output = _run(suite, *options, "-k", "pure", patch=none)
    assert status == 0, output


@pytest.mark.tier("night")
def test_a_mark_that_contradicts_the_table_is_refused(suite: Path) -> None:
    (suite / "tests/test_default.py").write_text(
        "import pytest\n@pytest.mark.tier('night')\ndef test_it(): pass\n"
    )
    status, output = _run(suite)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "add it in tests/tiers.py" in output
