"""Rows of the read models in a key-value bucket, which ``nats kv`` shows too.

Rows and checkpoint are written in atomic batches; each batch holds a compare-and-set on the
checkpoint, so that of two projectors only one writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from nats.aio.client import Client

from infra.bus.streams import ROWS, ROWS_PREFIX
from infra.jetstream.append import append
from infra.jetstream.connection import api_request
from infra.jetstream.errors import AppendConflictError
from infra.jetstream.follow import follow
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.reads import StoredMessage, last_for_subjects, stream_state
from reconciler.ports import RowsConflictError

_CHECKPOINT: Final = "checkpoint"
_ROWS_AT_ONCE: Final = 900
_DELETED: Final = {"KV-Operation": "DEL"}


class JetStreamRows:
    """Implements ``reconciler.ports.RowStore``."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._checkpoint = b""
        self._checkpoint_position = 0

    async def load(self) -> Mapping[str, bytes]:
        """Read every row."""
        self._checkpoint, self._checkpoint_position = b"", 0
        found = await self._newest(">")
        if _CHECKPOINT in found:
            self._checkpoint = found[_CHECKPOINT].payload
            self._checkpoint_position = found[_CHECKPOINT].seq
        return _contents(found)

    async def matching(self, pattern: str) -> Mapping[str, bytes]:
        """Read the rows whose names match a pattern with the wildcards of subjects."""
        return _contents(await self._newest(pattern))

    async def _newest(self, pattern: str) -> dict[str, StoredMessage]:
        """Read until nothing has been added meanwhile.

        A row that is written again moves to the end: one pass to what was the end would miss it.
        """
        found: dict[str, StoredMessage] = {}
        position, end = 0, 1
        while position < end:
            filters = [ROWS_PREFIX + pattern]
            async with follow(self._nc, ROWS, filters=filters, start_seq=position + 1) as follower:
                async for messages in follower.replay():
                    for message in messages:
                        found[message.subject[len(ROWS_PREFIX) :]] = message
                position = follower.position
            end = (await stream_state(self._nc, ROWS)).last_seq
        return found

    async def get(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Read some rows; those that do not exist are left out."""
        found = await last_for_subjects(self._nc, ROWS, [ROWS_PREFIX + name for name in names])
        return {
            message.subject[len(ROWS_PREFIX) :]: message.payload
            for message in found
            if message.payload
        }

    async def save(self, changes: Mapping[str, bytes | None]) -> None:
        """Write changed rows; the new checkpoint comes with the last batch."""
        checkpoint = changes[_CHECKPOINT]
        assert checkpoint is not None
        rows = [
            OutgoingMessage(ROWS_PREFIX + name, payload or b"", None if payload else _DELETED)
            for name, payload in changes.items()
            if name != _CHECKPOINT
        ]
        for start in range(0, max(len(rows), 1), _ROWS_AT_ONCE):
            is_last = start + _ROWS_AT_ONCE >= len(rows)
            await self._save_batch(
                rows[start : start + _ROWS_AT_ONCE], checkpoint if is_last else self._checkpoint
            )

    async def _save_batch(self, rows: Sequence[OutgoingMessage], checkpoint: bytes) -> None:
        subject = ROWS_PREFIX + _CHECKPOINT
        lock = OutgoingMessage(
            subject, checkpoint, expected_filter=subject, expected_last=self._checkpoint_position
        )
        try:
            sequences = await append(self._nc, [lock, *rows])
        except AppendConflictError as conflict:
            raise RowsConflictError(str(conflict)) from conflict
        self._checkpoint, self._checkpoint_position = checkpoint, sequences[0]

    async def clear(self) -> None:
        """Remove every row."""
        await api_request(self._nc, f"STREAM.PURGE.{ROWS}", {})
        self._checkpoint, self._checkpoint_position = b"", 0


def _contents(found: Mapping[str, StoredMessage]) -> dict[str, bytes]:
    """Give what rows hold, without those that were removed."""
    return {name: message.payload for name, message in found.items() if message.payload}
