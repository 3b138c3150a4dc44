"""One reading of the log for all checks: its read models, and where it is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nats.aio.client import Client

from events.integrity import LogDamage
from infra.bus.rows import JetStreamRows
from projections.read_models import OutdatedRowsError, ReadModels, restore
from reconciler.cli.reading import log_of
from reconciler.services.lost_events import mark_lost

MOST_EVENTS = 300_000
"""A longer log is read from where the stored rows end, unless all of it is asked for."""


class LogReading:
    """What the log says, up to ``position``; ``since`` is the position before the first one read.

    ``damage`` are the places where the log is not what was written, and what it has lost by what
    the stored rows remember.
    """

    def __init__(self, models: ReadModels, remembered: Iterable[LogDamage] = ()) -> None:
        self.models = models
        self.since = self.position = models.position
        self.events = 0
        self.damage = list(remembered)

    async def read_on(
        self, nc: Client, progress: Callable[[int], object] = lambda _position: None
    ) -> None:
        """Read up to what is the end now."""
        log = await log_of(nc)
        if await log.last_position() <= self.position:
            return
        async with log.follow(self.position, damaged=self._damaged) as feed:
            while not feed.caught_up:
                for position, event in await feed.next_events():
                    self.events += 1
                    self.models.apply(position, event)
                self.position = feed.position
                progress(self.position)
            self.position = feed.position

    def _damaged(self, damage: LogDamage) -> None:
        if damage not in self.damage:
            self.damage.append(damage)
        self.models.mark_damage(damage)


async def read_whole_log(
    nc: Client,
    *,
    full: bool,
    progress: Callable[[int], object] = lambda _position: None,
) -> LogReading:
    """Read the log: all of it, or from the stored rows on where that is too much."""
    log = await log_of(nc)
    stored = await _stored_models(nc)
    if stored.position > await log.last_position() or await log.missing_events():
        await mark_lost(log, stored)
    remembered = [one for one in stored.damage.values() if one.problem == "Lost"]
    read_all = full or await log.last_position() <= MOST_EVENTS
    reading = LogReading(ReadModels() if read_all else stored, remembered)
    await reading.read_on(nc, progress)
    return reading


async def _stored_models(nc: Client) -> ReadModels:
    try:
        return restore(await JetStreamRows(nc).load())
    except OutdatedRowsError:
        return ReadModels()
