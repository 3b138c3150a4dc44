"""The shapes API as the benchmark uses it: counts, journal, and out-of-band deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import aiohttp
import msgspec

from tests.faulty_api.app import Statistics
from tests.faulty_api.journal import JournalEntry

_ENTRIES_PER_PAGE = 1_000
_CONCURRENT_DELETIONS = 16
_WRITES = ("POST", "PUT", "DELETE")


class _Journal(msgspec.Struct):
    entries: list[JournalEntry]


class Api:
    """A client for the API's control routes, whose requests the API does not count."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._read_up_to = 0

    async def statistics(self) -> Statistics:
        """Return the counts since the last reset."""
        async with self._session.get("/_stats") as response:
            return msgspec.json.decode(await response.read(), type=Statistics)

    async def reset_counts(self) -> None:
        """Reset the counts to zero."""
        async with self._session.delete("/_stats") as response:
            response.raise_for_status()

    async def new_effects(self) -> list[JournalEntry]:
        """Return the effects since the last call."""
        entries: list[JournalEntry] = []
        while True:
            query = {"after": str(self._read_up_to), "limit": str(_ENTRIES_PER_PAGE)}
            async with self._session.get("/_journal", params=query) as response:
                page = msgspec.json.decode(await response.read(), type=_Journal).entries
            if not page:
                return entries
            entries += page
            self._read_up_to = page[-1].sequence

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects directly in the API, as an out-of-band change."""
        free = asyncio.Semaphore(_CONCURRENT_DELETIONS)

        async def delete(name: str) -> None:
            async with free, self._session.delete(f"/shapes/{name}") as response:
                response.raise_for_status()

        await asyncio.gather(*(delete(name) for name in names))


def count_writes(statistics: Statistics) -> int:
    """Count the requests that could change an object, regardless of the response."""
    return sum(sum(statistics.requests.get(method, {}).values()) for method in _WRITES)


def count_reads(statistics: Statistics) -> int:
    """Count the read requests: listing pages and individual resources."""
    return sum(statistics.requests.get("GET", {}).values())


def effect_time(entry: JournalEntry) -> float:
    """Return the time of an effect, in seconds since 1970."""
    return datetime.fromisoformat(entry.time).timestamp()


def last_effect_time(entries: Sequence[JournalEntry]) -> float:
    """Return the time of the last effect, in seconds since 1970."""
    return max(effect_time(entry) for entry in entries)
