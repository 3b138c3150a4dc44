"""The shapes that exist, and the three operations that change them.

Each operation runs inside a transaction of `GroupCommit`, together with its journal entry.
"""

import sqlite3
import uuid
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from infra.shapes_api.entity_tags import entity_tag, require_match
from infra.shapes_api.journal import Journal
from infra.shapes_api.problems import ProblemError
from infra.shapes_api.replies import JSON_HEADER, Effect, Reply
from infra.shapes_api.shapes import DesiredShape, Shape, decode_shape, encode_shape


class Caller(NamedTuple):
    """What a change has to know of the request that asks for it."""

    idempotency_key: str | None = None
    if_match: str | None = None


class ShapeStore:
    """All shapes by name."""

    def __init__(self, connection: sqlite3.Connection, journal: Journal) -> None:
        self._connection = connection
        self._journal = journal

    def count(self) -> int:
        """Return the number of shapes."""
        return self._connection.execute("SELECT count(*) FROM shapes").fetchone()[0]

    def get(self, name: str) -> Reply:
        """Return the answer that shows a shape.

        Raises:
            ProblemError: 404, there is none of that name.
        """
        document = self._document(name)
        return _shown(200, document, decode_shape(document))

    def create(self, desired: DesiredShape, caller: Caller) -> Reply:
        """Create a shape.

        Raises:
            ProblemError: 409, the name is taken.
        """
        shape = Shape(
            name=desired.name,
            type=desired.type,
            color=desired.color,
            labels=desired.labels,
            uid=str(uuid.uuid4()),
            version=1,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        document = encode_shape(shape)
        try:
            self._connection.execute("INSERT INTO shapes VALUES (?, ?)", (shape.name, document))
        except sqlite3.IntegrityError as error:
            raise ProblemError(409, f"{shape.name} exists already", kind="name-taken") from error
        self._journal.record("POST", shape.name, shape.uid, caller.idempotency_key, None)
        return _shown(201, document, shape, Effect.CREATE)

    def replace(self, name: str, desired: DesiredShape, caller: Caller) -> Reply:
        """Replace what a client may choose of a shape.

        Raises:
            ProblemError: 422 the body names another shape, 404 none of that name, 412 `If-Match`.
        """
        if desired.name != name:
            detail = f"the body is named {desired.name} but the path says {name}"
            raise ProblemError(422, detail, kind="not-valid")
        previous = self._document(name)
        current = decode_shape(previous)
        require_match(caller.if_match, current.version)
        shape = msgspec.structs.replace(
            current,
            type=desired.type,
            color=desired.color,
            labels=desired.labels,
            version=current.version + 1,
        )
        document = encode_shape(shape)
        self._connection.execute("UPDATE shapes SET document = ? WHERE name = ?", (document, name))
        self._journal.record("PUT", name, shape.uid, caller.idempotency_key, previous)
        return _shown(200, document, shape, Effect.UPDATE)

    def delete(self, name: str, caller: Caller) -> Reply:
        """Delete a shape.

        Raises:
            ProblemError: 404 none of that name, 412 `If-Match`.
        """
        previous = self._document(name)
        current = decode_shape(previous)
        require_match(caller.if_match, current.version)
        self._connection.execute("DELETE FROM shapes WHERE name = ?", (name,))
        self._journal.record("DELETE", name, current.uid, caller.idempotency_key, previous)
        return Reply(204, effect=Effect.DELETE)

    def _document(self, name: str) -> bytes:
        query = "SELECT document FROM shapes WHERE name = ?"
        row = self._connection.execute(query, (name,)).fetchone()
        if row is None:
            raise ProblemError(404, f"there is no shape named {name}", kind="no-such-shape")
        return row[0]


def _shown(status: int, document: bytes, shape: Shape, effect: Effect | None = None) -> Reply:
    headers = (JSON_HEADER, ("etag", entity_tag(shape.version)))
    if effect is Effect.CREATE:
        headers = (*headers, ("location", f"/shapes/{shape.name}"))
    return Reply(status, document, headers, effect)
