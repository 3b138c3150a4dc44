"""The fault benchmark runs, and its counts are correct; its times are not judged here."""

import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks.faults.results import Report

ROOT = Path(__file__).parents[2]
COUNT, KILLS, FLEET = 40, 4, 200


def test_nothing_is_leaked_or_duplicated_and_a_restart_reads_no_individual_resource(
    tmp_path: Path,
) -> None:
    report_path = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.faults", "--no-matrix", "--json", str(report_path)]
    command += ["--shapes", str(COUNT), "--kills", str(KILLS), "--fleet", str(FLEET)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    report = msgspec.json.decode(report_path.read_bytes(), type=Report)
    assert [each.kills for each in report.rows] == [0, KILLS]
    for row in report.rows:
        assert row.effects == 2 * COUNT
        assert (row.duplicates, row.leaks, row.losses, row.other_findings) == (0, 0, 0, 0)
    assert report.fleet is not None
    assert (report.fleet.resource_reads, report.fleet.external_writes) == (0, 0)
    assert report.fleet.new_events == 0
    assert report.fleet.individual_reads_seconds > 0
