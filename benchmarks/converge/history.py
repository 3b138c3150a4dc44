"""Costs of earlier runs, in a unit that does not depend on the machine.

A figure is a cost per resource, and lower is better: the seconds times the append ceiling of the
same run, which is the number of events that the machine could have appended in that time. For
replay, it is the speed of the ordered consumer divided by that of the replay. Runs on different
days and machines can therefore be compared, apart from noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.converge.results import Case, ProcessUsage

FILE = Path(__file__).parents[1] / "history.json"
WORSE_RATIO = 1.10
"""Minimum ratio to the record at which a figure counts as worse."""

_COUNTED_PROCESSES = ("nats-server", "reconciler")


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """The figures of one case on one day, as medians of several rounds."""

    recorded: str
    case: str
    rounds: int
    figures: dict[str, float]


class Change(msgspec.Struct, frozen=True):
    """A figure and the last recorded one."""

    name: str
    recorded: float
    now: float

    @property
    def ratio(self) -> float:
        """The new cost divided by the recorded one."""
        return self.now / self.recorded

    @property
    def is_worse(self) -> bool:
        """Whether the cost increased by more than noise."""
        return self.ratio >= WORSE_RATIO


def figures(case: Case) -> dict[str, float]:
    """Return the costs of one round."""
    scale = case.ceiling.events_per_second / case.shapes
    figures_by_name = {
        "converge, CPU": _cpu(case.converge.usage) * scale,
        "restart, CPU": _cpu(case.restart.usage) * scale,
        "drift, CPU": _cpu(case.drift.usage) * scale,
        "withdrawal, CPU": _cpu(case.withdrawal.usage) * scale,
        "converge, time": case.converge.seconds * scale,
        "restart, time": case.restart.ready_seconds * scale,
        "drift, time from the listing": case.drift.since_listing_seconds * scale,
        "withdrawal, time": case.withdrawal.seconds * scale,
        "replay, of the ordered consumer's": 1 / case.replay.rebuild_share,
        "memory of the stack, KB": case.stack_peak_mb * 1_000 / case.shapes,
    }
    if case.idle is not None:
        ceiling = case.ceiling.events_per_second / 1_000
        figures_by_name["declared to exists, idle, p50"] = case.idle.exists_p50_ms * ceiling
    return figures_by_name


def costs_by_case(cases: Iterable[Case], layout: str) -> list[Entry]:
    """Return an entry for each case, from all of its rounds."""
    rounds: dict[str, list[Case]] = {}
    for case in cases:
        rounds.setdefault(case_name(case, layout), []).append(case)
    return [entry(case_rounds, layout) for case_rounds in rounds.values()]


def entry(rounds: Sequence[Case], layout: str) -> Entry:
    """Return the median of each figure over the rounds of one case."""
    costs = [figures(case) for case in rounds]
    middle = {name: round(median(each[name] for each in costs), 3) for name in costs[0]}
    return Entry(date.today().isoformat(), case_name(rounds[0], layout), len(rounds), middle)  # noqa: DTZ011 - the local date of the run


def case_name(case: Case, layout: str) -> str:
    """Return the name of a case; entries with the same name can be compared."""
    return f"{case.shapes} resources, {case.latency_ms:g} ms, {layout}"


def recorded(file: Path = FILE) -> list[Entry]:
    """Read the recorded entries, oldest first."""
    return msgspec.json.decode(file.read_bytes(), type=list[Entry]) if file.exists() else []


def record(entries: Sequence[Entry], file: Path = FILE) -> None:
    """Append entries to the file."""
    text = msgspec.json.format(msgspec.json.encode([*recorded(file), *entries]), indent=2)
    file.write_bytes(text + b"\n")


def changes(current: Entry, earlier: Iterable[Entry]) -> list[Change]:
    """Compare with the newest entry of the same case; empty if there is none."""
    last = next((each for each in reversed(list(earlier)) if each.case == current.case), None)
    if last is None:
        return []
    return [
        Change(name, last.figures[name], cost)
        for name, cost in current.figures.items()
        if last.figures.get(name)
    ]


def _cpu(usage: Iterable[ProcessUsage]) -> float:
    return sum(each.cpu_seconds for each in usage if each.process in _COUNTED_PROCESSES)
