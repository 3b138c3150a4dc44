"""Decode messages, and report unusable ones to their senders."""

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


def decode_command(delivery: IntakeDelivery) -> tuple[ResourceKey, Command]:
    """Decode a message.

    Raises:
        ValueError: the message is invalid; the error states why.
    """
    if len(delivery.payload) > MAX_MESSAGE_BYTES:
        raise InvalidMessageError(
            f"the message has {len(delivery.payload)} bytes, more than the limit of "
            f"{MAX_MESSAGE_BYTES}; make it smaller"
        )
    intake, key = parse_stored_intake(delivery.subject)
    message = decode_intake(
        delivery.payload, expected=intake, fallback_id=delivery.message_id, resource=key
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
    """Build the dead letter for a message that could not be decoded."""
    identity = _repeated_identity(delivery)
    return DeadLetter("intake", reason, delivery, identity, reason if identity else "")


def build_decision_letter(
    delivery: IntakeDelivery, reason: str, *, usable: bool = False
) -> DeadLetter:
    """Build the dead letter for a message that the decider could not process.

    Messages that roles repeat, such as a listing's observations, share one letter per resource, and
    may be dropped without one. ``usable``: the message could be processed later.
    """
    identity = _repeated_identity(delivery)
    content = reason if identity else ""
    return DeadLetter("decision", reason, delivery, identity, content, usable and not identity)


def _repeated_identity(delivery: IntakeDelivery) -> str:
    """Return the identity of a message that roles repeat; "" for other messages."""
    try:
        intake, key = parse_stored_intake(delivery.subject)
    except ValueError:
        return ""
    return f"{intake}/{key}" if intake in _REPEATED else ""


def build_quota_letter(delivery: IntakeDelivery) -> DeadLetter:
    """Build the dead letter for a message beyond its namespace's quota."""
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
    rejections = [each for letter in letters for each in _build_rejections(letter, now)]
    if rejections:
        await sink.reject(rejections)
    await reply_to_rejected(sink, letters)


async def reply_to_rejected(sink: DecisionSink, letters: Sequence[DeadLetter]) -> None:
    """Reply to the senders that expect a reply."""
    awaited = [letter for letter in letters if letter.delivery.reply_to is not None]
    if awaited:
        await sink.send_replies(
            [(str(each.delivery.reply_to), _build_reply(each)) for each in awaited]
        )


def _build_reply(letter: DeadLetter) -> Reply:
    delivery = letter.delivery
    reason = _REASONS.get(letter.stage, "Undecidable")
    try:
        resource = str(parse_stored_intake(delivery.subject)[1])
    except ValueError:
        resource = ""
    reason_excerpt = shorten(letter.reason)
    return Reply(False, reason, 0, delivery.position, reason_excerpt, resource, delivery.message_id)


def _build_rejections(letter: DeadLetter, now: datetime) -> list[Rejection]:
    """Return the rejected outcome of a client's message, if its resource is known."""
    try:
        intake, key = parse_stored_intake(letter.delivery.subject)
    except ValueError:
        return []
    if intake not in CLIENT_MESSAGES:
        return []
    return [Rejection(key, _build_reply(letter), sender_in(letter.delivery.payload), now)]
