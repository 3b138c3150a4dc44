"""What cannot be used: read as far as it goes, and told to whoever can be told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from events.dead_letter import sender_in
from events.envelope import MAX_MESSAGE_BYTES, InvalidMessageError, decode_intake
from events.excerpt import shortened
from events.intake import Reply
from events.names import ResourceKey
from events.subjects import BY_CLIENTS, Intake, actor, namespace_of, parse_stored_intake
from reconciler.ports import DeadLetter, DecisionSink, IntakeDelivery, Rejection
from reconciler.resource.turn import Command

_REASONS = {"intake": "Invalid", "quota": "QuotaExceeded"}
_COME_AGAIN: tuple[Intake, ...] = ("observed", "timer", "reference")


def understand(delivery: IntakeDelivery) -> tuple[ResourceKey, Command]:
    """Decode a message; raises ``ValueError`` that says what is wrong with it."""
    if len(delivery.payload) > MAX_MESSAGE_BYTES:
        raise InvalidMessageError(
            f"the message has {len(delivery.payload)} bytes, more than the limit of "
            f"{MAX_MESSAGE_BYTES}; make it smaller"
        )
    what, key = parse_stored_intake(delivery.subject)
    message = decode_intake(
        delivery.payload, expected=what, fallback_id=delivery.message_id, about=str(key)
    )
    command = Command(
        delivery.position,
        message.id,
        actor(delivery.user, message.source),
        message.data,
        stored_at=delivery.stored_at,
    )
    return key, command


def unreadable(delivery: IntakeDelivery, reason: str) -> DeadLetter:
    """Make the letter for a message that could not be read; as ``undecidable``."""
    about = _comes_again(delivery)
    return DeadLetter("intake", reason, delivery, about, reason if about else "")


def undecidable(delivery: IntakeDelivery, reason: str, *, usable: bool = False) -> DeadLetter:
    """Make the letter for a message that could not be decided; ``usable``: another time it could.

    Of what comes again by itself, as a listing's observations do, one letter a resource is enough,
    and it is not lost if there is none.
    """
    about = _comes_again(delivery)
    content = reason if about else ""
    return DeadLetter("decision", reason, delivery, about, content, usable and not about)


def _comes_again(delivery: IntakeDelivery) -> str:
    """Name what would come again and again; nothing for what is sent once."""
    try:
        what, key = parse_stored_intake(delivery.subject)
    except ValueError:
        return ""
    return f"{what}/{key}" if what in _COME_AGAIN else ""


def over_quota(delivery: IntakeDelivery) -> DeadLetter:
    """Make the record of a message that is refused because too many of its namespace wait."""
    namespace = namespace_of(delivery.subject)
    reason = (
        f"namespace {namespace!r} has too many messages waiting for the decider; retry later, and "
        "wait for the responses before you send more"
    )
    return DeadLetter("quota", reason, delivery)


async def tell_refused(sink: DecisionSink, letters: Sequence[DeadLetter], now: datetime) -> None:
    """Reply to the publishers, and publish each rejection among the outcomes."""
    rejections = [each for letter in letters for each in _rejection(letter, now)]
    if rejections:
        await sink.reject(rejections)
    await answer_refused(sink, letters)


async def answer_refused(sink: DecisionSink, letters: Sequence[DeadLetter]) -> None:
    """Reply to the publishers that requested a reply."""
    asked = [letter for letter in letters if letter.delivery.reply_to is not None]
    if asked:
        await sink.answer([(str(each.delivery.reply_to), _answer(each)) for each in asked])


def _answer(letter: DeadLetter) -> Reply:
    delivery = letter.delivery
    reason = _REASONS.get(letter.stage, "Undecidable")
    try:
        resource = str(parse_stored_intake(delivery.subject)[1])
    except ValueError:
        resource = ""
    why = shortened(letter.reason)
    return Reply(False, reason, 0, delivery.position, why, resource, delivery.message_id)


def _rejection(letter: DeadLetter, now: datetime) -> list[Rejection]:
    """Return the rejected outcome of what somebody asked for, if its resource is known."""
    try:
        what, key = parse_stored_intake(letter.delivery.subject)
    except ValueError:
        return []
    if what not in BY_CLIENTS:
        return []
    return [Rejection(key, _answer(letter), sender_in(letter.delivery.payload), now)]
