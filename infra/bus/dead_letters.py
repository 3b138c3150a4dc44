"""Dead letters in the DEADLETTERS stream: stored by roles, read and handled by operators.

Each namespace has a share of the stream. The server counts messages by subject, but not bytes.
A letter's subject therefore contains its size, rounded up to a power of two, so that the sum
of a namespace's sizes is never too small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from nats.aio.client import Client

from events.dead_letter import (
    KEPT_BYTES,
    DeadLetterHandled,
    DeadLetterRecord,
    Discarded,
    count_discarded,
    make_record,
)
from events.provider_config import may_contain_secret
from events.subjects import DISCARDED, HANDLED, deadletter, deadletter_filter, namespace_of
from infra.bus.streams import DEAD_LETTERS_PER_NAMESPACE, DEADLETTERS, RATES
from infra.jetstream.append import append
from infra.jetstream.errors import AppendConflictError, StreamFullError
from infra.jetstream.outgoing import MESSAGE_ID, OutgoingMessage
from infra.jetstream.publish import publish, store_all
from infra.jetstream.reads import (
    StoredMessage,
    last_for_subjects,
    last_from_leader,
    read_subject,
    stream_state,
    subject_counts,
)
from reconciler.ports import DeadLetter

_RECORD_BYTES: Final = 32 * 1024  # upper bound for reason, subject and headers
_SUBJECT_AND_HEADERS_BYTES: Final = 384  # upper bound, including the server's headers
_SIZE_TOKEN: Final = 3  # index in a letter's subject
_CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Bytes stored between two checks of how much a namespace uses.

Each of several concurrent processes can exceed the share by at most this amount.
"""

_encoder = msgspec.json.Encoder()
_record_decoder = msgspec.json.Decoder(DeadLetterRecord)
_handled_decoder = msgspec.json.Decoder(DeadLetterHandled)
_discarded_decoder = msgspec.json.Decoder(list[Discarded])


class StoredLetters(NamedTuple):
    """Dead letters by number, how they were handled, and whether older letters were omitted."""

    letters: Mapping[int, DeadLetterRecord]
    handled: Sequence[DeadLetterHandled]
    more: bool


class _Outgoing(NamedTuple):
    """A letter to store. ``size``: the bytes counted against its namespace's share."""

    letter: DeadLetter
    namespace: str
    size: int
    message: OutgoingMessage


