"""Dead letters for operators and programs: their content, state and retries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from events.dead_letter import (
    DeadLetterHandled,
    DeadLetterRecord,
    payload_of,
    published_subject,
    resource_of,
    sender_of,
)
from events.envelope import MAX_MESSAGE_BYTES, InvalidMessageError, decode_intake
from events.intake import Reply
from events.log import SpecDeclared, SpecWithdrawn
from events.names import ResourceKey
from events.subjects import Intake, parse_intake
from reconciler.errors import ReconcilerError
from reconciler.ports import StoredEvent

State = Literal["Open", "Retried", "Dismissed"]

_AUTOMATIC_RETRIES: Mapping[str, str] = {
    "action": (
        "its action is redelivered to the workers automatically; run workers that can read it"
    ),
    "observation": (
        "the next listing contains the object again; make the object smaller, or exclude it from "
        "the scope"
    ),
    "listing": (
        "a part of a listing cannot be retried by itself; its observer publishes the next listing"
    ),
}
REPLIED_TO = ("desired", "finalizer", "approval")
"""Subjects of requests by users and services, to which the decider replies."""

_MAX_ID_CHARACTERS = 240


class LetterRefusedError(ReconcilerError):
    """A dead letter cannot be retried or dismissed; the message states the reason and a remedy."""


class DeadLetter(msgspec.Struct, frozen=True, rename="camel"):
    """A dead letter with its number, and how it was handled, oldest first."""

    number: int
    record: DeadLetterRecord
    handled: tuple[DeadLetterHandled, ...] = ()

    @property
    def state(self) -> State:
        """The state after it was last handled."""
        return self.handled[-1].resolution if self.handled else "Open"

    @property
    def resource(self) -> ResourceKey | None:
        """The resource of the message, if its subject names one."""
        return resource_of(self.record)

    @property
    def sender(self) -> str:
        """The source of the message, if it is readable."""
        return sender_of(self.record)

    @property
    def payload(self) -> bytes:
        """The stored bytes of the message, which may be truncated."""
        return payload_of(self.record)


class RetryResult(msgspec.Struct, frozen=True, rename="camel"):
    """The position of a retried message in the intake, and the decider's reply if there is one.

    Observations, results and timers have no reply.
    """

    number: int
    position: int
    reply: Reply | None = None


class Retry(msgspec.Struct, frozen=True):
    """A message that will be published again."""

    subject: str
    payload: bytes
    message_id: str
    intake: Intake
    key: ResourceKey


def collect(
    records: Mapping[int, DeadLetterRecord], handled: Iterable[DeadLetterHandled]
) -> list[DeadLetter]:
    """Combine letters with their handling, newest last."""
    by_number: dict[int, list[DeadLetterHandled]] = {}
    for each in handled:
        by_number.setdefault(each.number, []).append(each)
    return [
        DeadLetter(number, record, tuple(by_number.get(number, ())))
        for number, record in sorted(records.items())
    ]


def filter_letters(
    letters: Iterable[DeadLetter],
    *,
    stage: str | None = None,
    resource: ResourceKey | None = None,
    since: datetime | None = None,
    only_open: bool = True,
) -> list[DeadLetter]:
    """Return the letters that match all filters."""
    return [
        each
        for each in letters
        if (stage is None or each.record.stage == stage)
        and (resource is None or each.resource == resource)
        and (since is None or each.record.at >= since)
        and (not only_open or each.state == "Open")
    ]


def prepare_retry(letter: DeadLetter, payload: bytes | None, *, force: bool) -> Retry:
    """Return the message that retries a letter, with its own payload or a corrected one.

    Raises ``LetterRefusedError`` for a message that would become another dead letter.
    """
    record = letter.record
    if record.stage in _AUTOMATIC_RETRIES:
        raise _build_refusal(letter, _AUTOMATIC_RETRIES[record.stage])
    if letter.state != "Open" and not force:
        last = letter.handled[-1]
        raise _build_refusal(
            letter,
            f"it was already {last.resolution.lower()} by {last.by} at "
            f"{last.at:%Y-%m-%dT%H:%M:%SZ}; check the result, or use --force to retry anyway",
        )
    if payload is None and record.payload_truncated:
        raise _build_refusal(
            letter,
            f"only the start of its {record.size} bytes was kept, and a message can have at "
            f"most {MAX_MESSAGE_BYTES} bytes; provide a corrected payload",
        )
    chosen = letter.payload if payload is None else payload
    if len(chosen) > MAX_MESSAGE_BYTES:
        raise _build_refusal(
            letter,
            (
                f"the payload has {len(chosen)} bytes, more than the limit of {MAX_MESSAGE_BYTES}; "
                "make it smaller"
            ),
        )
    subject = published_subject(record)
    try:
        intake, key = parse_intake(subject)
        identity = f"{record.message_id[:_MAX_ID_CHARACTERS]}.retry-{len(letter.handled) + 1}"
        decode_intake(chosen, expected=intake, fallback_id=identity)
    except (ValueError, InvalidMessageError) as error:
        problem = (
            "its payload is still invalid" if payload is None else "the new payload is invalid"
        )
        raise _build_refusal(letter, f"{problem}: {error}") from None
    return Retry(subject, chosen, identity, intake, key)


def check_not_superseded(letter: DeadLetter, history: Sequence[StoredEvent]) -> None:
    """Raise ``LetterRefusedError`` if a retry would revert a newer declaration."""
    for _position, event in history:
        is_declaration = isinstance(event.data, (SpecDeclared, SpecWithdrawn))
        if is_declaration and event.causationposition > letter.record.position:
            raise _build_refusal(
                letter,
                f"a retry would overwrite the newer declaration or withdrawal by {event.actor} at "
                f"{event.time:%Y-%m-%dT%H:%M:%SZ}; use --force to retry anyway",
            )


def _build_refusal(letter: DeadLetter, reason: str) -> LetterRefusedError:
    return LetterRefusedError(f"dead letter {letter.number} cannot be retried: {reason}")
