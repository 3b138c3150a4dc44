"""Decided actions, handed to one worker each."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import cast

import structlog
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from events.log import LogEvent, log_class
from events.subjects import parse_log
from infra.bus.dead_letters import store_letters
from infra.bus.removals import telling_what_to_do
from infra.bus.retries import patiently
from infra.bus.streams import LOG, make_worker_consumer
from infra.jetstream.deliveries import Delivered, ack, in_progress, nak
from infra.jetstream.errors import BusError, BusRefusedError, StreamFullError
from infra.jetstream.pull import PullGroup
from infra.jetstream.reads import stream_state
from reconciler.ports import ActionDelivery, DeadLetter, IntakeDelivery, NotTakenError

_OFFERED_AGAIN_SECONDS = 30.0
_logger = structlog.get_logger(__name__)


class JetStreamActionReader:
    """Implements ``reconciler.ports.ActionReader``: a queue for each configuration (ADR 0018)."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._reader = PullGroup(nc, LOG, [], until_done=True)
        self._leased: dict[str, Delivered] = {}
        self._without_room: set[str] = set()
        self._connections: int | None = None
        self._decided_before = 0

    async def take_from(self, provider_config: str, most: int) -> None:
        """Take actions of a configuration too, or another number of them at once."""
        await self._note_connection()
        try:
            with telling_what_to_do():
                name = await patiently(
                    self._nc,
                    lambda: make_worker_consumer(self._nc, provider_config),
                    seconds=math.inf,
                )
        except (BusRefusedError, StreamFullError) as error:  # a limit of the account, for example
            raise NotTakenError(str(error)) from error
        self._reader.take_from(name, most)

    async def next_batch(self) -> Sequence[ActionDelivery]:
        """Wait for actions."""
        while True:
            actions: list[ActionDelivery] = []
            with telling_what_to_do():
                delivered = await self._reader.next_batch()
            await self._note_connection()
            for each in delivered:
                try:
                    event = _action(each)
                except ValueError as error:
                    await self._leave(each, str(error))
                    continue
                self._leased[each.reply] = each
                self._without_room.add(each.reply)
                is_certain = each.seq > self._decided_before
                actions.append(ActionDelivery(each.seq, event, each.delivered, each, is_certain))
            if actions:
                return actions

    async def _note_connection(self) -> None:
        """Note what was decided before a new connection.

        A server that is killed forgets its newest deliveries, and counts them from one again.
        """
        connections: int = self._nc.stats["reconnects"]
        if connections != self._connections:
            with telling_what_to_do():
                state = await patiently(
                    self._nc, lambda: stream_state(self._nc, LOG), seconds=math.inf
                )
            self._connections, self._decided_before = connections, state.last_seq

    async def _leave(self, unreadable: Delivered, reason: str) -> None:
        """Tell of an action that cannot be read here, and leave it to other workers.

        It was decided, so it is never given up: a newer release may know what this one does not.
        """
        _logger.error("reading an action failed", position=unreadable.seq, error=reason)
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
            if await store_letters(self._nc, [letter]):
                _logger.warning(
                    "stream DEADLETTERS is full; dropped a dead letter",
                    position=unreadable.seq,
                )
        except BusError as error:  # it is delivered again, and told then
            _logger.warning("storing a dead letter failed", error=str(error))
        self._reader.done(unreadable)
        await nak(self._nc, unreadable, _OFFERED_AGAIN_SECONDS)

    def make_room(self, delivery: ActionDelivery) -> None:
        """Ask for another action in the place of this one."""
        taken = cast("Delivered", delivery.receipt)
        if taken.reply in self._without_room:  # else it was said before
            self._without_room.discard(taken.reply)
            self._reader.done(taken)

    async def ack(self, deliveries: Sequence[ActionDelivery]) -> None:
        """Report that the results of these are stored."""
        for each in deliveries:
            self.make_room(each)
        receipts = [cast("Delivered", each.receipt) for each in deliveries]
        for receipt in receipts:
            self._leased.pop(receipt.reply, None)
        await ack(self._nc, receipts)

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
    """Decode an action; raises ``ValueError`` for what is none, or of another resource."""
    event = decode_log(delivered.payload)
    if log_class(event.data) != "action":
        raise InvalidMessageError(f"the event {event.type} is not an action")
    key = parse_log(delivered.subject)
    if event.subject != str(key):
        raise InvalidMessageError(f"the event is for {event.subject[:200]}, but stored under {key}")
    return event
