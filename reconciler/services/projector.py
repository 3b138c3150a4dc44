"""The projector: keeps the read models' rows up to date in their store."""

from __future__ import annotations

import asyncio

import structlog

from events.integrity import LogDamage
from events.log import LogEvent
from projections.read_models import (
    CHECKPOINT,
    OutdatedRowsError,
    ReadModels,
    decode_checkpoint,
    restore,
)
from reconciler.failpoints import Failpoint, reach
from reconciler.ports import RowsConflictError, RowStore

GATHER_SECONDS = 0.1
"""Changes are gathered this long, so that a busy shape is written once and not five times."""

_RETRY_SECONDS = 1.0
_logger = structlog.get_logger(__name__)


async def load_models(store: RowStore, *, clears: bool = True) -> ReadModels:
    """Take the read models up where they were left; empty if the rows cannot be used.

    ``clears``: rows that cannot be used are removed, which is the projector's business alone.
    """
    rows = await store.load()
    if CHECKPOINT not in rows:
        if rows and clears:
            await store.clear()
        return ReadModels()
    try:
        return restore(rows)
    except OutdatedRowsError as error:
        _logger.warning("read models are rebuilt from the log", reason=str(error))
        if clears:
            await store.clear()
        return ReadModels()


class Projector:
    """Writes what changed in the read models, as the log goes on."""

    def __init__(self, models: ReadModels, store: RowStore) -> None:
        self._models = models
        self._store = store
        self._changed = asyncio.Event()
        self._unwritten: dict[str, bytes | None] = {}

    def apply(self, position: int, event: LogEvent) -> None:
        """Fold an event in; it is written soon."""
        self._models.apply(position, event)
        self._changed.set()

    def mark_damage(self, damage: LogDamage) -> None:
        """Show that the log is damaged; it is written soon."""
        self._models.mark_damage(damage)
        self._changed.set()

    async def run(self) -> None:
        """Write for ever; rows that could not be written are written with the next ones."""
        try:
            while True:
                await self._changed.wait()
                await asyncio.sleep(GATHER_SECONDS)
                self._changed.clear()
                await self._write_or_wait()
        finally:
            await self._write_at_the_end()

    async def flush(self) -> None:
        """Write what changed until now."""
        self._unwritten |= self._models.take_changes()
        if not self._unwritten:
            return
        reach(Failpoint.PROJECTOR_FOLDED)
        # The checkpoint must come last: what is behind it is folded in again after a crash.
        checkpoint = self._unwritten.pop(CHECKPOINT)
        try:
            await self._store.save({**self._unwritten, CHECKPOINT: checkpoint})
        except RowsConflictError:
            if not await self._is_ahead():
                self._unwritten.clear()  # another projector wrote the same, and more
                return
            self._unwritten[CHECKPOINT] = checkpoint
            self._changed.set()
        except BaseException:
            self._unwritten[CHECKPOINT] = checkpoint
            raise
        else:
            self._unwritten.clear()
            reach(Failpoint.PROJECTOR_SAVED)

    async def _is_ahead(self) -> bool:
        """After another projector has written: whether there is still something to write."""
        rows = await self._store.load()
        stored = decode_checkpoint(rows[CHECKPOINT]).position if CHECKPOINT in rows else 0
        return self._models.position > stored

    async def _write_or_wait(self) -> None:
        try:
            await self.flush()
        except Exception as error:  # noqa: BLE001 - the rows are a cache: try again
            _logger.warning("read models are written again", error=str(error))
            self._changed.set()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _write_at_the_end(self) -> None:
        try:
            async with asyncio.timeout(_RETRY_SECONDS):
                await self.flush()
        except Exception as error:  # noqa: BLE001 - they are rebuilt from the log at the next start
            _logger.info("read models were not written at the end", error=repr(error))
