"""`./run test` runs failed tests once more, alone, and reports those that pass as flaky."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAST_LINE = re.compile(r"^=+ (.*) in [0-9.]+s.*=+$")
TESTS = """
import os, pathlib, time
import pytest

def is_second(name):
    path = pathlib.Path(__file__).with_name(name)
    existed = path.exists()
    path.touch()
    return existed

def test_good(): pass
def test_flaky(): assert is_second("flaky"), "failed the first time"
@pytest.fixture
def left(): yield; assert is_second("left")
def test_flaky_end(left): pass
def test_alone():
    assert is_second("alone") and "PYTEST_XDIST_WORKER" not in os.environ
def test_bad(): assert False
"""


def run_tests(folder: Path, *arguments: str, tests: str = TESTS) -> tuple[int, str, str]:
    """Run `./run test` on a folder; return its status, output, and closing line.

    It has its own temporary folder, because leftovers of other runs would add warnings.
    """
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_them.py").write_text(tests)
    ran = subprocess.run(
        [ROOT / "run", "test", str(folder), f"--basetemp={folder / 'temporary'}", *arguments],
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ran.stdout.strip().splitlines()
    match = LAST_LINE.match(lines[-1])
    return ran.returncode, ran.stdout, match.group(1) if match is not None else ""


def _environment() -> dict[str, str]:
    """Return the environment without the variables of the run that this test is part of."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    only_xdist = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist --color=no"}
    return {**environment, **only_xdist, "TEST_PROCESSES": "2"}


def flaky(output: str) -> list[str]:
    return re.findall(r"^flaky: test_them\.py::(\w+)$", output, re.MULTILINE)


def test_a_test_that_passes_alone_is_named_and_does_not_fail_the_run(tmp_path: Path) -> None:
    status, output, closing = run_tests(tmp_path, "-k", "not bad")
    assert (status, closing) == (0, "1 passed, 3 flaky")
    assert flaky(output) == ["test_alone", "test_flaky", "test_flaky_end"]
    assert "failed the first time" in output
    assert len(re.findall(LAST_LINE.pattern, output, re.MULTILINE)) == 1


def test_a_test_that_fails_twice_fails(tmp_path: Path) -> None:
    status, output, closing = run_tests(tmp_path, "-k", "good or bad or alone")
    assert (status, closing) == (1, "1 failed, 1 passed, 1 flaky")
    assert flaky(output) == ["test_alone"]


@pytest.mark.parametrize(
    ("arguments", "tests", "status"),
    [
        (["-k", "good"], TESTS, 0),
        (["-k", "nobody"], TESTS, 5),
        (["-x", "-k", "flaky"], TESTS, 2),
        ([], "import no_such_module", 1),
        ([], "def test_bad(): assert False\n" + "".join(
            f"def test_{number}(): assert False\n" for number in range(20)), 1),
    ],
    ids=["good", "none", "first", "import", "many"],
)  # fmt: skip
def test_some_runs_have_no_second_run(
    tmp_path: Path, arguments: list[str], tests: str, status: int
) -> None:
    counts, output, _ = run_tests(tmp_path, *arguments, tests=tests)
    assert counts == status, output
    assert "run once more" not in output or "too many" in output


def test_a_stopped_run_has_no_second_run(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    tests = f"{TESTS}\ndef test_long(): pathlib.Path({str(marker)!r}).touch(); time.sleep(60)\n"
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_them.py").write_text(tests)
    process = subprocess.Popen(
        [ROOT / "run", "test", str(tmp_path), "-k", "flaky or long"],
        env={**_environment(), "TEST_PROCESSES": "0"},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - xdist ignores it
    )
    while not marker.exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 2
    assert "run once more" not in output
    assert "KeyboardInterrupt" in output
