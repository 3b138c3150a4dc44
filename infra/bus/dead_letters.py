"""Dead letters on the stream DEADLETTERS: written by the services, read and handled by people.

A namespace has a share of the stream. The server counts messages by subject, not bytes; so the
subject of a letter has its size, rounded up to a power of two: their sum is never too small.
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

_RECORD_BYTES: Final = 32 * 1024  # more than reason, subject and headers take
_SUBJECT_AND_HEADERS_BYTES: Final = 384  # more than they take, with what the server adds
_SIZE_TOKEN: Final = 3  # of a letter's subject
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""Between two looks at what a namespace has: by no more can several processes exceed its share."""

_encoder = msgspec.json.Encoder()
_record_decoder = msgspec.json.Decoder(DeadLetterRecord)
_handled_decoder = msgspec.json.Decoder(DeadLetterHandled)
_discarded_decoder = msgspec.json.Decoder(list[Discarded])


class StoredLetters(NamedTuple):
    """Dead letters by number, what was done about them, and whether older ones were left out."""

    letters: Mapping[int, DeadLetterRecord]
    handled: Sequence[DeadLetterHandled]
    more: bool


class _Outgoing(NamedTuple):
    """A letter as it is to be stored; ``size``: the bytes that its namespace is charged."""

    letter: DeadLetter
    namespace: str
    size: int
    message: OutgoingMessage


