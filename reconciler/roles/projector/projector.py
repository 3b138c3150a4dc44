"""The projector: maintains the rows of the read models in their store.

Folded changes form batches, each an atomic write of rows and their checkpoint. If the process stops
between two batches, the next start continues from the rows (ADR 0019).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from events.integrity import LogDamage
from events.log import LogEvent
from projections.read_models import (
    CHECKPOINT,
    EMPTY_CHECKPOINT,
    SCHEMA,
    Checkpoint,
    OutdatedRowsError,
    ReadModels,
    RowChanges,
    encode_checkpoint,
    read_checkpoint,
    restore,
)
from reconciler.failpoints import Failpoint, reach
from reconciler.ports import RowsConflictError, RowStore

GATHER_SECONDS = 0.1
"""Time to collect changes, so that a busy resource is written once instead of five times."""

STANDBY_SECONDS = 0.5
"""Interval between checks for another projector. After two checks without new writes, this
one takes over."""

_EXTRA_ROWS = 4
"""Rows beyond a batch's size, because its last event may add two and the fleet's row."""

MAX_WAITING_BATCHES = 16
"""Limit on batches in memory. Beyond it, reading the log pauses while batches are written."""

_IDLE_CHECKS = 2
_RETRY_SECONDS = 1.0
_logger = structlog.get_logger(__name__)


async def load_models(store: RowStore) -> ReadModels:
    """Load the stored read models, or empty ones if the rows are unusable."""
    rows = await store.load()
    if not rows:
        return ReadModels()
    try:
        return restore(rows)
    except OutdatedRowsError as error:
        _logger.warning("rebuilding the read models from the log", reason=str(error))
        models = ReadModels()
        stored = read_checkpoint(rows.get(CHECKPOINT, b""))
        if stored is not None and stored.schema == SCHEMA:  # not from a later release
            models.replaces = stored
        return models


class _Stored(NamedTuple):
    """The store's revision, and its checkpoint, which is None if the rows are unusable."""

    checkpoint: Checkpoint | None
    revision: int


