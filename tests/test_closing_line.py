"""The closing line of several runs sums their counts, and a run that did not finish is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.closing_line import closing_line, main

PASSED = "tests/a.py ..\n============ 5 passed, 2 skipped in 61.20s (0:01:01) ============\n"
FAILED = "=== 1 failed, 7 passed, 1 warning, 2 errors in 3.00s ===\n"


def test_the_counts_of_all_runs_are_summed() -> None:
    line, is_good = closing_line([PASSED, PASSED])
    assert line.strip("= ") == "10 passed, 4 skipped in 122.40s"
    assert is_good


def test_one_failed_run_fails_them_all() -> None:
    line, is_good = closing_line([PASSED, FAILED])
    assert line.strip("= ") == "1 failed, 12 passed, 2 skipped, 1 warning, 2 errors in 64.20s"
    assert not is_good


def test_the_last_closing_line_of_a_run_counts() -> None:
    """A run that repeats failed tests alone prints the closing line of the repetition first."""
    line, is_good = closing_line(["== 1 passed in 0.10s ==\n" + PASSED])
    assert line.strip("= ") == "5 passed, 2 skipped in 61.20s"
    assert is_good


def test_a_run_that_did_not_finish_is_an_error() -> None:
    line, is_good = closing_line([PASSED, "tests/a.py ..\nTerminated\n"])
    assert line.strip("= ") == "5 passed, 2 skipped, 1 error in 61.20s"
    assert not is_good


def test_a_run_without_tests_fails() -> None:
    line, is_good = closing_line(["=== no tests ran in 0.03s ===\n"])
    assert line.strip("= ") == "no tests ran in 0.03s"
    assert not is_good


def test_a_missing_log_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "default").write_text(PASSED)
    assert main([str(tmp_path / "default"), str(tmp_path / "ci")]) == 1
    assert "1 error" in capsys.readouterr().out
