"""Records of all zones in one SQLite file."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import msgspec

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
  zone TEXT NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (zone, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS changes (
  zone TEXT NOT NULL PRIMARY KEY, last INTEGER NOT NULL
) WITHOUT ROWID;
"""

_COUNT = """
INSERT INTO changes VALUES (?, 1) ON CONFLICT (zone) DO UPDATE SET last = last + 1
"""


class RecordContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What callers may write. The order of ``values`` has no meaning."""

    type: Literal["A", "AAAA", "CNAME", "MX", "TXT"]
    values: Annotated[list[str], msgspec.Meta(min_length=1, max_length=100)]
    ttl: Annotated[int, msgspec.Meta(ge=1, le=604_800)] = 300
    tags: Annotated[list[str], msgspec.Meta(max_length=64)] = []


class Record(msgspec.Struct, frozen=True):
    """A record as the API shows it: ``id`` is new for every creation, ``etag`` for every change."""

    name: str
    id: str
    etag: str
    type: str
    ttl: int
    values: list[str]
    tags: list[str]


_decoder = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder()


class RecordStore:
    """The records in a folder; each call is one transaction."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(folder / "records.sqlite", isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.executescript(_SCHEMA)

    def get(self, zone: str, name: str) -> Record | None:
        """Read one record."""
        row = self._database.execute(
            "SELECT body FROM records WHERE zone = ? AND name = ?", (zone, name)
        ).fetchone()
        return None if row is None else _decoder.decode(row[0])

    def put(self, zone: str, name: str, content: RecordContent) -> Record:
        """Create or replace a record; its id stays."""
        known = self.get(zone, name)
        record = Record(
            name=name,
            id=known.id if known is not None else f"rec-{uuid.uuid4().hex}",
            etag=uuid.uuid4().hex,
            type=content.type,
            ttl=content.ttl,
            # An order of the API's own: callers must not rely on theirs.
            values=sorted(set(content.values), reverse=True),
            tags=sorted(set(content.tags)),
        )
        with self._changing(zone):
            self._database.execute(
                "INSERT OR REPLACE INTO records VALUES (?, ?, ?)",
                (zone, name, _encoder.encode(record)),
            )
        return record

    def delete(self, zone: str, name: str) -> None:
        """Delete a record."""
        with self._changing(zone):
            self._database.execute("DELETE FROM records WHERE zone = ? AND name = ?", (zone, name))

    def last_change(self, zone: str) -> int:
        """Give the number of a zone's newest change; 0 if nothing was ever changed in it."""
        row = self._database.execute("SELECT last FROM changes WHERE zone = ?", (zone,)).fetchone()
        return 0 if row is None else row[0]

    def page(
        self, zone: str, *, after: str, size: int, tags: Sequence[str]
    ) -> tuple[list[Record], str | None]:
        """List records in name order, and give the name to go on after, if there are more."""
        rows = self._database.execute(
            "SELECT body FROM records WHERE zone = ? AND name > ? ORDER BY name LIMIT ?",
            (zone, after, size + 1),
        ).fetchall()
        records = [_decoder.decode(row[0]) for row in rows]
        more = records[size - 1].name if len(records) > size else None
        return [record for record in records[:size] if set(tags) <= set(record.tags)], more

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextmanager
    def _changing(self, zone: str) -> Generator[None]:
        """Count a change together with it: neither is ever seen without the other."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute(_COUNT, (zone,))
