"""The log folded into read models up to a chosen position, and the places of its damage."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
from nats.aio.client import Client

from events.integrity import LogDamage
from events.names import ResourceKey
from infra.bus.event_log import EVERYTHING, CheckedFeed, JetStreamLog, open_log
from infra.bus.rows import JetStreamRows
from projections.read_models import (
    CHECKPOINT,
    OutdatedRowsError,
    ReadModels,
    damage_name,
    read_checkpoint,
    restore,
    status_name,
)
from reconciler.ports import StoredEvent
from reconciler.roles.projector.lost_events import find_short_end, mark_lost, stored_losses
from reconciler.sdk.timeline import Progress, no_progress


class Integrity(msgspec.Struct, frozen=True, rename="camel"):
    """Result of a check of all versions and digests in the log."""

    resources: int
    damage: list[LogDamage]


class LogReplay:
    """Folds the log step by step. `since` is the position before the first event that it reads.

    `tokens`, a pattern of `namespace.kind.name`, selects resources.
    """

    def __init__(
        self, log: JetStreamLog, models: ReadModels | None = None, *, tokens: str = EVERYTHING
    ) -> None:
        self.models = models or ReadModels()
        self.since = self.position = self.models.position
        self.events = 0
        self.damage = [one for one in self.models.damage.values() if one.problem == "Lost"]
        self._log = log
        self._tokens = tokens
        self._wanted = self.position
        self._later: list[LogDamage] = []
        self._closing = AsyncExitStack()
        self._feed: CheckedFeed | None = None
        self._waiting: list[StoredEvent] = []

    @property
    def integrity(self) -> Integrity:
        """Result of the check of all events that were read."""
        if self._feed is None:
            return Integrity(0, self.damage)
        return Integrity(len(self._feed.chains.chains), self.damage)

    async def go_on(self, to: int | None = None, progress: Progress = no_progress) -> None:
        """Fold the events up to a position, or to the current end.

        It ends earlier if the log has lost its end, which counts as damage.
        """
        last = await self._log.last_position()
        wanted = last if to is None else to
        if wanted <= self.position or last == 0:
            return
        self._wanted = wanted
        self._tell_what_was_later()
        if self._feed is None:
            follow = self._log.follow(self.position, damaged=self._damaged, tokens=self._tokens)
            self._feed = await self._closing.enter_async_context(follow)
        while True:
            self._apply(wanted)
            progress(self.position)
            if self.position >= wanted:
                return
            if self._feed.caught_up and await self._has_lost(wanted):
                return
            self._waiting = list(await self._feed.next_events())

    async def close(self) -> None:
        """Stop reading the log."""
        await self._closing.aclose()

    def _apply(self, wanted: int) -> None:
        assert self._feed is not None
        done = 0
        for position, event in self._waiting:
            if position > wanted:
                break
            self.models.apply(position, event)
            done += 1
        self.events += done
        del self._waiting[:done]
        self.position = wanted if self._waiting else min(self._feed.position, wanted)

    async def _has_lost(self, wanted: int) -> bool:
        last = await self._log.last_position()
        if last >= wanted:
            return False
        expected = f"a log that ends at position {wanted} or later, according to the stored rows"
        damage = LogDamage("Lost", wanted, 0, expected, f"one that ends at position {last}")
        if damage not in self.damage:
            self._damaged(damage)
        return True

    def _tell_what_was_later(self) -> None:
        later, self._later = self._later, []
        for damage in later:
            self._damaged(damage)

    def _damaged(self, damage: LogDamage) -> None:
        if damage.position > self._wanted:  # a batch may extend beyond the requested position
            self._later.append(damage)
            return
        if damage not in self.damage:
            self.damage.append(damage)
        self.models.fold_damage(damage)


@asynccontextmanager
async def closing(replay: LogReplay) -> AsyncGenerator[LogReplay]:
    """Stop reading the log at the end of the block."""
    try:
        yield replay
    finally:
        await replay.close()


async def stored_models(nc: Client, log: JetStreamLog) -> ReadModels:
    """Return the read models that a projector has stored, and what the log has lost since then."""
    short = await find_short_end(log, JetStreamRows(nc))
    try:
        models = restore(await JetStreamRows(nc).load())
    except OutdatedRowsError:
        models = ReadModels()
    if short is not None or await log.missing_events():
        await mark_lost(log, models)
    if short is not None:
        models.mark_damage(short)
    return models


async def losses(nc: Client, log: JetStreamLog) -> list[LogDamage]:
    """Return what the log has lost, according to the stored rows and the cached states."""
    rows = JetStreamRows(nc)
    if await find_short_end(log, rows) is None:
        return await stored_losses(rows)
    return LogReplay(log, await stored_models(nc, log)).damage


async def _stored_position(nc: Client) -> int:
    """Return the position of the stored rows, in one read, because there may be many rows."""
    payload, _ = await JetStreamRows(nc).checkpoint()
    stored = read_checkpoint(payload)
    return 0 if stored is None else stored.position


@asynccontextmanager
async def replayed_to(
    nc: Client, position: int, *, tokens: str = EVERYTHING, progress: Progress = no_progress
) -> AsyncGenerator[LogReplay]:
    """Fold the log up to a position, beginning with the stored rows if they are older.

    It needs memory for the rows, among which are rows of resources that `tokens` does not match.
    """
    log = await open_log(nc)
    if await log.missing_events():
        tokens = EVERYTHING  # only a reader of all events notices missing positions
    stored = ReadModels()
    if 0 < await _stored_position(nc) <= position:
        stored = await stored_models(nc, log)
    replay = LogReplay(log, stored if stored.position <= position else None, tokens=tokens)
    async with closing(replay):
        await replay.go_on(position, progress)
        yield replay


async def lost_events(nc: Client, key: ResourceKey, newest: int) -> LogDamage | None:
    """Return what the log has lost of one resource, according to its stored rows.

    ``newest`` is the position of its newest event in the log. A history that has lost its end has
    no gap, so only a record outside the log can show the loss.
    """
    names = (CHECKPOINT, status_name(key), damage_name(key))
    rows = await JetStreamRows(nc).get(names)
    try:
        stored = restore(rows)
    except OutdatedRowsError:
        return None
    lost = stored.lost({key: newest})
    return lost[0] if lost else stored.damage.get(str(key))
