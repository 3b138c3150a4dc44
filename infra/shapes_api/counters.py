"""What was asked of the service and what it did, for `/_stats`."""

import sqlite3
from collections import Counter, defaultdict
from typing import Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.shapes_api.journal import Journal
from infra.shapes_api.replies import Effect

NO_ANSWER: Final = "lost"
COUNTED_PATHS: Final = "/shapes"


class Statistics(msgspec.Struct, frozen=True):
    """The document of `GET /_stats`: requests by method and status, and the effects of them."""

    requests: dict[str, dict[str, int]]
    shapes: int
    effective: dict[str, int]


class Counters:
    """Counts since the last reset.

    Effects are counted across restarts, from the journal; requests since the start.
    """

    def __init__(self, connection: sqlite3.Connection, journal: Journal, shapes: int) -> None:
        self._connection = connection
        self._journal = journal
        self._shapes = shapes
        self._effects = journal.count_effects(self._reset_at())
        self._requests: Counter[tuple[str, str]] = Counter()

    def count_request(self, method: str, status: str) -> None:
        """Count an answer, or the loss of one."""
        self._requests[method, status] += 1

    def count_effect(self, effect: Effect | None) -> None:
        """Count a committed effect."""
        if effect is None:
            return
        self._effects[effect] += 1
        self._shapes += {Effect.CREATE: 1, Effect.DELETE: -1}.get(effect, 0)

    def statistics(self) -> Statistics:
        """Return the counts."""
        requests: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for (method, status), count in sorted(self._requests.items()):
            requests[method][status] = count
        effective = {effect.value: self._effects[effect] for effect in Effect}
        return Statistics(dict(requests), self._shapes, effective)

    def reset(self) -> None:
        """Start counting from zero; the number of shapes stays what it is."""
        self._connection.execute(
            "INSERT OR REPLACE INTO settings VALUES ('counted_after', ?)",
            (self._journal.last_sequence(),),
        )
        self._effects.clear()
        self._requests.clear()

    def _reset_at(self) -> int:
        query = "SELECT value FROM settings WHERE name = 'counted_after'"
        row = self._connection.execute(query).fetchone()
        return row[0] if row else 0


class CountRequests:
    """Counts the requests to the contract's paths by method and status."""

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self._app = app
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and see what is answered."""
        if scope["type"] != "http" or not scope["path"].startswith(COUNTED_PATHS):
            await self._app(scope, receive, send)
            return
        status = NO_ANSWER

        async def see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, see)
        finally:
            self._counters.count_request(scope["method"], status)
