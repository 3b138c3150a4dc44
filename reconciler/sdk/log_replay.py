"""Fold the log into read models up to a position, and report damage."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
from nats.aio.client import Client

from events.integrity import LogDamage
from events.names import ResourceKey
from infra.bus.event_log import ALL_RESOURCES, CheckedFeed, JetStreamLog, open_log
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
from reconciler.roles.projector.lost_events import find_truncation, mark_log_losses, stored_losses
from reconciler.sdk.timeline import Progress, no_progress


class Integrity(msgspec.Struct, frozen=True, rename="camel"):
    """The result of checking versions and digests of the whole log."""

    resources: int
    damage: list[LogDamage]


class LogReplay:
    """Folds the log step by step; `since` is the position before the first event to read.

    `tokens`, a pattern of `namespace.kind.name`, selects the resources.
    """

    def __init__(
        self, log: JetStreamLog, models: ReadModels | None = None, *, tokens: str = ALL_RESOURCES
    ) -> None:
        self.models = models or ReadModels()
        self.since = self.position = self.models.position
        self.events = 0
        self.damage = [each for each in self.models.damage.values() if each.problem == "Lost"]
        self._log = log
        self._tokens = tokens
        self._target = self.position
        self._later_damage: list[LogDamage] = []
        self._closing = AsyncExitStack()
        self._feed: CheckedFeed | None = None
        self._unapplied: list[StoredEvent] = []

    @property
    def integrity(self) -> Integrity:
        """The result of checking all events so far."""
        if self._feed is None:
            return Integrity(0, self.damage)
        return Integrity(len(self._feed.chains.chains), self.damage)

    async def advance(self, to: int | None = None, progress: Progress = no_progress) -> None:
        """Fold more events, up to a position or the current end.

        Stops earlier if the log lost its newest events, and reports that as damage.
        """
        last = await self._log.last_position()
        target = last if to is None else to
        if target <= self.position or last == 0:
            return
        self._target = target
        self._report_later_damage()
        if self._feed is None:
            follow = self._log.follow(
                self.position, on_damage=self._record_damage, tokens=self._tokens
            )
            self._feed = await self._closing.enter_async_context(follow)
        while True:
            self._apply(target)
            progress(self.position)
            if self.position >= target:
                return
            if self._feed.caught_up and await self._has_lost_end(target):
                return
            self._unapplied = list(await self._feed.next_events())

    async def close(self) -> None:
        """Close the log reader."""
        await self._closing.aclose()

    def _apply(self, target: int) -> None:
        assert self._feed is not None
        count = 0
        for position, event in self._unapplied:
            if position > target:
                break
            self.models.apply(position, event)
            count += 1
        self.events += count
        del self._unapplied[:count]
        self.position = target if self._unapplied else min(self._feed.position, target)

    async def _has_lost_end(self, target: int) -> bool:
        last = await self._log.last_position()
        if last >= target:
            return False
        expected = f"a log that ends at position {target} or later, according to the stored rows"
        damage = LogDamage("Lost", target, 0, expected, f"one that ends at position {last}")
        if damage not in self.damage:
            self._record_damage(damage)
        return True

    def _report_later_damage(self) -> None:
        postponed, self._later_damage = self._later_damage, []
        for damage in postponed:
            self._record_damage(damage)

    def _record_damage(self, damage: LogDamage) -> None:
        if damage.position > self._target:  # a batch may extend beyond the requested position
            self._later_damage.append(damage)
            return
        if damage not in self.damage:
            self.damage.append(damage)
        self.models.fold_damage(damage)


@asynccontextmanager
async def closing(replay: LogReplay) -> AsyncGenerator[LogReplay]:
    """Yield the replay, and close it at the end."""
    try:
        yield replay
    finally:
        await replay.close()


async def read_stored_models(nc: Client, log: JetStreamLog) -> ReadModels:
    """Return the read models that a projector has stored, with the log's losses since then."""
    short = await find_truncation(log, JetStreamRows(nc))
    try:
        models = restore(await JetStreamRows(nc).load())
    except OutdatedRowsError:
        models = ReadModels()
    if short is not None or await log.missing_events():
        await mark_log_losses(log, models)
    if short is not None:
        models.mark_damage(short)
    return models


async def read_losses(nc: Client, log: JetStreamLog) -> list[LogDamage]:
    """Return the log's losses, according to the stored rows and the cached states."""
    rows = JetStreamRows(nc)
    if await find_truncation(log, rows) is None:
        return await stored_losses(rows)
    return LogReplay(log, await read_stored_models(nc, log)).damage


async def _stored_position(nc: Client) -> int:
    """Return the position of the stored rows, without reading all of them."""
    payload, _ = await JetStreamRows(nc).checkpoint()
    stored = read_checkpoint(payload)
    return 0 if stored is None else stored.position


@asynccontextmanager
async def replay_to(
    nc: Client, position: int, *, tokens: str = ALL_RESOURCES, progress: Progress = no_progress
) -> AsyncGenerator[LogReplay]:
    """Fold the log up to a position, starting from the stored rows if they are older than it.

    Memory use depends on the rows, which may include resources that `tokens` does not match.
    """
    log = await open_log(nc)
    if await log.missing_events():
        tokens = ALL_RESOURCES  # only a replay of all resources detects missing positions
    stored = ReadModels()
    if 0 < await _stored_position(nc) <= position:
        stored = await read_stored_models(nc, log)
    replay = LogReplay(log, stored if stored.position <= position else None, tokens=tokens)
    async with closing(replay):
        await replay.advance(position, progress)
        yield replay


async def lost_events(nc: Client, key: ResourceKey, newest: int) -> LogDamage | None:
    """Return the loss of a resource's newest events, according to the stored rows, or None.

    ``newest``: position of the resource's newest event in the log. A truncated history has no gap,
    so only rows with a later position reveal the loss.
    """
    names = (CHECKPOINT, status_name(key), damage_name(key))
    rows = await JetStreamRows(nc).get(names)
    try:
        stored = restore(rows, is_selection=True)
    except OutdatedRowsError:
        return None
    lost = stored.find_losses({key: newest})
    return lost[0] if lost else stored.damage.get(str(key))
