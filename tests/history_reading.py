"""Reads a history for ``tests.history_checker``: the bus's streams, and the API's own records.

Everything is read as any other service could read it. Nothing is concluded here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

import httpx
import msgspec
from msgspec.structs import replace
from nats.aio.client import Client

from events.dead_letter import DeadLetterRecord
from events.envelope import InvalidMessageError, decode_intake, decode_log
from events.subjects import parse_stored_intake
from infra.bus.streams import DEADLETTERS, INTAKE, LOG, REJECTIONS
from infra.example_api.shapes import Shape
from infra.jetstream.follow import follow
from infra.jetstream.reads import StoredMessage, stream_state
from tests.faulty_api.journal import JournalEntry
from tests.faulty_api.options import ID_MARK
from tests.history_checker import Acknowledged, Finding, History, Recorded, Told, findings

COPY_SECONDS = 15.0
"""So long the server may take to copy the last outcome from the log to the outcome stream."""

_LOOK_SECONDS = 0.05
_PAGE = 1_000


class _Journal(msgspec.Struct):
    entries: list[JournalEntry]


class _Page(msgspec.Struct, rename={"next": "continue"}):
    items: list[Shape]
    next: str | None = None


async def check(
    nc: Client,
    api_url: str,
    *,
    acknowledged: Iterable[Acknowledged] = (),
    by_hand: Collection[str] = (),
    after_effect: int = 0,
    secrets: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Read everything and judge it; see ``tests.history_checker.findings``."""
    history = await read_history(nc, api_url, after_effect=after_effect)
    history = dataclasses.replace(history, secrets=secrets or {})
    return findings(history, acknowledged=acknowledged, by_hand=by_hand)


async def read_history(nc: Client, api_url: str, *, after_effect: int = 0) -> History:
    """Read all streams, then the API; call it when everything has come to rest.

    ``after_effect``: where the API's journal began for this bus, from ``last_effect``.
    """
    while True:
        history = await _read_once(nc, api_url, after_effect)
        read = history.log[-1].position if history.log else 0
        if (await stream_state(nc, LOG)).last_seq == read:
            return history  # else what was read later may tell of what was not read


async def _read_once(nc: Client, api_url: str, after_effect: int) -> History:
    bus = await read_bus(nc)
    async with httpx.AsyncClient(base_url=api_url, timeout=30) as http:
        journal = [
            replace(each, name=_named(each.name)) for each in await _journal(http, after_effect)
        ]
        listing = [replace(each, name=_named(each.name)) for each in await _listing(http)]
    return dataclasses.replace(bus, journal=journal, listing=listing)


async def read_bus(nc: Client) -> History:
    """Read all streams; what APIs have is for the caller to add."""
    while True:
        history = await _read_bus_once(nc)
        read = history.log[-1].position if history.log else 0
        if (await stream_state(nc, LOG)).last_seq == read:
            return history  # else what was read later may tell of what was not read


async def _read_bus_once(nc: Client) -> History:
    log = [_recorded(message) for message in await _all(nc, LOG)]
    return History(
        log=log,
        intake=[_told(message) for message in await _all(nc, INTAKE)],
        rejections=[decode_log(message.payload) for message in await _all(nc, REJECTIONS)],
        dead_letters=[
            msgspec.json.decode(message.payload, type=DeadLetterRecord)
            for message in await _all(nc, DEADLETTERS)
        ],
        journal=[],
        listing=[],
    )


async def _all(nc: Client, stream: str) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    async with follow(nc, stream) as follower:
        async for messages in follower.replay():
            found += messages
    return found


def _recorded(message: StoredMessage) -> Recorded:
    return Recorded(message.seq, message.time_ns / 1e9, decode_log(message.payload))


def _told(message: StoredMessage) -> Told:
    message_id = (message.headers or {}).get("Nats-Msg-Id") or f"intake-{message.seq}"
    try:
        what, key = parse_stored_intake(message.subject)
        read = decode_intake(message.payload, expected=what, fallback_id=message_id)
    except (InvalidMessageError, ValueError):
        return Told(message.seq, None, message_id, "", None)
    return Told(message.seq, key, read.id, read.source, read.data)


async def last_effect(api_url: str) -> int:
    """Give the sequence of the API's newest effect: for an API that had another bus before."""
    async with httpx.AsyncClient(base_url=api_url, timeout=30) as http:
        return max((each.sequence for each in await _journal(http, 0)), default=0)


async def _journal(http: httpx.AsyncClient, after: int) -> list[JournalEntry]:
    found: list[JournalEntry] = []
    while True:
        after = found[-1].sequence if found else after
        answer = await http.get("/_journal", params={"after": after, "limit": _PAGE})
        entries = msgspec.json.decode(answer.raise_for_status().content, type=_Journal).entries
        if not entries:
            return found
        found += entries


def _named(name: str) -> str:
    """Return what an object is called: the API may have put an id behind it."""
    return name.partition(ID_MARK)[0]


async def _listing(http: httpx.AsyncClient) -> list[Shape]:
    found: list[Shape] = []
    token: str | None = ""
    while token is not None:
        query = {"limit": str(_PAGE)} | ({"continue": token} if token else {})
        answer = await http.get("/shapes", params=query)
        page = msgspec.json.decode(answer.raise_for_status().content, type=_Page)
        found += page.items
        token = page.next
    return found
