"""The SQLite database in the data folder, the only state that outlives the process."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FILE_NAME: Final = "example-api.db"
OWNER_WAIT_SECONDS: Final = 1.0  # a previous process that is stopping still locks the file

_CHECKPOINT_PAGES: Final = 4000  # 16 MiB of write-ahead log between two waits for the disk
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS shapes (
    name TEXT PRIMARY KEY, document BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stored_responses (
    key TEXT PRIMARY KEY, stored_at REAL NOT NULL, request BLOB NOT NULL, response BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS records (
    zone TEXT NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (zone, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS record_changes (
    zone TEXT PRIMARY KEY, last INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""


class DataFolderError(Exception):
    """The data folder cannot be used; the message gives the reason in one line."""


def open_database(folder: Path) -> sqlite3.Connection:
    """Open the database of a data folder exclusively; create both if missing.

    With a write-ahead log and `synchronous=NORMAL`, a committed transaction survives a killed
    process, but not a power failure.

    Raises:
        DataFolderError: the folder is not writable, is in use, or contains something else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            folder / FILE_NAME, timeout=OWNER_WAIT_SECONDS, isolation_level=None
        )
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        connection.executescript(_SCHEMA)
    except (OSError, sqlite3.Error) as error:
        raise DataFolderError(_reason(folder, error)) from error
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Commit the writes in the block, all or nothing."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def _reason(folder: Path, error: Exception) -> str:
    if "locked" in str(error):
        return (
            f"data directory {folder} is in use by another process; stop that process, or use "
            "another directory"
        )
    return f"data directory {folder} is not usable: {error}"
