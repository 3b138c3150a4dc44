"""A table of resources with their status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from projections.readiness import show_readiness
from projections.status import StatusRow
from reconciler.cli.api_state import (
    describe_listing_failure,
    describe_throttling,
    find_listing_failure,
)
from reconciler.cli.console import NOT_READY, READINESS_UNKNOWN, Table, colored, format_age
from reconciler.cli.output import single_line, time_text

PENDING: Final = "Pending"
"""The status of a resource without a known outcome."""

_COLUMNS: Final = ("KIND", "NAME", "OUTCOME", "GENERATION", "OWNED", "REASON", "AGE")
_WIDE: Final = ("WAITING SINCE", "CHANGED", "CONFIG", "EXTERNAL", "DRIFTS", "ACTION")


class ResourceTable:
    """A table of resources, printed in one or more calls.

    ``known`` contains the rows of the ProviderConfigs and of parts, by key.
    """

    def __init__(
        self, known: Mapping[str, StatusRow], *, with_namespace: bool, wide: bool = False
    ) -> None:
        self._known = known
        namespace_column = ("NAMESPACE",) if with_namespace else ()
        self._with_namespace, self._wide = with_namespace, wide
        self._table = Table((*namespace_column, *_COLUMNS, *(_WIDE if wide else ()), "MESSAGE"))
        self._has_headings = False

    def show(self, rows: Sequence[StatusRow], now: datetime) -> None:
        """Print rows. The first call that prints any also prints the headings."""
        if rows:
            headings, self._has_headings = not self._has_headings, True
            self._table.print((self._cells(row, now) for row in rows), headings=headings)

    def stable_cells(self, row: StatusRow) -> list[str]:
        """Return the cells of a row, independent of the current time."""
        return [str(each) for each in self._cells(row, row.since or datetime.now(UTC))]

    def _cells(self, row: StatusRow, now: datetime) -> list[str | Text]:
        row = show_readiness(row, self._known)
        outcome, source = colored(row.outcome or PENDING), row.not_ready or row
        if row.not_ready is not None:
            is_unknown = row.not_ready.status == "Unknown"
            outcome = Text(READINESS_UNKNOWN if is_unknown else NOT_READY, "yellow")
        cells: list[str | Text] = [row.namespace] if self._with_namespace else []
        cells += [row.kind, row.name, outcome, _generation(row), format_owned(row)]
        cells += [source.reason, "" if row.since is None else format_age(row.since, now)]
        if self._wide:
            action = f"{row.operation} (attempt {row.attempt})" if row.action_id else ""
            cells += [
                time_text(row.waiting_since),
                time_text(row.changed_at),
                row.provider_config,
                row.external_name,
                str(row.drifts),
                action,
            ]
        failure = find_listing_failure(row, self._known)
        stale = "" if failure is None else describe_listing_failure(failure)
        parts = filter(None, (source.message or describe_throttling(row, now), stale))
        return [*cells, single_line("; ".join(parts))]


def format_owned(row: StatusRow) -> str:
    """Return "yes" if a resource owns its object, "no" if not, "-" for a kind without objects."""
    if row.owned:
        return "yes"
    return "no" if row.provider_config else "-"


def _generation(row: StatusRow) -> str:
    settled = row.observed_generation == row.generation
    text = str(row.generation) if settled else f"{row.observed_generation}->{row.generation}"
    return text if row.declared or not row.generation else f"{text} withdrawn"
