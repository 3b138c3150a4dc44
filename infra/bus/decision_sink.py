"""Store a decider's timers, replies, rejections and dead letters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client

from events.envelope import encode_intake, encode_log
from events.intake import TimerFired
from events.log import SOURCE, LogEvent, OutcomeRecorded, event_type
from events.names import SYSTEM_NAMESPACE
from events.subjects import fired, namespace_of, rejection, schedule
from infra.bus.dead_letters import discard, may_contain_secret, store_letters
from infra.bus.streams import INTAKE, TIMERS_MAX_AGE
from infra.jetstream.connection import api_request
from infra.jetstream.errors import BusError, MessageTooLargeError
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import store_all
from infra.jetstream.schedules import Schedule, schedule_many
from infra.jetstream.wire import send
from reconciler.ports import DeadLetter, Rejection, Reply, TimerRequest

_MESSAGE_ID_HEADER: Final = "Nats-Msg-Id"
_ERASURE_BURST: Final = 10.0
_MAX_NAMESPACES: Final = 10_000
_encoder = msgspec.json.Encoder()
_logger = structlog.get_logger(__name__)


class JetStreamDecisionSink:
    """Implements ``reconciler.ports.DecisionSink``."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._erasures: dict[str, _Erasures] = {}

    async def set_timers(self, timers: Sequence[TimerRequest]) -> None:
        """Schedule timers in a pipeline.

        Timers beyond the stream's maximum age are omitted, because the sweeper wakes their
        resources.
        """
        now = datetime.now(UTC)
        kept_until = now + TIMERS_MAX_AGE
        schedules = [
            Schedule(
                subject=schedule(timer.key, timer.purpose.lower()),
                target=fired(timer.key),
                at=timer.at,
                payload=encode_intake(
                    f"timer/{timer.key}/{timer.at.isoformat()}",
                    SOURCE,
                    TimerFired(timer.purpose),
                    time=now,
                ),
            )
            for timer in timers
            if timer.at < kept_until
        ]
        _raise_first(await schedule_many(self._nc, schedules))

    async def send_replies(self, replies: Sequence[tuple[str, Reply]]) -> None:
        """Send replies to their subjects, which may have no subscriber.

        Replies that are too large for the bus are skipped, because retrying them would block all
        messages.
        """
        for subject, reply in replies:
            try:
                await send(self._nc, subject, _encoder.encode(reply))
            except MessageTooLargeError as error:
                _logger.warning("a reply was not sent", reason=str(error))

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        """Publish rejections. They are not in the log, because the resource did not change.

        Rejections that are too large for the bus are skipped, because retrying them would block all
        messages.
        """
        outgoing = [_rejected_outcome(each) for each in rejections]
        results = await store_all(self._nc, outgoing)
        for message, result in zip(outgoing, results, strict=True):
            if isinstance(result, MessageTooLargeError):
                _logger.warning(
                    "a rejection was not stored", subject=message.subject, reason=str(result)
                )
        _raise_first([each for each in results if not isinstance(each, MessageTooLargeError)])

    async def store_dead_letters(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Store dead letters not reported yet, and return those still waiting for space."""
        waiting = await store_letters(self._nc, letters)
        positions = {each.delivery.position for each in waiting}
        await self._erase([each for each in letters if each.delivery.position not in positions])
        return waiting

    async def discard(self, letters: Sequence[DeadLetter]) -> None:
        """Count messages for which no dead letter is stored."""
        await discard(self._nc, letters)
        await self._erase(letters)

    async def _erase(self, letters: Sequence[DeadLetter]) -> None:
        """Erase messages that may contain a secret, which the intake would otherwise keep.

        Each erasure takes the server about 20 ms. In `system`, where only operators declare
        resources, all are erased. In other namespaces, most messages in a flood remain until the
        intake is trimmed.
        """
        skipped: Counter[str] = Counter()
        for letter in letters:
            position, namespace = letter.delivery.position, namespace_of(letter.delivery.subject)
            if not may_contain_secret(letter.delivery.subject):
                continue
            if namespace != SYSTEM_NAMESPACE and not self._may_erase(namespace):
                skipped[namespace] += 1
                continue
            try:
                await api_request(self._nc, f"STREAM.MSG.DELETE.{INTAKE}", {"seq": position})
            except BusError as error:  # an earlier attempt erased it, or an operator has to
                text = str(error)
                _logger.warning("failed to erase a refused message", position=position, error=text)
        for namespace, count in skipped.items():
            _logger.warning("refused messages were not erased", namespace=namespace, count=count)

    def _may_erase(self, namespace: str) -> bool:
        if len(self._erasures) >= _MAX_NAMESPACES:
            self._erasures.clear()
        return self._erasures.setdefault(namespace, _Erasures()).try_acquire()


class _Erasures:
    """Limits a namespace's erasures to a burst, then one per second."""

    def __init__(self) -> None:
        self._remaining = _ERASURE_BURST
        self._updated_at = time.monotonic()

    def try_acquire(self) -> bool:
        now = time.monotonic()
        self._remaining = min(_ERASURE_BURST, self._remaining + now - self._updated_at)
        self._updated_at = now
        if self._remaining < 1:
            return False
        self._remaining -= 1
        return True


def _rejected_outcome(rejected: Rejection) -> OutgoingMessage:
    data = OutcomeRecorded(
        "Rejected",
        rejected.reply.generation,
        rejected.reply.reason,
        rejected.reply.message,
    )
    event = LogEvent(
        id=f"{rejected.key}#rejected-{rejected.reply.position}",
        source=SOURCE,
        type=event_type(data),
        subject=str(rejected.key),
        time=rejected.at,
        resourceversion=0,
        data=data,
        causationposition=rejected.reply.position,
        actor=rejected.actor,
    )
    return OutgoingMessage(
        rejection(rejected.key), encode_log(event), {_MESSAGE_ID_HEADER: event.id}
    )


def _raise_first(results: Sequence[object]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result
