"""Events that the log has lost at the end of histories, found by what the read models remember."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from events.integrity import LogDamage
from events.names import ResourceKey
from projections.read_models import (
    CHECKPOINT,
    DAMAGE,
    ReadModels,
    decode_checkpoint,
    decode_damage,
)
from reconciler.ports import RowStore
from reconciler.roles.projector import load_models


class LogEnds(Protocol):
    """What the log tells of its end, and of each resource's."""

    async def newest_positions(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, int]:
        """Return the position of each resource's newest event, 0 for none."""
        ...

    async def last_position(self) -> int:
        """Return the position of the newest event."""
        ...


class LogWithGaps(LogEnds, Protocol):
    """A log that knows how many of its positions hold no event."""

    async def missing_events(self) -> int:
        """Count them: a log never removes anything."""
        ...


class NamedRows(RowStore, Protocol):
    """Rows that can be read one by one."""

    async def get(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Read some rows; those that do not exist are left out."""
        ...

    async def matching(self, pattern: str) -> Mapping[str, bytes]:
        """Read the rows whose names match a pattern with the wildcards of subjects."""
        ...


async def find_lost(log: LogWithGaps, rows: NamedRows, models: ReadModels) -> list[LogDamage]:
    """Find the resources whose newest events the log has lost, by what the stored rows remember.

    ``models``: what the process has read of the rows, empty if it needs none.
    """
    checkpoint = (await rows.get([CHECKPOINT])).get(CHECKPOINT)
    last = await log.last_position()
    is_short = checkpoint is not None and decode_checkpoint(checkpoint).position > last
    if is_short or await log.missing_events():
        known = models if models.position else await load_models(rows)
        await mark_lost(log, known)
        found = known.damage.values()
    else:
        found = [decode_damage(row) for row in (await rows.matching(f"{DAMAGE}.>")).values()]
    return [each for each in found if each.problem == "Lost" and each.resource]


async def mark_lost(log: LogEnds, models: ReadModels) -> None:
    """Hold the resources of which the read models know events that the log has no more.

    To be used when something is missing: it reads the newest event of every resource.
    """
    newest = await log.newest_positions([row.key for row in models.status.values()])
    for damage in models.lost(newest):
        models.mark_damage(damage)
    models.note_lost_end(await log.last_position())
