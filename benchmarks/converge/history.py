"""What earlier runs have cost, in a unit that every machine brings along.

A figure is a cost, less is better: seconds times the append ceiling of the same run, so the events
that this machine could have appended meanwhile, for each resource; of replay, the ordered
consumer's speed over ours. So runs on other days and machines can be compared, as far as noise
allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.converge.results import Case, ProcessUsage

FILE = Path(__file__).parents[1] / "history.json"
WORSE_FROM = 1.10
"""From this change on a figure counts as worse."""

_COUNTED = ("nats-server", "reconciler")


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """The figures of one case, medians of some rounds, on one day."""

    recorded: str
    case: str
    rounds: int
    figures: dict[str, float]


class Change(msgspec.Struct, frozen=True):
    """One figure beside the one that was recorded last."""

    name: str
    recorded: float
    now: float

    @property
    def ratio(self) -> float:
        """How much it costs now of what it did."""
        return self.now / self.recorded

    @property
    def is_worse(self) -> bool:
        """Whether it is more than noise, and not for the better."""
        return self.ratio >= WORSE_FROM


def figures(case: Case) -> dict[str, float]:
    """Give the costs of one round."""
    each = case.ceiling.events_per_second / case.shapes
    figures_by_name = {
        "converge, CPU": _cpu(case.converge.usage) * each,
        "restart, CPU": _cpu(case.restart.usage) * each,
        "drift, CPU": _cpu(case.drift.usage) * each,
        "withdrawal, CPU": _cpu(case.withdrawal.usage) * each,
        "converge, time": case.converge.seconds * each,
        "restart, time": case.restart.ready_seconds * each,
        "drift, time from the listing": case.drift.since_listing_seconds * each,
        "withdrawal, time": case.withdrawal.seconds * each,
        "replay, of the ordered consumer's": 1 / case.replay.rebuild_share,
        "memory of the stack, KB": case.stack_peak_mb * 1_000 / case.shapes,
    }
    if case.idle is not None:
        ceiling = case.ceiling.events_per_second / 1_000
        figures_by_name["declared to exists, idle, p50"] = case.idle.exists_p50_ms * ceiling
    return figures_by_name


def costs_of(cases: Iterable[Case], layout: str) -> list[Entry]:
    """Give an entry for each case, whose rounds are among these."""
    rounds: dict[str, list[Case]] = {}
    for case in cases:
        rounds.setdefault(case_name(case, layout), []).append(case)
    return [entry(some, layout) for some in rounds.values()]


def entry(rounds: Sequence[Case], layout: str) -> Entry:
    """Take the median of each figure over rounds of one case."""
    costs = [figures(case) for case in rounds]
    middle = {name: round(median(each[name] for each in costs), 3) for name in costs[0]}
    return Entry(date.today().isoformat(), case_name(rounds[0], layout), len(rounds), middle)  # noqa: DTZ011 - the day where it ran


def case_name(case: Case, layout: str) -> str:
    """Name what can be compared."""
    return f"{case.shapes} resources, {case.latency_ms:g} ms, {layout}"


def recorded(file: Path = FILE) -> list[Entry]:
    """Read what was recorded, oldest first."""
    return msgspec.json.decode(file.read_bytes(), type=list[Entry]) if file.exists() else []


def record(entries: Sequence[Entry], file: Path = FILE) -> None:
    """Write further entries behind those that are there."""
    text = msgspec.json.format(msgspec.json.encode([*recorded(file), *entries]), indent=2)
    file.write_bytes(text + b"\n")


def changes(now: Entry, before: Iterable[Entry]) -> list[Change]:
    """Compare with the newest entry of the same case; empty if there is none."""
    last = next((each for each in reversed(list(before)) if each.case == now.case), None)
    if last is None:
        return []
    return [
        Change(name, last.figures[name], cost)
        for name, cost in now.figures.items()
        if last.figures.get(name)
    ]


def _cpu(usage: Iterable[ProcessUsage]) -> float:
    return sum(each.cpu_seconds for each in usage if each.process in _COUNTED)