async def store_letters(nc: Client, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
    """Store dead letters, but those that were told already; give those that wait for room.

    What is beyond its namespace's share is counted instead, unless its message is usable. Raises
    the first failure but that of a full stream.
    """
    waiting: list[DeadLetter] = []
    discarded: list[DeadLetter] = []
    outgoing = [_outgoing(nc, each) for each in letters]
    for some in _portions(await _without_told(nc, outgoing)):
        fitting, beyond = await _share_out(nc, some)
        waiting += [each for each in beyond if each.usable]
        discarded += [each for each in beyond if not each.usable]
        results = await store_all(nc, [each.message for each in fitting])
        for each, result in zip(fitting, results, strict=True):
            if isinstance(result, StreamFullError):
                waiting.append(each.letter)
            elif isinstance(result, Exception):
                raise result
    await discard(nc, discarded)
    return waiting


async def discard(nc: Client, letters: Sequence[DeadLetter]) -> None:
    """Count messages that get no letter: one write for all of them, by compare-and-set.

    Once it returns they are counted for good; if it raises, perhaps.
    """
    more = [(namespace_of(each.delivery.subject), each.stage) for each in letters]
    while more:
        stored = await last_from_leader(nc, RATES, DISCARDED)
        counts = count_discarded(_discarded(stored), more, datetime.now(UTC))
        message = OutgoingMessage(
            DISCARDED,
            _encoder.encode(counts),
            expected_filter=DISCARDED,
            expected_last=0 if stored is None else stored.seq,
        )
        try:
            await append(nc, [message])
        except AppendConflictError:
            continue  # another process counted: on top of that
        return


async def read_discarded(nc: Client) -> Sequence[Discarded]:
    """Read how many messages got no letter; newest last."""
    return _discarded(await last_from_leader(nc, RATES, DISCARDED))


async def read_letters(nc: Client, *, most: int | None = None) -> StoredLetters:
    """Read the dead letters, or about the ``most`` newest of them, and what was done about them."""
    state = await stream_state(nc, DEADLETTERS)
    first = state.first_seq
    if most is not None and state.messages > most:
        first = max(first, state.last_seq + 1 - most)
    letters: dict[int, DeadLetterRecord] = {}
    handled: list[DeadLetterHandled] = []
    for message in await read_subject(nc, DEADLETTERS, "deadletter.>", start_seq=first):
        if message.subject == HANDLED:
            handled += _handled(message)
        else:
            letters[message.seq] = _record(message)
    return StoredLetters(letters, handled, first > state.first_seq)


async def store_handled(nc: Client, handled: DeadLetterHandled) -> None:
    """Write down what was done about a letter."""
    await publish(nc, HANDLED, _encoder.encode(handled))


async def _without_told(nc: Client, outgoing: Sequence[_Outgoing]) -> list[_Outgoing]:
    """Leave out what the newest letter about the same, of whatever size, says already."""
    about = {_about(each.letter, each.namespace) for each in outgoing if each.letter.told_once}
    if not about:
        return list(outgoing)
    found = await last_for_subjects(nc, DEADLETTERS, list(about))
    newest = {_of_any_size(told.subject): told for told in sorted(found, key=lambda told: told.seq)}
    told = {(subject, _identity(each.headers)) for subject, each in newest.items()}
    return [
        each
        for each in outgoing
        if (_of_any_size(each.message.subject), _identity(each.message.headers)) not in told
    ]


def _portions(outgoing: Sequence[_Outgoing]) -> Iterator[Sequence[_Outgoing]]:
    start, size = 0, 0
    for end, each in enumerate(outgoing):
        if end > start and size + each.size > _BYTES_AT_ONCE:
            yield outgoing[start:end]
            start, size = end, 0
        size += each.size
    if outgoing:
        yield outgoing[start:]


async def _share_out(
    nc: Client, outgoing: Sequence[_Outgoing]
) -> tuple[Sequence[_Outgoing], Sequence[DeadLetter]]:
    """Return the letters that their namespaces have room for, and those that are beyond it."""
    state = await stream_state(nc, DEADLETTERS)
    most = state.config["max_bytes"]
    share = int(most * DEAD_LETTERS_PER_NAMESPACE)
    if most < 0 or state.bytes + sum(each.size for each in outgoing) <= share:
        return outgoing, []  # no limit, or all namespaces together are within one's share
    used = {name: await _used_bytes(nc, name) for name in {each.namespace for each in outgoing}}
    fitting: list[_Outgoing] = []
    beyond: list[DeadLetter] = []
    for each in outgoing:
        # Where one letter alone is more than a share, only the stream's own limit means anything.
        if each.size <= share < used[each.namespace] + each.size:
            beyond.append(each.letter)
        else:
            used[each.namespace] += each.size
            fitting.append(each)
    return fitting, beyond


async def _used_bytes(nc: Client, namespace: str) -> int:
    """Return what a namespace's letters are charged: at most twice what they take, never less."""
    letters = (await subject_counts(nc, DEADLETTERS, deadletter_filter(namespace))).counts
    return sum(int(subject.split(".")[_SIZE_TOKEN]) * letters[subject] for subject in letters)


def _outgoing(nc: Client, letter: DeadLetter) -> _Outgoing:
    delivery = letter.delivery
    # Base64 takes four bytes for three; the bus may allow shorter messages than we do.
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
    token = _digest(letter.told_once) if letter.told_once else ""
    subject = deadletter(letter.stage, namespace, size, token)
    headers = {MESSAGE_ID: f"{letter.stage}-{namespace}-{content}"}
    return _Outgoing(letter, namespace, size, OutgoingMessage(subject, payload, headers))


def _about(letter: DeadLetter, namespace: str) -> str:
    """Where the letters are that are about the same, of any size."""
    return deadletter(letter.stage, namespace, "*", _digest(letter.told_once))


def _of_any_size(subject: str) -> str:
    tokens = subject.split(".")
    return ".".join([*tokens[:_SIZE_TOKEN], "*", *tokens[_SIZE_TOKEN + 1 :]])


def _identity(headers: Mapping[str, str] | None) -> str:
    return (headers or {}).get(MESSAGE_ID, "")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _discarded(message: StoredMessage | None) -> list[Discarded]:
    try:
        return [] if message is None else _discarded_decoder.decode(message.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []  # not written by us: it is counted anew over it


def _handled(message: StoredMessage) -> list[DeadLetterHandled]:
    try:
        return [_handled_decoder.decode(message.payload)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []  # not written by us: it says nothing about any letter


def _record(message: StoredMessage) -> DeadLetterRecord:
    """Read a letter; one that is not written as it should be is shown as it is."""
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
