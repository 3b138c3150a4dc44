"""Runs failed tests once more, alone. Those that then pass are flaky, and are listed by name.

A pytest plugin, for `./run test` only. Flaky tests do not make the run fail; their list is there to
be fixed. Failures that are not random (collection errors, or dozens of them) stand, and a run that
a user stopped is not repeated.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

MAX_TESTS: Final = 20  # more failures have a common cause, and individual runs would take too long
_PASSED_FILE: Final = "--write-passed"


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "In the second run: write the ids of the passed tests to this file."
    parser.addoption(_PASSED_FILE, metavar="FILE", type=Path, default=None, help=help_text)


@pytest.hookimpl(trylast=True)  # the workers of xdist have exited, so no other test runs
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):
        return
    reporter: pytest.TerminalReporter | None = session.config.pluginmanager.get_plugin(
        "terminalreporter"
    )
    assert reporter is not None
    passed_file: Path | None = session.config.getoption(_PASSED_FILE)
    if passed_file is not None:
        passed_file.write_text("\n".join(_ids(reporter, "passed") - _failed(reporter)))
        return
    was_stopped = session.shouldfail or session.shouldstop
    failed = _failed(reporter)
    if exitstatus != pytest.ExitCode.TESTS_FAILED or was_stopped or not failed:
        return
    if len(failed) > MAX_TESTS:
        reporter.write_line(f"\n{len(failed)} tests failed: too many to run once more")
        return
    _count_as_flaky(reporter, _passed_alone(session.config, sorted(failed)))
    if not reporter.stats.get("failed") and not reporter.stats.get("error"):
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: after pytest's own summary
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    yield
    flaky: list[pytest.TestReport] = terminalreporter.stats.get("flaky", [])
    if not flaky:
        return
    terminalreporter.section("failed, and passed when run once more, alone")
    for report in flaky:
        terminalreporter.section(report.nodeid, "_")
        report.toterminal(terminalreporter.config.get_terminal_writer())
        for name, content in report.sections:
            terminalreporter.section(name, "-")
            terminalreporter.line(content)
    terminalreporter.section("flaky tests")
    for report in flaky:
        terminalreporter.line(f"flaky: {report.nodeid}")


def _ids(reporter: pytest.TerminalReporter, *outcomes: str) -> set[str]:
    """Return the ids of the tests, not of modules, that have a report with one of the outcomes."""
    reports = [report for outcome in outcomes for report in reporter.stats.get(outcome, [])]
    return {report.nodeid for report in reports if isinstance(report, pytest.TestReport)}


def _failed(reporter: pytest.TerminalReporter) -> set[str]:
    return _ids(reporter, "failed", "error")


def _passed_alone(config: pytest.Config, ids: list[str]) -> set[str]:
    """Run tests one at a time in a separate process; return those that pass."""
    with tempfile.TemporaryDirectory() as folder:
        passed_file = Path(folder) / "passed"
        command = [sys.executable, "-m", "pytest", "-p", __name__, "--numprocesses=0", "--quiet"]
        command += [f"{_PASSED_FILE}={passed_file}", f"--rootdir={config.rootpath}"]
        command += ["-c", str(config.inipath)] if config.inipath is not None else []
        capture = config.pluginmanager.get_plugin("capturemanager")
        assert capture is not None
        with capture.global_and_fixture_disabled():
            print(f"\n\nrun once more, alone: {len(ids)} failed", flush=True)
            try:
                subprocess.run([*command, *ids], cwd=config.rootpath, check=False)
            except KeyboardInterrupt:
                print("\nstopped: the failures stand")
                return set()
        return (
            set(passed_file.read_text().splitlines()) & set(ids) if passed_file.exists() else set()
        )


def _count_as_flaky(reporter: pytest.TerminalReporter, ids: set[str]) -> None:
    """Count each of the tests once, as flaky, and show its first failure."""
    failures = [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]
    first = {each.nodeid: each for each in reversed(failures) if each.nodeid in ids}
    for outcome in ("passed", "failed", "error"):
        reports = reporter.stats.get(outcome, [])
        reporter.stats[outcome] = [each for each in reports if each.nodeid not in ids]
    if first:
        reporter.stats["flaky"] = [first[nodeid] for nodeid in sorted(first)]
