"""Reads a history from a real bus and the example API, as any other service can."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

import httpx
import msgspec
from nats.aio.client import Client

from events.dead_letter import DeadLetterRecord
from events.envelope import InvalidMessageError, decode_intake, decode_log
from events.external import ExternalObject
from events.log import Operation
from events.subjects import parse_stored_intake
from infra.bus.streams import DEADLETTERS, INTAKE, LOG, REJECTIONS
from infra.jetstream.follow import follow
from infra.jetstream.reads import StoredMessage, stream_state
from shapes_api.shapes import Shape
from tests.faulty_api.journal import JournalEntry
from tests.faulty_api.options import ID_MARK
from tests.judge.history import AcknowledgedMessage, Effect, History, Message, RecordedEvent
from tests.judge.judging import Finding, findings

_PAGE = 1_000
_OPERATIONS: Mapping[str, Operation] = {"POST": "Create", "PUT": "Update", "DELETE": "Delete"}


class _Journal(msgspec.Struct):
    entries: list[JournalEntry]


class _Page(msgspec.Struct, rename={"next": "continue"}):
    items: list[Shape]
    next: str | None = None


async def check(
    nc: Client,
    api_url: str,
    *,
    acknowledged: Iterable[AcknowledgedMessage] = (),
    by_hand: Collection[str] = (),
    after_effect: int = 0,
    secrets: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Read the whole history at rest, and return the judge's findings.

    ``acknowledged``: more declarations that must not be lost, even if the intake deleted them.
    """
    history = await read_history(nc, api_url, after_effect=after_effect)
    return findings(
        dataclasses.replace(
            history, acknowledged=acknowledged, by_hand=by_hand, secrets=secrets or {}
        )
    )


async def read_history(nc: Client, api_url: str, *, after_effect: int = 0) -> History:
    """Read all streams, then the API.

    ``after_effect``: the start of the API's journal for this bus, from ``last_effect``.
    """
    while True:
        history = await read_bus(nc)
        async with httpx.AsyncClient(base_url=api_url, timeout=30) as http:
            effects = effects_of(await _journal(http, after_effect))
            objects = [_object(each) for each in await _listing(http)]
        if await _is_whole(nc, history):
            return dataclasses.replace(history, effects=effects, objects=objects)


async def read_bus(nc: Client) -> History:
    """Read all streams; the history has no data of an API."""
    while True:
        history = await _read_bus_once(nc)
        if await _is_whole(nc, history):
            return history


async def _is_whole(nc: Client, history: History) -> bool:
    """Return whether no event was appended while the other streams were read."""
    read = history.log[-1].position if history.log else 0
    return (await stream_state(nc, LOG)).last_seq == read


async def _read_bus_once(nc: Client) -> History:
    log = [_read_event(message) for message in await _read_all(nc, LOG)]
    messages = [_message(message) for message in await _read_all(nc, INTAKE)]
    refused = [decode_log(message.payload) for message in await _read_all(nc, REJECTIONS)]
    dead_letters = [
        msgspec.json.decode(message.payload, type=DeadLetterRecord)
        for message in await _read_all(nc, DEADLETTERS)
    ]
    return History(
        log=log,
        messages={each.position: each for each in messages},
        refused={each.causationposition for each in refused},
        dead_letters={each.position for each in dead_letters},
        effects=None,
    )


def effects_of(journal: Sequence[JournalEntry]) -> list[Effect]:
    """Return a journal's entries as effects."""
    return [
        Effect(
            datetime.fromisoformat(each.time).timestamp(),
            _OPERATIONS[each.method],
            *_identity(each.name, each.uid),
            each.idempotency_key,
        )
        for each in journal
    ]


def _object(shape: Shape) -> ExternalObject:
    fields = {"type": shape.type, "color": shape.color}
    name, uid = _identity(shape.name, shape.uid)
    return ExternalObject(name, fields, uid, str(shape.version), shape.labels)


async def _read_all(nc: Client, stream: str) -> list[StoredMessage]:
    existing_messages: list[StoredMessage] = []
    async with follow(nc, stream) as follower:
        async for messages in follower.replay():
            existing_messages += messages
    return existing_messages


def _read_event(message: StoredMessage) -> RecordedEvent:
    return RecordedEvent(message.seq, message.time_ns / 1e9, decode_log(message.payload))


def _message(message: StoredMessage) -> Message:
    name = (message.headers or {}).get("Nats-Msg-Id") or f"intake-{message.seq}"
    return read_message(message.seq, message.subject, message.payload, name)


def read_message(
    position: int,
    subject: str,
    payload: bytes,
    name: str,
    *,
    stored_at: float = 0.0,
    reply_to: str | None = None,
) -> Message:
    """Return a message from the intake; without key and data if it is unreadable."""
    try:
        what, key = parse_stored_intake(subject)
        read = decode_intake(payload, expected=what, fallback_id=name)
    except (InvalidMessageError, ValueError):
        return Message(position, None, name, "", None, stored_at, reply_to)
    return Message(position, key, read.id, read.source, read.data, stored_at, reply_to)


async def last_effect(api_url: str) -> int:
    """Return the sequence of the newest effect in an API that was used with another bus before."""
    async with httpx.AsyncClient(base_url=api_url, timeout=30) as http:
        return max((each.sequence for each in await _journal(http, 0)), default=0)


async def _journal(http: httpx.AsyncClient, after: int) -> list[JournalEntry]:
    existing_entries: list[JournalEntry] = []
    while True:
        after = existing_entries[-1].sequence if existing_entries else after
        response = await http.get("/_journal", params={"after": after, "limit": _PAGE})
        entries = msgspec.json.decode(response.raise_for_status().content, type=_Journal).entries
        if not entries:
            return existing_entries
        existing_entries += entries


def _identity(name: str, uid: str) -> tuple[str, str]:
    """Return an object's name and id; the API may have appended the id to the name."""
    plain, _, number = name.partition(ID_MARK)
    return plain, number or uid


async def _listing(http: httpx.AsyncClient) -> list[Shape]:
    shapes: list[Shape] = []
    token: str | None = ""
    while token is not None:
        query = {"limit": str(_PAGE)} | ({"continue": token} if token else {})
        response = await http.get("/shapes", params=query)
        page = msgspec.json.decode(response.raise_for_status().content, type=_Page)
        shapes += page.items
        token = page.next
    return shapes
