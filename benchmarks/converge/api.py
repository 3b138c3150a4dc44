"""The shapes API as the benchmark uses it: its counts, its journal, and deletions by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import aiohttp
import msgspec

from tests.faulty_api.app import Statistics
from tests.faulty_api.journal import JournalEntry

_ENTRIES_AT_ONCE = 1_000
_DELETIONS_AT_ONCE = 16
_WRITES = ("POST", "PUT", "DELETE")


class _Journal(msgspec.Struct):
    entries: list[JournalEntry]


class Api:
    """A client of the API's controls; ``requests`` to them are not counted by the API."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._read_up_to = 0

    async def statistics(self) -> Statistics:
        """Give what was counted since the last reset."""
        async with self._session.get("/_stats") as answer:
            return msgspec.json.decode(await answer.read(), type=Statistics)

    async def forget_counts(self) -> None:
        """Have it count from zero."""
        async with self._session.delete("/_stats") as answer:
            answer.raise_for_status()

    async def new_effects(self) -> list[JournalEntry]:
        """Give the effects that really happened since the last call."""
        entries: list[JournalEntry] = []
        while True:
            query = {"after": str(self._read_up_to), "limit": str(_ENTRIES_AT_ONCE)}
            async with self._session.get("/_journal", params=query) as answer:
                page = msgspec.json.decode(await answer.read(), type=_Journal).entries
            if not page:
                return entries
            entries += page
            self._read_up_to = page[-1].sequence

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects directly in the API, as an out-of-band change."""
        free = asyncio.Semaphore(_DELETIONS_AT_ONCE)

        async def delete(name: str) -> None:
            async with free, self._session.delete(f"/shapes/{name}") as answer:
                answer.raise_for_status()

        await asyncio.gather(*(delete(name) for name in names))


def writes(statistics: Statistics) -> int:
    """Count the requests that could change something, whatever was answered."""
    return sum(sum(statistics.requests.get(method, {}).values()) for method in _WRITES)


def reads(statistics: Statistics) -> int:
    """Count the requests that only read: pages of listings, and single resources."""
    return sum(statistics.requests.get("GET", {}).values())


def moment(entry: JournalEntry) -> float:
    """Give when an effect happened, in seconds since 1970."""
    return datetime.fromisoformat(entry.time).timestamp()


def last_moment(entries: Sequence[JournalEntry]) -> float:
    """Give when the last of some effects happened."""
    return max(moment(entry) for entry in entries)
