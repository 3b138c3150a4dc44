"""Use the stored read models to detect events lost from the end of histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import DecodeError

from events.integrity import LogDamage
from events.names import ResourceKey
from projections.read_models import (
    DAMAGE,
    ReadModels,
    decode_damage,
    read_checkpoint,
)
from reconciler.errors import ReconcilerError
from reconciler.ports import RowStore
from reconciler.roles.projector.projector import load_models


class LogEnds(Protocol):
    """The last positions of the log and of each resource."""

    async def newest_positions(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, int]:
        """Return the position of each resource's newest event, or 0 if it has none."""
        ...

    async def newest_versions(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, int]:
        """Return the version of each resource's newest event, or 0 if it has none."""
        ...

    async def last_position(self) -> int:
        """Return the position of the newest event."""
        ...


class LogWithGaps(LogEnds, Protocol):
    """A log that counts the positions that have no event."""

    async def missing_events(self) -> int:
        """Return the number of positions without an event: losses, because a log only grows."""
        ...

    async def newest_state(self) -> tuple[str, int]:
        """Return the resource and position of the newest cached state, or "" and 0."""
        ...


class NamedRows(RowStore, Protocol):
    """Rows that can be read individually."""

    async def get(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Read rows by name. Missing ones are omitted."""
        ...

    async def read_matching(self, pattern: str) -> Mapping[str, bytes]:
        """Read the rows whose names match a pattern with subject wildcards."""
        ...


class LogTooShortError(ReconcilerError):
    """The log lost its newest events, and the rows do not show which resources they belong to.

    A deleted resource has no row, and without its last events, Reconciler would recreate its
    object.
    """

    def __init__(self, damage: LogDamage) -> None:
        super().__init__(
            f"the newest events of the log are missing: expected {damage.expected}, found "
            f"{damage.found}. Keep all streams, stop all roles, and restore the log from a backup "
            "with `reconciler restore`"
        )


async def find_truncation(
    log: LogWithGaps, rows: NamedRows, accepted: ReadModels | None = None
) -> LogDamage | None:
    """Return the damage if the log ends before an event that a stored row or state reflects.

    ``accepted``: read models with losses that earlier starts accepted. Such losses do not count as
    damage.
    Raises ``NotFoundOnBusError`` if the row store does not exist.
    """
    checkpoint, _ = await rows.checkpoint()
    known = read_checkpoint(checkpoint)
    row_position = 0 if known is None else known.position
    resource, state_position = await log.newest_state()
    if accepted is not None and accepted.has_earlier_loss(resource):
        state_position = 0  # the newest state is older than the accepted loss
    last = await log.last_position()  # read last, because the log only grows
    position = max(row_position, state_position)
    if position <= last:
        return None
    source = "the stored rows" if position == row_position else "the cached states"
    expected = f"a log that ends at position {position} or later, according to {source}"
    return LogDamage("Lost", position, 0, expected, f"one that ends at position {last}")


async def find_log_losses(log: LogWithGaps, rows: NamedRows, models: ReadModels) -> list[LogDamage]:
    """Return the damage of resources that lost their newest events, according to the stored rows.

    ``models``: the read models of the process, empty if it needs none.

    Raises:
        LogTooShortError: the rows do not account for all lost events.
    """
    short = await find_truncation(log, rows)
    if short is None and not await log.missing_events():
        damage = await stored_losses(rows)
    else:
        known = models if models.position else await load_models(rows)
        if short is not None:
            await _check_attributed(log, rows, known)
        await mark_log_losses(log, known)
        damage = known.damage.values()
    return [each for each in damage if each.problem == "Lost" and each.resource]


async def _check_attributed(log: LogWithGaps, rows: NamedRows, models: ReadModels) -> None:
    """Raise ``LogTooShortError`` unless rows account for all events lost at the log's end.

    Losses that earlier starts accepted are excluded from both counts.
    """
    short = await find_truncation(log, rows, accepted=models)
    if short is not None:
        lost = short.position - await log.last_position()
        # Events lost from the middle of the log do not account for those lost at its end.
        if await _count_attributed(log, models) < lost + await log.missing_events():
            raise LogTooShortError(short)


async def _count_attributed(log: LogEnds, models: ReadModels) -> int:
    """Count the lost events that belong to resources with a row."""
    rows = [row for name, row in models.status.items() if not models.has_earlier_loss(name)]
    newest = await log.newest_positions([row.key for row in rows])
    truncated = [row for row in rows if row.position > newest.get(row.key, 0)]
    versions = await log.newest_versions([row.key for row in truncated])
    return sum(
        row.version - versions.get(row.key, 0)
        for row in truncated
        if versions.get(row.key) or not newest.get(row.key)  # an unreadable event has no version
    )


async def stored_losses(rows: NamedRows) -> list[LogDamage]:
    """Return the losses that the stored rows record."""
    losses: list[LogDamage] = []
    for payload in (await rows.read_matching(f"{DAMAGE}.>")).values():
        with suppress(DecodeError):  # written by another client, so the rows are rebuilt
            losses.append(decode_damage(payload))
    return [each for each in losses if each.problem == "Lost"]


async def mark_log_losses(log: LogEnds, models: ReadModels) -> None:
    """Hold the resources whose rows reflect events that the log has lost.

    This reads the newest event of every resource, so call it only if events are missing.
    """
    newest = await log.newest_positions([row.key for row in models.status.values()])
    for damage in models.find_losses(newest):
        models.mark_damage(damage)
    models.record_lost_end(await log.last_position())
