"""Idempotency keys: the first answer to a key is kept and given again to every repeat.

Kept is whatever an operation answers, errors included. What is refused before the operation (too
large, an injected fault, a key that is still running) is not an answer to the key.
"""

import hashlib
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import msgspec

from infra.shapes_api.problems import ProblemError
from infra.shapes_api.replies import Reply

KEPT_SECONDS: Final = 25 * 3600.0  # the contract promises 24 hours
PURGE_BATCH: Final = 500  # so that a purge never blocks requests for long
REPLAYED_HEADER: Final = ("idempotent-replayed", "true")

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Reply)


def fingerprint(method: str, path: str, body: bytes) -> bytes:
    """Return a digest of what has to be the same in every repeat."""
    return hashlib.sha256(b"\n".join((method.encode(), path.encode(), body))).digest()


class RunningKeys:
    """The keys of the requests that are being worked on now."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    @contextmanager
    def claim(self, key: str | None) -> Generator[None, None, None]:
        """Hold a key for the length of a request.

        Raises:
            ProblemError: 409, another request holds it.
        """
        if key is None:
            yield
            return
        if key in self._keys:
            raise ProblemError(
                409,
                "a request with this Idempotency-Key is still running: repeat later",
                kind="key-still-running",
                headers=(("retry-after", "1"),),
            )
        self._keys.add(key)
        try:
            yield
        finally:
            self._keys.discard(key)


class KeptReplies:
    """First answers by key, written in the transaction of the effect that they report."""

    def __init__(
        self, connection: sqlite3.Connection, clock: Callable[[], float] = time.time
    ) -> None:
        self._connection = connection
        self._clock = clock

    def answer_once(
        self, key: str | None, request_fingerprint: bytes, operation: Callable[[], Reply]
    ) -> Reply:
        """Run the operation unless its key has an answer already; return the key's answer.

        Raises:
            ProblemError: 422, the key was used by a different request.
        """
        if key is None:
            return operation()
        kept = self._kept(key, request_fingerprint)
        if kept is not None:
            return kept
        try:
            reply = operation()
        except ProblemError as error:
            reply = error.reply()
        self._keep(key, request_fingerprint, reply)
        return reply

    def purge(self) -> int:
        """Forget at most `PURGE_BATCH` answers that were kept for long enough; return how many."""
        return self._connection.execute(
            "DELETE FROM kept_replies WHERE kept_at < ? AND rowid IN"
            " (SELECT rowid FROM kept_replies ORDER BY rowid LIMIT ?)",
            (self._clock() - KEPT_SECONDS, PURGE_BATCH),
        ).rowcount

    def _kept(self, key: str, request_fingerprint: bytes) -> Reply | None:
        row = self._connection.execute(
            "SELECT fingerprint, reply FROM kept_replies WHERE key = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        if row[0] != request_fingerprint:
            raise ProblemError(
                422,
                "this Idempotency-Key was used with another method, path or body: use a new one",
                kind="key-used-otherwise",
            )
        reply = _decoder.decode(row[1])
        return msgspec.structs.replace(
            reply, headers=(*reply.headers, REPLAYED_HEADER), effect=None
        )

    def _keep(self, key: str, request_fingerprint: bytes, reply: Reply) -> None:
        self._connection.execute(
            "INSERT INTO kept_replies VALUES (?, ?, ?, ?)",
            (key, self._clock(), request_fingerprint, _encoder.encode(reply)),
        )
