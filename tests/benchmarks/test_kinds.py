"""The kind benchmark runs, and its counts are correct; its times are not judged here."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.kinds.__main__ import Report

ROOT = Path(__file__).parents[2]


@pytest.mark.own_dockerd
@pytest.mark.postgres
@pytest.mark.slow
def test_a_change_makes_the_calls_that_it_needs_and_no_others(tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.kinds", "--quick", "--json", str(report_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    report = msgspec.json.decode(report_path.read_bytes(), type=Report)
    assert {"reconciler", "the Engine, called directly, 64 at the same time"} <= {
        each.method for each in report.creations
    }
    writes = {
        change: sorted(call.rpartition("/")[2] for call in counts if not call.startswith("GET"))
        for change, counts in report.calls.items()
    }
    assert writes == {
        "created": ["create", "start"],
        "changed in place (memory)": ["update"],
        "replaced (command)": ["*", "create", "start", "stop"],
        "killed, and repaired": ["start"],
        "withdrawn": ["*", "stop"],
    }
    assert all(
        count == 1
        for counts in report.calls.values()
        for call, count in counts.items()
        if not call.startswith("GET")
    )
    assert report.statements["role created"]["CREATE"] == 1
    assert report.statements["grant withdrawn"]["REVOKE"] == 1
    assert len(report.listing) == len(report.grants) == 2
