"""Rebuild every read model from the log, and compare it with the stored rows, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Literal, Self

import msgspec
from nats.aio.client import Client

from events.integrity import LogDamage
from infra.bus.rows import JetStreamRows
from infra.bus.shape_log import CheckedFeed, JetStreamShapeLog
from projections.read_models import (
    CHECKPOINT,
    SCHEMA,
    ReadModels,
    decode_checkpoint,
)
from reconciler.cli.reading import log_of
from reconciler.ports import StoredEvent

_LOOKS = 5
"""A projector may write while we read: a difference counts when it is seen again."""


class Difference(msgspec.Struct, frozen=True, rename="camel"):
    """A row that is not what the log says."""

    row: str
    problem: Literal["missing", "unexpected", "different"]
    rebuilt: str = ""
    live: str = ""


class Comparison(msgspec.Struct, frozen=True, rename="camel"):
    """What came of comparing at the checkpoint of the stored rows."""

    checkpoint: int
    rows: int
    differences: list[Difference]
    note: str = ""


class Integrity(msgspec.Struct, frozen=True, rename="camel"):
    """What came of checking versions and digests of the whole log.

    ``undigested`` counts the events of releases that kept no digests: their versions are checked.
    """

    shapes: int
    undigested: int
    damage: list[LogDamage]


class Rebuild:
    """Folds the log step by step, up to the positions that are asked for."""

    def __init__(self, log: JetStreamShapeLog) -> None:
        self.models = ReadModels()
        self.events = 0
        self.damage: list[LogDamage] = []
        self._log = log
        self._waiting: list[StoredEvent] = []
        self._feed: CheckedFeed | None = None
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if await self._log.last_position() > 0:
            self._feed = await self._closing.enter_async_context(
                self._log.follow(0, damaged=self._damaged)
            )
        return self

    def _damaged(self, damage: LogDamage) -> None:
        self.damage.append(damage)
        self.models.mark_damage(damage)

    @property
    def integrity(self) -> Integrity:
        """What came of checking all that was read."""
        if self._feed is None:
            return Integrity(0, 0, [])
        chains = self._feed.chains
        return Integrity(len(chains.chains), chains.undigested, self.damage)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._closing.aclose()

    async def to(self, position: int, progress: Callable[[int], object]) -> None:
        """Fold everything up to a position, or as far as the log goes if it has lost its end."""
        while True:
            self._apply_waiting(position)
            progress(min(self.models.position, position))
            if self._waiting or self._feed is None or self._feed.position >= position:
                return
            if self._feed.caught_up and await self._has_lost(position):
                return
            self._waiting = list(await self._feed.next_events())

    async def _has_lost(self, position: int) -> bool:
        last = await self._log.last_position()
        if last >= position:
            return False
        expected = f"a log that ends at position {position} or later, as the stored rows know it"
        damage = LogDamage("Lost", position, 0, expected, f"one that ends at position {last}")
        if damage not in self.damage:
            self._damaged(damage)
        return True

    def _apply_waiting(self, position: int) -> None:
        done = 0
        for at, event in self._waiting:
            if at > position:
                break
            self.models.apply(at, event)
            done += 1
        self.events += done
        del self._waiting[:done]


async def compare(nc: Client, rebuild: Rebuild, progress: Callable[[int], object]) -> Comparison:
    """Rebuild up to the checkpoint of the stored rows, and compare all of them."""
    found = await _look(nc, rebuild, progress)
    for _ in range(_LOOKS):
        before = found.differences
        if before:
            found = await _look(nc, rebuild, progress)
        if found.differences == before:
            break
    return found


async def _look(nc: Client, rebuild: Rebuild, progress: Callable[[int], object]) -> Comparison:
    rows = await JetStreamRows(nc).load()
    if CHECKPOINT not in rows:
        log = await log_of(nc)
        is_empty = await log.last_position() == 0
        note = "the log is empty" if is_empty else "no projector has written yet"
        return Comparison(0, len(rows), [], note)
    checkpoint = decode_checkpoint(rows[CHECKPOINT])
    if checkpoint.schema != SCHEMA:
        note = f"rows of schema {checkpoint.schema}: the next projector rebuilds them as {SCHEMA}"
        return Comparison(checkpoint.position, len(rows), [], note)
    if not checkpoint.is_whole:
        note = "a projector was about to write all rows; the next one writes them"
        return Comparison(checkpoint.position, len(rows), [], note)
    await rebuild.to(checkpoint.position, progress)
    found = differences(dict(rebuild.models.rows()), rows)
    return Comparison(checkpoint.position, len(rows), found)


def differences(rebuilt: Mapping[str, bytes], live: Mapping[str, bytes]) -> list[Difference]:
    """Compare the rows of one position."""
    return [
        _difference(name, rebuilt.get(name), live.get(name))
        for name in sorted(rebuilt.keys() | live.keys())
        if rebuilt.get(name) != live.get(name)
    ]


def _difference(name: str, rebuilt: bytes | None, live: bytes | None) -> Difference:
    if live is None:
        return Difference(name, "missing", rebuilt=(rebuilt or b"").decode(errors="replace"))
    if rebuilt is None:
        return Difference(name, "unexpected", live=live.decode(errors="replace"))
    return Difference(
        name, "different", rebuilt.decode(errors="replace"), live.decode(errors="replace")
    )
