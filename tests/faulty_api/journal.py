"""The journal of all effects, each written in the transaction of the effect."""

import sqlite3
import time
from contextvars import ContextVar
from datetime import UTC, datetime

import msgspec

EFFECTS = {"POST": "creates", "PUT": "updates", "DELETE": "deletes"}

key_of_request: ContextVar[str | None] = ContextVar("key_of_request", default=None)

_TABLES = """
CREATE TABLE IF NOT EXISTS journal (
    sequence INTEGER PRIMARY KEY, time REAL NOT NULL, method TEXT NOT NULL, name TEXT NOT NULL,
    uid TEXT NOT NULL, idempotency_key TEXT, previous BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS counted (after INTEGER NOT NULL) STRICT;
"""
_TRIGGER = """
CREATE TEMP TRIGGER journal_{verb} AFTER {verb} ON shapes BEGIN
    INSERT INTO journal (time, method, name, uid, idempotency_key, previous)
    VALUES (effect_time(), '{method}', {row}.name,
            json_extract(CAST({row}.document AS TEXT), '$.uid'), effect_key(), {previous});
END
"""
# The document before a name's first later effect is its state at that moment.
_AS_OF = """
WITH later AS (
    SELECT name, previous AS document, min(sequence) FROM journal
    WHERE time > ? GROUP BY name
)
SELECT name, document FROM shapes WHERE name NOT IN (SELECT name FROM later)
UNION ALL
SELECT name, document FROM later WHERE document IS NOT NULL
ORDER BY name
"""


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

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.executescript(_TABLES)
        newest = database.execute("SELECT max(time) FROM journal").fetchone()
        self._last_time: float = newest[0] or 0.0
        database.create_function("effect_time", 0, self._now)
        database.create_function("effect_key", 0, key_of_request.get)
        for verb, method, row, previous in (
            ("INSERT", "POST", "NEW", "NULL"),
            ("UPDATE", "PUT", "NEW", "OLD.document"),
            ("DELETE", "DELETE", "OLD", "OLD.document"),
        ):
            script = _TRIGGER.format(verb=verb, method=method, row=row, previous=previous)
            database.execute(script)

    def _now(self) -> float:
        # Monotonic, so that "as of a moment" is a prefix of the journal.
        self._last_time = max(self._last_time, time.time())
        return self._last_time

    def entries(self, after: int, limit: int | None) -> list[JournalEntry]:
        """Return the effects with a sequence above `after`, at most `limit` of them."""
        rows = self._database.execute(
            "SELECT sequence, time, method, name, uid, idempotency_key FROM journal"
            " WHERE sequence > ? ORDER BY sequence LIMIT ?",
            (after, -1 if limit is None else limit),
        )
        return [
            JournalEntry(
                sequence,
                datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds"),
                *rest,
            )
            for sequence, moment, *rest in rows
        ]

    def as_of(self, moment: float) -> list[tuple[str, bytes]]:
        """Return every shape's name and document as of a moment."""
        return self._database.execute(_AS_OF, (moment,)).fetchall()

    def count_shapes(self) -> int:
        """Return the number of shapes."""
        return self._database.execute("SELECT count(*) FROM shapes").fetchone()[0]

    def count_effects(self) -> dict[str, int]:
        """Return the number of effects of each type since the last reset."""
        query = "SELECT method, count(*) FROM journal WHERE sequence > ? GROUP BY method"
        counts = dict(self._database.execute(query, (self._counted_after(),)).fetchall())
        return {effect: counts.get(method, 0) for method, effect in EFFECTS.items()}

    def reset_counts(self) -> None:
        """Reset the counts to zero."""
        self._database.execute("DELETE FROM counted")
        self._database.execute("INSERT INTO counted SELECT coalesce(max(sequence), 0) FROM journal")

    def _counted_after(self) -> int:
        row = self._database.execute("SELECT after FROM counted").fetchone()
        return row[0] if row else 0