class Projector:
    """Writes changes to the read models. If several projectors run, only one of them writes."""

    def __init__(self, models: ReadModels, store: RowStore) -> None:
        self._models = models
        self._store = store
        self._batch_rows = store.rows_per_save
        self._waiting = deque(_loss_batches(models, store.rows_per_save))
        self._changed = asyncio.Event()
        self._is_batch_full = asyncio.Event()
        self._progress = asyncio.Event()
        self._has_progressed = False
        self._is_stuck = False  # the last round wrote none of the waiting batches
        self._stored: _Stored | None = None  # None: must be read
        self._stands_by = False
        self._idle_checks = 0
        if self._waiting:
            self._changed.set()

    def apply(self, position: int, event: LogEvent) -> None:
        """Fold an event. The change is written soon."""
        self._models.apply(position, event)
        self._handle_change()

    def fold_damage(self, damage: LogDamage) -> None:
        """Fold damage in the order of events. The change is written soon."""
        self._models.fold_damage(damage)
        self._handle_change()

    def mark_damage(self, damage: LogDamage) -> None:
        """Mark damage at any position. The change is written soon."""
        self._models.mark_damage(damage)
        self._handle_change()

    async def wait_for_room(self) -> None:
        """Wait until the number of waiting batches is below the limit, unless writing fails."""
        while len(self._waiting) > MAX_WAITING_BATCHES and not self._is_stuck:
            self._progress.clear()
            await self._progress.wait()

    async def run(self) -> None:
        """Write changes until canceled. A failed write is retried together with the next one."""
        try:
            while True:
                await self._changed.wait()
                await self._collect_changes()
                self._changed.clear()
                await self._write_or_wait()
        finally:
            await self._write_at_shutdown()

    async def flush(self) -> None:
        """Write all changes so far, unless another projector does."""
        self._end_batch()
        await self._write_waiting()

    # --- folding

    def _handle_change(self) -> None:
        if self._models.changed_rows >= self._batch_rows:
            self._end_batch()
            self._is_batch_full.set()
        self._changed.set()

    def _end_batch(self) -> None:
        changes = self._models.take_changes()
        if changes is None:
            return
        if self._is_stuck and len(self._waiting) > MAX_WAITING_BATCHES:
            # Enlarge the last batch, to bound the number of batches in memory.
            changes = self._waiting.pop().merge(changes)
        self._waiting.append(changes)

    # --- writing

    async def _write_waiting(self) -> None:
        try:
            if self._stands_by and await self._is_another_writing():
                return
            while self._waiting:
                stored = self._stored or await self._read_checkpoint()
                if self._drop_if_stored(stored.checkpoint):
                    continue
                if stored.checkpoint is None or stored.checkpoint < self._waiting[0].after:
                    await self._rewrite_all(stored.revision)
                await self._save(self._waiting[0])
        except RowsConflictError:
            await self._stand_by()

    async def _save(self, batch: RowChanges) -> None:
        """Write a batch, in several parts if it was enlarged while the store failed."""
        rows = list(batch.rows.items())
        limit = self._batch_rows + _EXTRA_ROWS
        incomplete = replace(batch.after, is_whole=False)
        for start in range(0, max(1, len(rows)), limit):
            is_last = start + limit >= len(rows)
            checkpoint = batch.checkpoint if is_last else incomplete
            await self._save_batch(rows[start : start + limit], checkpoint)
        self._drop_first()

    async def _save_batch(
        self, rows: Sequence[tuple[str, bytes | None]], checkpoint: Checkpoint
    ) -> None:
        assert self._stored is not None
        reach(Failpoint.PROJECTOR_FOLDED)
        revision, self._stored = self._stored.revision, None  # unknown until the response arrives
        encoded = encode_checkpoint(checkpoint)
        revision = await self._store.save({**dict(rows), CHECKPOINT: encoded}, revision)
        self._stored = _Stored(checkpoint if checkpoint.is_whole else None, revision)
        reach(Failpoint.PROJECTOR_SAVED)

    async def _rewrite_all(self, revision: int) -> None:
        """Clear the store, and write all rows, because the stored ones are unusable or too old."""
        self._stored = _Stored(None, revision)
        # First exclude other writers: the purge would delete rows that they write before it.
        await self._save_batch([], replace(EMPTY_CHECKPOINT, is_whole=False))
        await self._store.clear(self._stored.revision)
        self._models.replaces = None
        self._stored = _Stored(EMPTY_CHECKPOINT, self._stored.revision)
        if self._waiting[0].after > EMPTY_CHECKPOINT:
            self._waiting.clear()
            self._waiting.append(self._models.take_all())

    # --- coordination with another projector

    async def _read_checkpoint(self) -> _Stored:
        """Read the checkpoint. A checkpoint from a later release counts as newer.

        Another projector may keep updating unusable rows, because it does not read them.
        """
        payload, revision = await self._store.checkpoint()
        checkpoint, replaces = read_checkpoint(payload), self._models.replaces
        if checkpoint is not None and (
            (checkpoint.schema, checkpoint.is_whole) < (SCHEMA, True)
            or (replaces is not None and checkpoint.schema == SCHEMA and checkpoint >= replaces)
        ):
            checkpoint = None
        self._stored = _Stored(checkpoint, revision)
        return self._stored

    def _drop_if_stored(self, stored: Checkpoint | None) -> bool:
        """Drop the first batch, and return True, if its rows or newer ones are stored."""
        first = self._waiting[0]
        if stored is None or stored < first.checkpoint:
            return False
        if first.damage:  # the projector that wrote the rows may not have detected it
            if stored == first.checkpoint:
                return False
            self._models.mark_damage_changed()
        self._drop_first()
        return True

    def _drop_first(self) -> None:
        self._waiting.popleft()
        self._has_progressed = True
        self._progress.set()

    async def _stand_by(self) -> None:
        """Wait while another projector writes."""
        if not self._stands_by:
            _logger.info("another projector is active; standing by")
        self._stands_by, self._stored = True, None
        await self._is_another_writing()

    async def _is_another_writing(self) -> bool:
        """Read the other projector's progress. Return False if it has stopped with work left."""
        previous, stored = self._stored, await self._read_checkpoint()
        while self._waiting and self._drop_if_stored(stored.checkpoint):
            pass
        if previous is None or previous.revision != stored.revision or not self._waiting:
            self._idle_checks = 0
        else:
            self._idle_checks += 1
        self._stands_by = self._idle_checks < _IDLE_CHECKS
        if not self._stands_by:
            _logger.info("no other projector is active; taking over")
        elif self._waiting:
            self._changed.set()
        return self._stands_by

    # --- rounds

    async def _collect_changes(self) -> None:
        if self._stands_by:
            await asyncio.sleep(STANDBY_SECONDS)
        elif not self._waiting:
            self._is_batch_full.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER_SECONDS):
                    await self._is_batch_full.wait()
        if not self._waiting:  # otherwise, the incomplete batch collects further changes
            self._end_batch()

    async def _write_or_wait(self) -> None:
        self._has_progressed, failed = False, False
        try:
            await self._write_waiting()
        except Exception as error:  # noqa: BLE001 - the rows are a cache
            _logger.warning("failed to write the read models; retrying", error=str(error))
            failed = True
        self._is_stuck = bool(self._waiting) and not self._has_progressed
        self._progress.set()
        if failed or self._models.changed_rows:
            self._changed.set()
        if failed:
            await asyncio.sleep(_RETRY_SECONDS)

    async def _write_at_shutdown(self) -> None:
        try:
            async with asyncio.timeout(_RETRY_SECONDS):
                await self.flush()
        except Exception as error:  # noqa: BLE001 - the next start rebuilds them from the log
            _logger.info(
                "failed to write the read models at shutdown; the next start rebuilds them",
                error=repr(error),
            )


def _loss_batches(models: ReadModels, batch_rows: int) -> Iterator[RowChanges]:
    """Yield the losses found before the first fold, in batches.

    Any subset may be stored with the old checkpoint, because the next start finds the others.
    """
    changes = models.take_changes()
    if changes is None:
        return
    rows = list(changes.rows.items())
    for start in range(0, len(rows), batch_rows):
        is_last = start + batch_rows >= len(rows)
        checkpoint = changes.checkpoint if is_last else changes.after
        part = dict(rows[start : start + batch_rows])
        yield RowChanges(changes.after, checkpoint, part, damage=True)
