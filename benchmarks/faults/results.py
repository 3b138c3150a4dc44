"""What the benchmark reports."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec

from tests.judge.judging import Finding

_SORTS = {
    "duplicate_effect": "duplicate",
    "duplicate_object": "duplicate",
    "leak": "leak",
    "loss": "loss",
    "outdated_declaration": "loss",
    "undecided_message": "loss",
    "unfinished_action": "loss",
    "unrecorded_success": "loss",
    "lost_message": "loss",
}


class Row(msgspec.Struct, frozen=True, rename="camel"):
    """One fault: how often it was caused, what came of it, and how long until all was well.

    Seconds are from the kill to the outcome of the last resource; without a fault, from the start
    of the process.
    """

    fault: str
    cases: int
    kills: int
    effects: int
    duplicates: int
    leaks: int
    losses: int
    other_findings: int
    p50_seconds: float
    max_seconds: float


class Fleet(msgspec.Struct, frozen=True, rename="camel"):
    """A start with many converged resources: until ready and at rest, and what it asked of the API.

    Beside it, on the same API: the seconds in which a program that does nothing else reads each
    resource alone, as a controller does that keeps no history.
    """

    shapes: int
    settle_seconds: float
    one_read_each_seconds: float
    resource_reads: int
    listing_requests: int
    external_writes: int
    new_events: int


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """All of it."""

    load_average: float
    rows: tuple[Row, ...]
    fleet: Fleet | None

    @property
    def is_sound(self) -> bool:
        """Whether nothing was duplicated, leaked or lost, and the restart requested one listing."""
        wrong = sum(
            row.duplicates + row.leaks + row.losses + row.other_findings for row in self.rows
        )
        fleet = self.fleet
        if fleet is not None:
            wrong += fleet.resource_reads + fleet.external_writes + fleet.new_events
        return wrong == 0


def row(
    fault: str, *, kills: int, effects: int, found: Sequence[Finding], seconds: Sequence[float]
) -> Row:
    """Count what the judge found, by what people would call it."""
    sorts = Counter(_SORTS.get(each.rule, "other") for each in found)
    return Row(
        fault=fault,
        cases=len(seconds),
        kills=kills,
        effects=effects,
        duplicates=sorts["duplicate"],
        leaks=sorts["leak"],
        losses=sorts["loss"],
        other_findings=sorts["other"],
        p50_seconds=round(statistics.median(seconds), 2),
        max_seconds=round(max(seconds), 2),
    )
