"""The journal: every effect that really happened, written in the transaction of the effect."""

import sqlite3
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Final

import msgspec

from infra.shapes_api.replies import Effect

EFFECT_OF_METHOD: Final = {
    "POST": Effect.CREATE,
    "PUT": Effect.UPDATE,
    "DELETE": Effect.DELETE,
}


class JournalEntry(msgspec.Struct, frozen=True):
    """One effect."""

    sequence: int
    time: str
    method: str
    name: str
    uid: str
    idempotency_key: str | None


class Journal:
    """Effects in the order in which they happened, numbered from 1 without gaps."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        row = connection.execute("SELECT time FROM journal ORDER BY sequence DESC LIMIT 1")
        self._last_time: float = (row.fetchone() or (0.0,))[0]

    def record(
        self, method: str, name: str, uid: str, key: str | None, previous: bytes | None
    ) -> None:
        """Write an effect down, with the shape's document from before it."""
        # Never backwards, so that "as of a moment" is a prefix of the journal.
        self._last_time = max(self._last_time, time.time())
        self._connection.execute(
            "INSERT INTO journal (time, method, name, uid, idempotency_key, previous)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (self._last_time, method, name, uid, key, previous),
        )

    def entries(self, after: int, limit: int | None) -> list[JournalEntry]:
        """Return the effects with a sequence above `after`, at most `limit` of them."""
        rows = self._connection.execute(
            "SELECT sequence, time, method, name, uid, idempotency_key FROM journal"
            " WHERE sequence > ? ORDER BY sequence LIMIT ?",
            (after, -1 if limit is None else limit),
        )
        return [
            JournalEntry(sequence, _timestamp(moment), method, name, uid, key)
            for sequence, moment, method, name, uid, key in rows
        ]

    def last_sequence(self) -> int:
        """Return the sequence of the latest effect, 0 when there is none."""
        row = self._connection.execute("SELECT max(sequence) FROM journal").fetchone()
        return row[0] or 0

    def last_sequence_at(self, moment: float) -> int:
        """Return the sequence of the latest effect that had happened by a moment."""
        row = self._connection.execute(
            "SELECT sequence FROM journal WHERE time <= ? ORDER BY sequence DESC LIMIT 1", (moment,)
        ).fetchone()
        return row[0] if row else 0

    def count_effects(self, after: int) -> Counter[Effect]:
        """Return how many effects of each sort there are with a sequence above `after`."""
        rows = self._connection.execute(
            "SELECT method, count(*) FROM journal WHERE sequence > ? GROUP BY method", (after,)
        )
        return Counter({EFFECT_OF_METHOD[method]: count for method, count in rows})


def _timestamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds")
