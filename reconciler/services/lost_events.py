"""Events that the log has lost at the end of histories, found by what the read models remember."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from events.names import ShapeKey
from projections.read_models import ReadModels


class LogEnds(Protocol):
    """What the log tells of its end, and of each shape's."""

    async def newest_positions(self, keys: Sequence[ShapeKey]) -> Mapping[ShapeKey, int]:
        """Give the position of each shape's newest event, 0 for none."""
        ...

    async def last_position(self) -> int:
        """Give the position of the newest event."""
        ...


async def mark_lost(log: LogEnds, models: ReadModels) -> None:
    """Hold the shapes of which the read models know events that the log has no more.

    To be used when something is missing: it reads the newest event of every shape.
    """
    newest = await log.newest_positions([row.key for row in models.status.values()])
    for damage in models.lost(newest):
        models.mark_damage(damage)
    models.note_lost_end(await log.last_position())
