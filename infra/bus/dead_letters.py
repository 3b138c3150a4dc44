"""Dead letters on the stream DEADLETTERS: written by the services, read and handled by people."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from nats.aio.client import Client

from events.dead_letter import KEPT_BYTES, DeadLetterRecord, LetterHandled, make_record
from events.manifest import PROVIDER_CONFIG_KIND
from events.subjects import HANDLED, deadletter
from infra.bus.streams import DEADLETTERS
from infra.jetstream.outgoing import MESSAGE_ID, OutgoingMessage
from infra.jetstream.publish import publish, publish_many
from infra.jetstream.reads import (
    StoredMessage,
    last_for_subjects,
    read_subject,
    stream_state,
)
from reconciler.ports import DeadLetter

_RECORD_BYTES: Final = 32 * 1024  # more than reason, subject and headers take

_encoder = msgspec.json.Encoder()
_record_decoder = msgspec.json.Decoder(DeadLetterRecord)
_handled_decoder = msgspec.json.Decoder(LetterHandled)


class StoredLetters(NamedTuple):
    """Dead letters by number, what was done about them, and whether older ones were left out."""

    letters: Mapping[int, DeadLetterRecord]
    handled: Sequence[LetterHandled]
    more: bool


async def store_letters(nc: Client, letters: Sequence[DeadLetter]) -> None:
    """Store dead letters, but those that were told already; raises the first failure."""
    outgoing = [_outgoing(nc, each) for each in letters]
    once = [message.subject for message, each in zip(outgoing, letters, strict=True) if _once(each)]
    told = await last_for_subjects(nc, DEADLETTERS, once) if once else []
    known = {(each.subject, (each.headers or {}).get(MESSAGE_ID)) for each in told}
    new = [
        each for each in outgoing if (each.subject, (each.headers or {})[MESSAGE_ID]) not in known
    ]
    for result in await publish_many(nc, new):
        if isinstance(result, Exception):
            raise result


async def read_letters(nc: Client, *, most: int | None = None) -> StoredLetters:
    """Read the dead letters, or about the ``most`` newest of them, and what was done about them."""
    state = await stream_state(nc, DEADLETTERS)
    first = state.first_seq
    if most is not None and state.messages > most:
        first = max(first, state.last_seq + 1 - most)
    letters: dict[int, DeadLetterRecord] = {}
    handled: list[LetterHandled] = []
    for message in await read_subject(nc, DEADLETTERS, "deadletter.>", start_seq=first):
        if message.subject == HANDLED:
            handled += _handled(message)
        else:
            letters[message.seq] = _record(message)
    return StoredLetters(letters, handled, first > state.first_seq)


async def store_handled(nc: Client, handled: LetterHandled) -> None:
    """Write down what was done about a letter."""
    await publish(nc, HANDLED, _encoder.encode(handled))


def _once(letter: DeadLetter) -> bool:
    return bool(letter.told_once)


def _outgoing(nc: Client, letter: DeadLetter) -> OutgoingMessage:
    delivery = letter.delivery
    # Base64 takes four bytes for three; the bus may allow shorter messages than we do.
    room = max(0, min(KEPT_BYTES, (nc.max_payload - _RECORD_BYTES) // 4 * 3))
    if may_hold_a_secret(delivery.subject):
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
    content = _digest(letter.content) if letter.content else str(delivery.position)
    identity = f"{letter.stage}-{content}"
    token = _digest(letter.told_once)
    subject = deadletter(letter.stage, token if letter.told_once else "")
    return OutgoingMessage(subject, _encoder.encode(record), {MESSAGE_ID: identity})


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def may_hold_a_secret(subject: str) -> bool:
    """Whether a refused message was to be a ``ProviderConfig``: that is where people put tokens.

    Of such a one only the reason is kept.
    """
    tokens = subject.split(".")
    return tokens[0] in ("in", "rec") and PROVIDER_CONFIG_KIND in tokens


def _handled(message: StoredMessage) -> list[LetterHandled]:
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
            reason=f"not written as a dead letter: {error}",
            subject=message.subject,
            position=message.seq,
            message_id="",
            at=message.time,
            payload=message.payload,
        )
