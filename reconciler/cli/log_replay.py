"""The log folded into read models, as far as somebody wants, and where it is damaged."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
from nats.aio.client import Client

from events.integrity import LogDamage
from infra.bus.event_log import CheckedFeed, JetStreamLog, open_log
from infra.bus.rows import JetStreamRows
from infra.jetstream.errors import NotFoundOnBusError
from projections.read_models import OutdatedRowsError, ReadModels, restore
from reconciler.cli.errors import CommandError
from reconciler.ports import StoredEvent
from reconciler.roles.lost_events import mark_lost

MAX_EVENTS = 300_000
"""A longer log is read from where the stored rows end, unless all of it is asked for."""

Progress = Callable[[int], object]
"""Called with the last position read."""


def _no_progress(_position: int) -> None: ...


class Integrity(msgspec.Struct, frozen=True, rename="camel"):
    """What came of checking versions and digests of the whole log."""

    resources: int
    damage: list[LogDamage]


class LogReplay:
    """Folds the log step by step; `since` is the position before the first event that it reads."""

    def __init__(self, log: JetStreamLog, models: ReadModels | None = None) -> None:
        self.models = models or ReadModels()
        self.since = self.position = self.models.position
        self.events = 0
        self.damage = [one for one in self.models.damage.values() if one.problem == "Lost"]
        self._log = log
        self._closing = AsyncExitStack()
        self._feed: CheckedFeed | None = None
        self._waiting: list[StoredEvent] = []

    @property
    def integrity(self) -> Integrity:
        """What came of checking all that was read."""
        if self._feed is None:
            return Integrity(0, self.damage)
        return Integrity(len(self._feed.chains.chains), self.damage)

    async def go_on(self, to: int | None = None, progress: Progress = _no_progress) -> None:
        """Fold what comes up to a position, or to the end as it is now.

        It ends earlier if the log has lost its end, which is damage then.
        """
        last = await self._log.last_position()
        wanted = last if to is None else to
        if wanted <= self.position or last == 0:
            return
        if self._feed is None:
            follow = self._log.follow(self.position, damaged=self._damaged)
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
        """Let go of the log."""
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
        expected = f"a log that ends at position {wanted} or later, as the stored rows know it"
        damage = LogDamage("Lost", wanted, 0, expected, f"one that ends at position {last}")
        if damage not in self.damage:
            self._damaged(damage)
        return True

    def _damaged(self, damage: LogDamage) -> None:
        if damage not in self.damage:
            self.damage.append(damage)
        self.models.mark_damage(damage)


async def log_of(nc: Client) -> JetStreamLog:
    """Open the log; raises `CommandError` where there is none."""
    try:
        return await open_log(nc)
    except NotFoundOnBusError:
        raise CommandError(
            "this server has no event log yet: `reconciler init` makes it, "
            "and `reconciler up` starts everything"
        ) from None


@asynccontextmanager
async def replay_from_start(nc: Client) -> AsyncGenerator[LogReplay]:
    """Replay all of the log; nothing is read yet."""
    async with _closing(LogReplay(await log_of(nc))) as replay:
        yield replay


@asynccontextmanager
async def replay_for_checks(nc: Client, *, full: bool) -> AsyncGenerator[LogReplay]:
    """Replay all of the log, or from the stored rows on where that is too much.

    Damage includes what the log has lost, as the stored rows remember it.
    """
    log = await log_of(nc)
    stored = await _stored_models(nc, log)
    replay = LogReplay(log, stored)
    if full or await log.last_position() <= MAX_EVENTS:
        remembered = replay.damage
        replay = LogReplay(log)
        replay.damage = remembered
    async with _closing(replay):
        yield replay


async def current_models(nc: Client) -> ReadModels:
    """Return all read models as of now, whether or not a projector runs."""
    log = await log_of(nc)
    async with _closing(LogReplay(log, await _stored_models(nc, log))) as replay:
        await replay.go_on()
        return replay.models


async def _stored_models(nc: Client, log: JetStreamLog) -> ReadModels:
    try:
        models = restore(await JetStreamRows(nc).load())
    except OutdatedRowsError:
        models = ReadModels()
    if models.position > await log.last_position() or await log.missing_events():
        await mark_lost(log, models)
    return models


@asynccontextmanager
async def _closing(replay: LogReplay) -> AsyncGenerator[LogReplay]:
    try:
        yield replay
    finally:
        await replay.close()
