"""Rows of the read models in a key-value bucket, which ``nats kv`` can also read.

One atomic batch writes rows and their checkpoint, with a compare-and-set on the checkpoint, so each
write is based on the stored checkpoint (ADR 0019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import structlog
from nats.aio.client import Client

from infra.bus.streams import ROWS, ROWS_PREFIX
from infra.jetstream.append import append
from infra.jetstream.connection import api_request
from infra.jetstream.errors import AppendConflictError
from infra.jetstream.follow import follow
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.reads import StoredMessage, last_for_subjects, last_from_leader
from reconciler.ports import RowsConflictError

_CHECKPOINT: Final = "checkpoint"
_ROWS_PER_SAVE: Final = 900  # the server accepts 1,000 messages in a batch
_HEADERS_BYTES: Final = 1024  # upper bound for the headers in a batch
_DELETED: Final = {"KV-Operation": "DEL"}

_logger = structlog.get_logger(__name__)


class JetStreamRows:
    """Implements ``reconciler.ports.RowStore``."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self.rows_per_save = _ROWS_PER_SAVE

    async def load(self) -> Mapping[str, bytes]:
        """Read all rows, as of one save."""
        return _contents(await self._newest(">"))

    async def checkpoint(self) -> tuple[bytes, int]:
        """Read the checkpoint and its revision; empty and 0 if there is none."""
        message = await last_from_leader(self._nc, ROWS, ROWS_PREFIX + _CHECKPOINT)
        return (b"", 0) if message is None else (message.payload, message.seq)

    async def read_matching(self, pattern: str) -> Mapping[str, bytes]:
        """Read the rows whose names match a pattern with subject wildcards."""
        return _contents(await self._newest(pattern))

    async def _newest(self, pattern: str) -> dict[str, StoredMessage]:
        """Repeat the read until no message is added during a pass.

        A row that is rewritten moves to the end of the stream, where a single pass would miss it.
        """
        newest: dict[str, StoredMessage] = {}
        position, end = 0, 1
        while position < end:
            filters = [ROWS_PREFIX + pattern]
            async with follow(self._nc, ROWS, filters=filters, start_seq=position + 1) as follower:
                async for messages in follower.replay():
                    for message in messages:
                        newest[message.subject[len(ROWS_PREFIX) :]] = message
                position = follower.position
            # The stream's state includes incomplete batches, but a message read from the leader
            # does not.
            last = await last_from_leader(self._nc, ROWS, ROWS_PREFIX + ">")
            end = 0 if last is None else last.seq
        return newest

    async def get(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Read some rows. Missing ones are omitted."""
        messages = await last_for_subjects(self._nc, ROWS, [ROWS_PREFIX + name for name in names])
        return {
            message.subject[len(ROWS_PREFIX) :]: message.payload
            for message in messages
            if message.payload
        }

    async def save(self, changes: Mapping[str, bytes | None], revision: int) -> int:
        """Write changed rows and the checkpoint if the revision matches, and return the new one.

        A row that exceeds the message size keeps its old content, because one tenant's resource
        must not block the rows of all other tenants.
        """
        checkpoint = changes[_CHECKPOINT]
        assert checkpoint is not None
        rows = [
            OutgoingMessage(ROWS_PREFIX + name, payload or b"", None if payload else _DELETED)
            for name, payload in changes.items()
            if name != _CHECKPOINT and self._fits(name, payload or b"")
        ]
        subject = ROWS_PREFIX + _CHECKPOINT
        checkpoint_message = OutgoingMessage(
            subject, checkpoint, expected_filter=subject, expected_last=revision
        )
        try:
            sequences = await append(self._nc, [*rows, checkpoint_message])
        except AppendConflictError as conflict:
            raise RowsConflictError(str(conflict)) from conflict
        return sequences[-1]

    def _fits(self, name: str, payload: bytes) -> bool:
        """Return whether a row fits in a message with its headers."""
        if len(payload) + _HEADERS_BYTES <= self._nc.max_payload:
            return True
        _logger.error("a row is too large to write", row=name, size=len(payload))
        return False

    async def clear(self, before: int) -> None:
        """Delete the rows that were written before a revision."""
        await api_request(self._nc, f"STREAM.PURGE.{ROWS}", {"seq": before})


def _contents(messages: Mapping[str, StoredMessage]) -> dict[str, bytes]:
    """Return the contents of rows, omitting deleted ones."""
    return {name: message.payload for name, message in messages.items() if message.payload}
