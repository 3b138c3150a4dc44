"""The results of the fault benchmark."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec

from tests.judge.judging import Finding

_CATEGORIES = {
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
    """One fault: how often it was injected, what it led to, and how long recovery took.

    Times run from the kill to the outcome of the last resource or, without a fault, from the start
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
    """A start with many converged resources: the time until it was idle, and its API requests.

    ``individual_reads_seconds``, for comparison: the time of a program that only reads each
    resource individually, like a controller that does not keep a history.
    """

    shapes: int
    settle_seconds: float
    individual_reads_seconds: float
    resource_reads: int
    listing_requests: int
    external_writes: int
    new_events: int


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """All results of a run."""

    load_average: float
    rows: tuple[Row, ...]
    fleet: Fleet | None

    @property
    def is_sound(self) -> bool:
        """Whether nothing was duplicated, leaked or lost, and the restart requested one listing."""
        problems = sum(
            row.duplicates + row.leaks + row.losses + row.other_findings for row in self.rows
        )
        fleet = self.fleet
        if fleet is not None:
            problems += fleet.resource_reads + fleet.external_writes + fleet.new_events
        return problems == 0


def row(
    fault: str, *, kills: int, effects: int, findings: Sequence[Finding], seconds: Sequence[float]
) -> Row:
    """Count the judge's findings by category."""
    categories = Counter(_CATEGORIES.get(each.rule, "other") for each in findings)
    return Row(
        fault=fault,
        cases=len(seconds),
        kills=kills,
        effects=effects,
        duplicates=categories["duplicate"],
        leaks=categories["leak"],
        losses=categories["loss"],
        other_findings=categories["other"],
        p50_seconds=round(statistics.median(seconds), 2),
        max_seconds=round(max(seconds), 2),
    )
