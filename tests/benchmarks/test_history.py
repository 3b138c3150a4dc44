"""Recorded results of earlier runs, and the detection of regressions."""

from pathlib import Path

from msgspec.structs import replace

from benchmarks.converge.history import changes, costs_by_case, figures, record, recorded
from benchmarks.converge.results import (
    Case,
    Ceiling,
    Converge,
    Drift,
    ProcessUsage,
    Replay,
    Restart,
    Withdrawal,
)


def case(*, cpu: float = 2.0, ceiling: float = 40_000, shapes: int = 2_000) -> Case:
    usage = (
        ProcessUsage("nats-server", cpu / 2, 100),
        ProcessUsage("example-api", 9, 40),
        ProcessUsage("reconciler", cpu / 2, 70),
    )
    return Case(
        shapes=shapes,
        latency_ms=0,
        load_average=0,
        converge=Converge(2, 1_000, 2, 0.1, 8_000, 4_000, {}, shapes, usage),
        restart=Restart(0.1, 1, 1, 0, 2, 0, 0, usage),
        drift=Drift(1, 200, 0.1, 200, 1, 0.4, 0, usage),
        withdrawal=Withdrawal(3, 700, 3, 0, {}, usage),
        replay=Replay(17_000, 800, 30_000, 60_000, 40_000, 0.75, 1.5),
        ceiling=Ceiling(500, 800, ceiling, 0.1),
        peaks=usage,
        stack_peak_mb=230,
    )


def test_a_machine_at_half_the_speed_has_the_same_costs() -> None:
    fast, slow = costs_by_case([case()], "x"), costs_by_case([case(cpu=4.0, ceiling=20_000)], "x")
    assert fast[0].figures["converge, CPU"] == slow[0].figures["converge, CPU"]


def test_a_regression_above_ten_percent_is_detected_and_noise_is_not(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    record(costs_by_case([case(cpu=3.0)], "x"), file)
    record(costs_by_case([case()], "x"), file)
    assert len(recorded(file)) == 2
    for cpu, is_worse in ((2.3, True), (2.1, False), (1.5, False)):
        [now] = costs_by_case([case(cpu=cpu)], "x")
        changes_by_name = {each.name: each for each in changes(now, recorded(file))}
        assert changes_by_name["converge, CPU"].is_worse is is_worse, cpu


def test_only_the_same_case_is_compared_by_the_median_of_its_rounds(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    [now] = costs_by_case([case(cpu=9.0), case(), case(cpu=2.1)], "x")
    assert now.rounds == 3
    record([now], file)
    assert (
        now.figures["converge, CPU"]
        == costs_by_case([case(cpu=2.1)], "x")[0].figures["converge, CPU"]
    )
    assert not changes(costs_by_case([case(shapes=500)], "x")[0], recorded(file))
    assert not changes(costs_by_case([case()], "apart")[0], recorded(file))
    assert not changes(replace(now, figures={"new": 1.0}), recorded(file))


def test_recorded_results_can_be_read_and_have_only_current_figures() -> None:
    assert recorded()
    for each in recorded():
        assert each.figures.keys() <= {*figures(case()), "declared to exists, idle, p50"}
