"""The benchmark runs, and its counts are correct; its times are not judged here."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.converge.results import Report

ROOT = Path(__file__).parents[2]
QUICK_RESOURCES = 200


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    report_path = tmp_path_factory.mktemp("converge") / "report.json"
    command = [sys.executable, "-m", "benchmarks.converge", "--quick", "--json", str(report_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return msgspec.json.decode(report_path.read_bytes(), type=Report)


def test_every_resource_is_created_once_and_deleted_once(report: Report) -> None:
    (case,) = report.cases
    assert case.shapes == QUICK_RESOURCES
    assert case.converge.requests == {"POST": {"201": QUICK_RESOURCES}}
    assert case.converge.shapes_in_api == QUICK_RESOURCES
    assert case.withdrawal.requests["DELETE"] == {"204": QUICK_RESOURCES}
    assert case.withdrawal.shapes_in_api == 0


def test_a_restart_with_nothing_changed_writes_and_reads_nothing(report: Report) -> None:
    restart = report.cases[0].restart
    assert restart.external_writes == 0
    assert restart.resource_reads == 0
    assert restart.new_events == 0
    assert restart.listing_requests == 1


def test_only_deleted_objects_are_restored(report: Report) -> None:
    drift = report.cases[0].drift
    assert drift.deleted == drift.restored == QUICK_RESOURCES // 10
    assert drift.other_effects == 0


def test_the_whole_log_is_read_and_every_process_is_counted(report: Report) -> None:
    (case,) = report.cases
    assert case.replay.events > case.converge.events
    assert case.idle is not None
    assert case.idle.samples > 0
    names = {"nats-server", "example-api", "reconciler", "client"}
    assert {each.process for each in case.converge.usage} == names
    assert {each.process for each in case.peaks} == names
    assert all(each.peak_mb > 0 for each in case.peaks)


def test_all_facts_are_judged(report: Report) -> None:
    facts = [target for target in report.targets if target.is_fact]
    assert len(facts) == 5
    assert all(fact.met for fact in facts)
