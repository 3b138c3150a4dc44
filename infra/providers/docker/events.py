"""Use the Engine's events as hints that a client has changed containers or volumes."""

from __future__ import annotations

import asyncio
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from infra.providers.docker.engine import EngineApi, filters
from infra.providers.responses import UNDECODABLE
from reconciler.errors import NotDoneError, ProviderError

MAX_WAIT_SECONDS: Final = 30.0
MAX_WAIT_FRACTION: Final = 0.5
"""Fraction of the request timeout to wait for an event before reporting no change."""

MAX_EVENT_BYTES: Final = 256 * 1024
"""Limit on one event, which contains a container's labels."""

_NANOSECONDS: Final = 1_000_000_000


class _Event(msgspec.Struct, frozen=True, rename={"time_nano": "timeNano"}):
    time_nano: int


_event_decoder = msgspec.json.Decoder(_Event)


class EngineEvents:
    """Waits for events of given types and names. A mark is the newest event's time in ns.

    The Engine replays its last 256 events on request, so no connection is kept between calls. It
    loses them when it stops, so after a failure, anything may have changed.
    """

    def __init__(self, api: EngineApi, types: list[str], names: list[str]) -> None:
        self._api = api
        self._filters = filters(type=types, event=names)
        self._wait_seconds = min(api.timeout_seconds * MAX_WAIT_FRACTION, MAX_WAIT_SECONDS)
        self._may_have_missed = False

    async def changes(self, after: str | None) -> str:
        """Wait a limited time for an event after the mark ``after``, and return the newest mark."""
        if after is None or self._may_have_missed:
            current = await self._now()
            self._may_have_missed = False
            return current
        since = int(after) + 1
        query = [("since", f"{since // _NANOSECONDS}.{since % _NANOSECONDS:09d}"), self._filters]
        try:
            async with asyncio.timeout(self._wait_seconds):
                return await self._next(query)
        except TimeoutError:
            return after
        except ProviderError:
            self._may_have_missed = True
            raise

    async def _next(self, query: list[tuple[str, str]]) -> str:
        line = bytearray()
        async with self._api.stream("/events", query) as chunks:
            async for chunk in chunks:
                start, newline, _ = chunk.partition(b"\n")
                line += start
                if newline:
                    return _decode_time(bytes(line))
                if len(line) > MAX_EVENT_BYTES:
                    raise NotDoneError(
                        f"invalid response: an event is longer than {MAX_EVENT_BYTES // 1024} KiB"
                    )
        raise NotDoneError("the Engine closed its event stream")

    async def _now(self) -> str:
        """Return the Engine's time. The Engine may run on a machine with a different clock."""
        response = await self._api.ping()
        try:
            at = parsedate_to_datetime(response.headers.get("Date", ""))
        except ValueError:
            raise NotDoneError("the Engine's response has no valid Date header") from None
        return str(int(at.replace(tzinfo=UTC).timestamp()) * _NANOSECONDS)


def _decode_time(line: bytes) -> str:
    try:
        return str(_event_decoder.decode(line).time_nano)
    except UNDECODABLE as error:
        raise NotDoneError(f"not an Engine event: {error}") from None
