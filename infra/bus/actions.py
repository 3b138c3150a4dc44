"""Deliver each decided action to one worker at a time."""

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
from infra.bus.removals import with_remedy
from infra.bus.retries import retry_read
from infra.bus.streams import LOG, ensure_worker_consumer
from infra.jetstream.deliveries import Delivered, ack, in_progress, nak
from infra.jetstream.errors import BusError, BusRefusedError, StreamFullError
from infra.jetstream.pull import PullGroup
from infra.jetstream.reads import stream_state
from reconciler.ports import ActionDelivery, DeadLetter, IntakeDelivery, QueueRefusedError

_REDELIVERY_SECONDS = 30.0
_logger = structlog.get_logger(__name__)


class JetStreamActionReader:
    """Implements ``reconciler.ports.ActionReader`` with a queue per configuration (ADR 0018)."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._reader = PullGroup(nc, LOG, [], keep_slots=True)
        # By reply subject: actions that this reader must return on close, and actions that still
        # occupy a slot of their consumer.
        self._leased: dict[str, Delivered] = {}
        self._occupied_slots: set[str] = set()
        self._connections: int | None = None
        # The log's last position at the start of the current connection (see `_track_connection`).
        self._decided_before = 0

    async def add_queue(self, provider_config: str, limit: int) -> None:
        """Add a configuration's actions, or change how many of them to hold."""
        await self._track_connection()
        try:
            with with_remedy():
                name = await retry_read(
                    self._nc,
                    lambda: ensure_worker_consumer(self._nc, provider_config),
                    seconds=math.inf,
                )
        except (BusRefusedError, StreamFullError) as error:  # for example, an account limit
            raise QueueRefusedError(str(error)) from error
        self._reader.set_slots(name, limit)

    async def next_batch(self) -> Sequence[ActionDelivery]:
        """Wait for actions."""
        while True:
            actions: list[ActionDelivery] = []
            with with_remedy():
                delivered = await self._reader.next_batch()
            await self._track_connection()
            for delivery in delivered:
                try:
                    event = _action(delivery)
                except ValueError as error:
                    await self._return_unreadable(delivery, str(error))
                    continue
                self._leased[delivery.reply] = delivery
                self._occupied_slots.add(delivery.reply)
                # The delivery count is reliable only for actions decided during this connection.
                is_certain = delivery.seq > self._decided_before
                actions.append(
                    ActionDelivery(
                        delivery.seq,
                        event,
                        delivery.delivered,
                        delivery,
                        is_certain,
                        len(delivery.payload),
                    )
                )
            if actions:
                return actions

    async def _track_connection(self) -> None:
        """Record the log's end when a connection starts, so that older actions count as uncertain.

        A killed server loses its most recent delivery counts, and starts counting from one again.
        """
        connections: int = self._nc.stats["reconnects"]
        if connections != self._connections:
            with with_remedy():
                state = await retry_read(
                    self._nc, lambda: stream_state(self._nc, LOG), seconds=math.inf
                )
            self._connections, self._decided_before = connections, state.last_seq

    async def _return_unreadable(self, unreadable: Delivered, reason: str) -> None:
        """Report an action that cannot be decoded, and return it for other workers.

        It is not terminated, because it has been decided, and a newer release may support it.
        """
        _logger.error("failed to read an action", position=unreadable.seq, error=reason)
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
            dedup_key=f"{unreadable.subject}@{unreadable.seq}",
        )
        try:
            if await store_letters(self._nc, [letter]):
                _logger.warning(
                    "the DEADLETTERS stream is full; dropped a dead letter",
                    position=unreadable.seq,
                )
        except BusError as error:  # the next delivery reports it again
            _logger.warning("failed to store a dead letter", error=str(error))
        self._reader.free_slot(unreadable)
        await nak(self._nc, unreadable, _REDELIVERY_SECONDS)

    def free_slot(self, delivery: ActionDelivery) -> None:
        """Free an action's slot, so that the server delivers another one."""
        receipt = cast("Delivered", delivery.receipt)
        if receipt.reply in self._occupied_slots:
            self._free_slot(receipt)

    def _free_slot(self, receipt: Delivered) -> None:
        self._occupied_slots.discard(receipt.reply)
        self._reader.free_slot(receipt)

    async def ack(self, deliveries: Sequence[ActionDelivery]) -> None:
        """Acknowledge actions whose results are stored."""
        receipts = cast("list[Delivered]", [each.receipt for each in deliveries])
        for receipt in receipts:
            if receipt.reply in self._occupied_slots:
                self._free_slot(receipt)
            self._leased.pop(receipt.reply, None)
        await ack(self._nc, receipts)

    async def extend_leases(self, deliveries: Sequence[ActionDelivery]) -> None:
        """Extend the leases of actions."""
        receipts = cast("list[Delivered]", [each.receipt for each in deliveries])
        await in_progress(self._nc, receipts)

    async def close(self) -> None:
        """Stop pulling, and return unacknowledged actions for immediate redelivery."""
        await self._reader.close()
        with contextlib.suppress(BusError):
            for each in self._leased.values():
                await nak(self._nc, each)
        self._leased.clear()


def _action(delivered: Delivered) -> LogEvent:
    """Decode an action.

    Raises:
        ValueError: the event is not an action, or belongs to another resource.
    """
    event = decode_log(delivered.payload)
    if log_class(event.data) != "action":
        raise InvalidMessageError(f"the event {event.type} is not an action")
    key = parse_log(delivered.subject)
    if event.subject != str(key):
        raise InvalidMessageError(f"the event is for {event.subject[:200]}, but stored under {key}")
    return event
