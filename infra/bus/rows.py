"""Rows of the read models in a key-value bucket, which ``nats kv`` shows too.

Rows and their checkpoint are written in one atomic batch, which holds a compare-and-set on the
checkpoint: whoever writes has compared his checkpoint with the one that is stored (ADR 0019).
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
_ROWS_AT_ONCE: Final = 900  # the server takes 1,000 messages in a batch
_HEADERS_BYTES: Final = 1024  # more than those of a batch take
_DELETED: Final = {"KV-Operation": "DEL"}

_logger = structlog.get_logger(__name__)


class JetStreamRows:
    """Implements ``reconciler.ports.RowStore``."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self.rows_at_once = _ROWS_AT_ONCE

    async def load(self) -> Mapping[str, bytes]:
        """Read every row, as of one save."""
        return _contents(await self._newest(">"))

    async def checkpoint(self) -> tuple[bytes, int]:
        """Read the checkpoint alone, and its revision; empty and 0 if there is none."""
        found = await last_from_leader(self._nc, ROWS, ROWS_PREFIX + _CHECKPOINT)
        return (b"", 0) if found is None else (found.payload, found.seq)

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
            # The stream's state shows half a batch; a message that the leader reads never does.
            last = await last_from_leader(self._nc, ROWS, ROWS_PREFIX + ">")
            end = 0 if last is None else last.seq
        return found

    async def get(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Read some rows; those that do not exist are left out."""
        found = await last_for_subjects(self._nc, ROWS, [ROWS_PREFIX + name for name in names])
        return {
            message.subject[len(ROWS_PREFIX) :]: message.payload
            for message in found
            if message.payload
        }

    async def save(self, changes: Mapping[str, bytes | None], revision: int) -> int:
        """Write changed rows and the checkpoint over a revision, and return the new one.

        A row that is larger than a message stays as it was: a resource of one tenant must not keep
        the rows of all others from being written.
        """
        checkpoint = changes[_CHECKPOINT]
        assert checkpoint is not None
        rows = [
            OutgoingMessage(ROWS_PREFIX + name, payload or b"", None if payload else _DELETED)
            for name, payload in changes.items()
            if name != _CHECKPOINT and self._fits(name, payload or b"")
        ]
        subject = ROWS_PREFIX + _CHECKPOINT
        lock = OutgoingMessage(subject, checkpoint, expected_filter=subject, expected_last=revision)
        try:
            sequences = await append(self._nc, [*rows, lock])
        except AppendConflictError as conflict:
            raise RowsConflictError(str(conflict)) from conflict
        return sequences[-1]

    def _fits(self, name: str, payload: bytes) -> bool:
        """Return whether a row fits into a message of the bus, with its headers."""
        if len(payload) + _HEADERS_BYTES <= self._nc.max_payload:
            return True
        _logger.error("a row is too large to be written", row=name, size=len(payload))
        return False

    async def clear(self, before: int) -> None:
        """Remove every row that was written before a revision."""
        await api_request(self._nc, f"STREAM.PURGE.{ROWS}", {"seq": before})


def _contents(found: Mapping[str, StoredMessage]) -> dict[str, bytes]:
    """Return what rows hold, without those that were removed."""
    return {name: message.payload for name, message in found.items() if message.payload}
