"""Decided actions, handed to one worker each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import cast

import structlog
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from infra.bus.removed import telling_what_to_do
from infra.bus.streams import SHAPES, WORKERS
from infra.jetstream.deliveries import Delivered, ack, in_progress, nak, terminate
from infra.jetstream.errors import BusError
from infra.jetstream.pull import PullReader
from reconciler.ports import ActionDelivery

_ACTIONS_AT_ONCE = 256
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
                    event = decode_log(each.payload)
                except InvalidMessageError as error:
                    _logger.error("an action cannot be read", position=each.seq, error=str(error))
                    await terminate(self._nc, each, "not an event of the log")
                    continue
                self._leased[each.seq] = each
                actions.append(ActionDelivery(each.seq, event, each.delivered, each))
            if actions:
                return actions

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
