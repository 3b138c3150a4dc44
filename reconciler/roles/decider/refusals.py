"""Decode messages, and report those that cannot be used to their senders."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from events.dead_letter import sender_in
from events.envelope import MAX_MESSAGE_BYTES, InvalidMessageError, decode_intake
from events.excerpt import shorten
from events.intake import Reply
from events.names import ResourceKey
from events.subjects import CLIENT_MESSAGES, Intake, actor, namespace_of, parse_stored_intake
from reconciler.ports import DeadLetter, DecisionSink, IntakeDelivery, Rejection
from reconciler.resource.turn import Command

_REASONS = {"intake": "Invalid", "quota": "QuotaExceeded"}
_REPEATED: tuple[Intake, ...] = ("observed", "timer", "reference")


def understand(delivery: IntakeDelivery) -> tuple[ResourceKey, Command]:
    """Decode a message.

    Raises:
        ValueError: the message is invalid; the text has the reason.
    """
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


def build_intake_letter(delivery: IntakeDelivery, reason: str) -> DeadLetter:
    """Build the dead letter of a message that could not be decoded; see ``undecidable``."""
    about = _repeated_identity(delivery)
    return DeadLetter("intake", reason, delivery, about, reason if about else "")


def build_decision_letter(
    delivery: IntakeDelivery, reason: str, *, usable: bool = False
) -> DeadLetter:
    """Build the dead letter of a message that could not be decided.

    Messages that roles repeat, such as a listing's observations, need one letter per resource, and
    no letter is required. ``usable``: the message could be decided later.
    """
    about = _repeated_identity(delivery)
    content = reason if about else ""
    return DeadLetter("decision", reason, delivery, about, content, usable and not about)


def _repeated_identity(delivery: IntakeDelivery) -> str:
    """Return the identity of a message that roles repeat, or "" for one that is sent once."""
    try:
        what, key = parse_stored_intake(delivery.subject)
    except ValueError:
        return ""
    return f"{what}/{key}" if what in _REPEATED else ""


def build_quota_letter(delivery: IntakeDelivery) -> DeadLetter:
    """Build the record of a message beyond its namespace's quota."""
    namespace = namespace_of(delivery.subject)
    reason = (
        f"namespace {namespace!r} has too many messages waiting for the decider; retry later, and "
        "wait for the responses before you send more"
    )
    return DeadLetter("quota", reason, delivery)


async def publish_rejections(
    sink: DecisionSink, letters: Sequence[DeadLetter], now: datetime
) -> None:
    """Reply to the senders of rejected messages, and publish the rejections as outcomes."""
    rejections = [each for letter in letters for each in _rejection(letter, now)]
    if rejections:
        await sink.reject(rejections)
    await reply_to_rejected(sink, letters)


async def reply_to_rejected(sink: DecisionSink, letters: Sequence[DeadLetter]) -> None:
    """Reply to the senders that expect a reply."""
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
    why = shorten(letter.reason)
    return Reply(False, reason, 0, delivery.position, why, resource, delivery.message_id)


def _rejection(letter: DeadLetter, now: datetime) -> list[Rejection]:
    """Return the rejected outcome of a client's message, if its resource is known."""
    try:
        what, key = parse_stored_intake(letter.delivery.subject)
    except ValueError:
        return []
    if what not in CLIENT_MESSAGES:
        return []
    return [Rejection(key, _answer(letter), sender_in(letter.delivery.payload), now)]
