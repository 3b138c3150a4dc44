"""Decided actions, handed to one worker each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import cast

import structlog
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from events.log import LogEvent, log_class
from events.subjects import parse_log
from infra.bus.dead_letters import store_letters
from infra.bus.removed import telling_what_to_do
from infra.bus.streams import SHAPES, WORKERS
from infra.jetstream.deliveries import Delivered, ack, in_progress, nak
from infra.jetstream.errors import BusError
from infra.jetstream.pull import PullReader
from reconciler.ports import ActionDelivery, DeadLetter, IntakeDelivery

_ACTIONS_AT_ONCE = 256
_OFFERED_AGAIN_SECONDS = 30.0
_logger = structlog.get_logger(__name__)


class JetStreamActionReader:
    """Implements ``reconciler.ports.ActionReader``."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._reader = PullReader(nc, SHAPES, WORKERS, max_batch=_ACTIONS_AT_ONCE)
        self._leased: dict[int, Delivered] = {}

    async def next_batch(self) -> Sequence[ActionDelivery]:
        """Wait for actions."""
        while True:
            actions: list[ActionDelivery] = []
            with telling_what_to_do():
                delivered = await self._reader.next_batch()
            for each in delivered:
                try:
                    event = _action(each)
                except ValueError as error:
                    await self._leave(each, str(error))
                    continue
                self._leased[each.seq] = each
                actions.append(ActionDelivery(each.seq, event, each.delivered, each))
            if actions:
                return actions

    async def _leave(self, unreadable: Delivered, reason: str) -> None:
        """Tell of an action that cannot be read here, and leave it to other workers.

        It was decided, so it is never given up: a newer release may know what this one does not.
        """
        _logger.error("an action cannot be read", position=unreadable.seq, error=reason)
        letter = DeadLetter(
            "action",
            reason,
            IntakeDelivery(
                position=unreadable.seq,
                subject=unreadable.subject,
                payload=unreadable.payload,
                message_id="",
                reply_to=None,
                delivered=unreadable.delivered,
                receipt=None,
            ),
            told_once=f"{unreadable.subject}@{unreadable.seq}",
        )
        try:
            await store_letters(self._nc, [letter])
        except BusError as error:  # it is delivered again, and told then
            _logger.warning("a dead letter was not stored", error=str(error))
        await nak(self._nc, unreadable, _OFFERED_AGAIN_SECONDS)

    async def ack(self, deliveries: Sequence[ActionDelivery]) -> None:
        """Say that the results of these are stored."""
        await ack(self._nc, [cast("Delivered", each.receipt) for each in deliveries])
        for each in deliveries:
            self._leased.pop(each.position, None)

    async def still_working(self, deliveries: Sequence[ActionDelivery]) -> None:
        """Extend the leases of these."""
        await in_progress(self._nc, [cast("Delivered", each.receipt) for each in deliveries])

    async def close(self) -> None:
        """Take no more; what is not acknowledged goes to others now, not when its lease ends."""
        await self._reader.close()
        with contextlib.suppress(BusError):
            for each in self._leased.values():
                await nak(self._nc, each)
        self._leased.clear()


def _action(delivered: Delivered) -> LogEvent:
    """Decode an action; raises ``ValueError`` for what is none, or of another shape."""
    event = decode_log(delivered.payload)
    if log_class(event.data) != "action":
        raise InvalidMessageError(f"{event.type} is no action")
    key = parse_log(delivered.subject)
    if event.subject != str(key):
        raise InvalidMessageError(f"it is about {event.subject[:200]}, but stored under {key}")
    return event