async def store_letters(nc: Client, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
    """Store dead letters not reported yet, and return those still waiting for space.

    A letter beyond its namespace's share is only counted, unless its message is usable. Raises the
    first failure, unless the stream is full.
    """
    waiting: list[DeadLetter] = []
    discarded: list[DeadLetter] = []
    outgoing = [_outgoing(nc, each) for each in letters]
    for chunk in _chunks(await _filter_unreported(nc, outgoing)):
        fitting, over_share = await _split_by_share(nc, chunk)
        waiting += [each for each in over_share if each.usable]
        discarded += [each for each in over_share if not each.usable]
        results = await store_all(nc, [each.message for each in fitting])
        for entry, result in zip(fitting, results, strict=True):
            if isinstance(result, StreamFullError):
                waiting.append(entry.letter)
            elif isinstance(result, Exception):
                raise result
    await discard(nc, discarded)
    return waiting


async def discard(nc: Client, letters: Sequence[DeadLetter]) -> None:
    """Count messages for which no dead letter is stored, with one compare-and-set write.

    If it raises an error, the messages may or may not have been counted.
    """
    pairs = [(namespace_of(each.delivery.subject), each.stage) for each in letters]
    while pairs:
        stored = await last_from_leader(nc, RATES, DISCARDED)
        counts = count_discarded(_decode_discarded(stored), pairs, datetime.now(UTC))
        message = OutgoingMessage(
            DISCARDED,
            _encoder.encode(counts),
            expected_filter=DISCARDED,
            expected_last=0 if stored is None else stored.seq,
        )
        try:
            await append(nc, [message])
        except AppendConflictError:
            continue  # another process wrote first: add to its counts
        return


async def read_discarded(nc: Client) -> Sequence[Discarded]:
    """Read the counts of messages for which no dead letter was stored, newest last."""
    return _decode_discarded(await last_from_leader(nc, RATES, DISCARDED))


async def read_letters(nc: Client, *, limit: int | None = None) -> StoredLetters:
    """Read the dead letters, or about the ``limit`` newest ones, and how they were handled."""
    state = await stream_state(nc, DEADLETTERS)
    first = state.first_seq
    if limit is not None and state.messages > limit:
        first = max(first, state.last_seq + 1 - limit)
    letters: dict[int, DeadLetterRecord] = {}
    handled: list[DeadLetterHandled] = []
    for message in await read_subject(nc, DEADLETTERS, "deadletter.>", start_seq=first):
        if message.subject == HANDLED:
            handled += _decode_handled(message)
        else:
            letters[message.seq] = _decode_record(message)
    return StoredLetters(letters, handled, first > state.first_seq)


async def store_handled(nc: Client, handled: DeadLetterHandled) -> None:
    """Record the handling of a dead letter."""
    await publish(nc, HANDLED, _encoder.encode(handled))


async def _filter_unreported(nc: Client, outgoing: Sequence[_Outgoing]) -> list[_Outgoing]:
    """Return the letters that do not repeat the newest letter about the same problem."""
    subjects = {
        _any_size_subject(each.letter, each.namespace) for each in outgoing if each.letter.dedup_key
    }
    if not subjects:
        return list(outgoing)
    letters = await last_for_subjects(nc, DEADLETTERS, list(subjects))
    newest = {
        _without_size(letter.subject): letter
        for letter in sorted(letters, key=lambda letter: letter.seq)
    }
    known = {(subject, _identity(each.headers)) for subject, each in newest.items()}
    return [
        each
        for each in outgoing
        if (_without_size(each.message.subject), _identity(each.message.headers)) not in known
    ]


def _chunks(outgoing: Sequence[_Outgoing]) -> Iterator[Sequence[_Outgoing]]:
    start, size = 0, 0
    for end, entry in enumerate(outgoing):
        if end > start and size + entry.size > _CHUNK_BYTES:
            yield outgoing[start:end]
            start, size = end, 0
        size += entry.size
    if outgoing:
        yield outgoing[start:]


async def _split_by_share(
    nc: Client, outgoing: Sequence[_Outgoing]
) -> tuple[Sequence[_Outgoing], Sequence[DeadLetter]]:
    """Return the letters within their namespaces' shares, and those beyond them."""
    state = await stream_state(nc, DEADLETTERS)
    limit = state.config["max_bytes"]
    share = int(limit * DEAD_LETTERS_PER_NAMESPACE)
    if limit < 0 or state.bytes + sum(each.size for each in outgoing) <= share:
        return outgoing, []  # there is no limit, or all namespaces together are within one share
    used = {name: await _used_bytes(nc, name) for name in {each.namespace for each in outgoing}}
    fitting: list[_Outgoing] = []
    over_share: list[DeadLetter] = []
    for entry in outgoing:
        # For a letter that alone exceeds a share, only the stream's limit applies.
        if entry.size <= share < used[entry.namespace] + entry.size:
            over_share.append(entry.letter)
        else:
            used[entry.namespace] += entry.size
            fitting.append(entry)
    return fitting, over_share


async def _used_bytes(nc: Client, namespace: str) -> int:
    """Return the bytes counted for a namespace's letters: one to two times their actual size."""
    letters = (await subject_counts(nc, DEADLETTERS, deadletter_filter(namespace))).counts
    return sum(int(subject.split(".")[_SIZE_TOKEN]) * letters[subject] for subject in letters)


def _outgoing(nc: Client, letter: DeadLetter) -> _Outgoing:
    delivery = letter.delivery
    # Base64 uses four bytes for every three. The server's max_payload may be below KEPT_BYTES.
    room = max(0, min(KEPT_BYTES, (nc.max_payload - _RECORD_BYTES) // 4 * 3))
    if may_contain_secret(delivery.subject):
        room = 0
    record = make_record(
        stage=letter.stage,
        reason=letter.reason,
        subject=delivery.subject,
        position=delivery.position,
        message_id=delivery.message_id,
        at=datetime.now(UTC),
        payload=delivery.payload,
        room=room,
    )
    payload = _encoder.encode(record)
    namespace = namespace_of(delivery.subject)
    size = 1 << (len(payload) + _SUBJECT_AND_HEADERS_BYTES - 1).bit_length()
    content = _digest(letter.content) if letter.content else str(delivery.position)
    token = _digest(letter.dedup_key) if letter.dedup_key else ""
    subject = deadletter(letter.stage, namespace, size, token)
    headers = {MESSAGE_ID: f"{letter.stage}-{namespace}-{content}"}
    return _Outgoing(letter, namespace, size, OutgoingMessage(subject, payload, headers))


def _any_size_subject(letter: DeadLetter, namespace: str) -> str:
    """Return the subject that matches all letters about the same problem, of any size."""
    return deadletter(letter.stage, namespace, "*", _digest(letter.dedup_key))


def _without_size(subject: str) -> str:
    tokens = subject.split(".")
    return ".".join([*tokens[:_SIZE_TOKEN], "*", *tokens[_SIZE_TOKEN + 1 :]])


def _identity(headers: Mapping[str, str] | None) -> str:
    return (headers or {}).get(MESSAGE_ID, "")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _decode_discarded(message: StoredMessage | None) -> list[Discarded]:
    try:
        return [] if message is None else _discarded_decoder.decode(message.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []  # written by another client, so replace it


def _decode_handled(message: StoredMessage) -> list[DeadLetterHandled]:
    try:
        return [_handled_decoder.decode(message.payload)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []  # written by another client, so ignore it


def _decode_record(message: StoredMessage) -> DeadLetterRecord:
    """Decode a letter. If it is invalid, return an "unreadable" record with its content."""
    try:
        return _record_decoder.decode(message.payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return make_record(
            stage="unreadable",
            reason=f"not a valid dead letter: {error}",
            subject=message.subject,
            position=message.seq,
            message_id="",
            at=message.time,
            payload=message.payload,
        )
