"""Snapshots that other observers publish on ``snapshot.<config>.<kind>.<id>``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_snapshot_part
from events.intake import SnapshotPart
from infra.bus.patience import patiently
from infra.bus.streams import OBSERVATIONS
from infra.jetstream.follow import Follower, follow
from infra.jetstream.reads import StoredMessage, stream_state
from reconciler.ports import SnapshotDelivery


class JetStreamSnapshotReader:
    """Implements ``reconciler.ports.SnapshotReader``.

    It reads from now on: a snapshot whose beginning came before is incomplete for us, and its
    observer will publish the next one.
    """

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._follower: Follower | None = None
        self._stack = AsyncExitStack()

    async def next_batch(self) -> Sequence[SnapshotDelivery]:
        """Wait for parts."""
        if self._follower is None:
            self._follower = await patiently(self._nc, self._from_now_on)
        return [_part(message) for message in await anext(self._follower)]

    async def _from_now_on(self) -> Follower:
        last = (await stream_state(self._nc, OBSERVATIONS)).last_seq
        parts = follow(self._nc, OBSERVATIONS, start_seq=last + 1)
        return await self._stack.enter_async_context(parts)

    async def close(self) -> None:
        """Take no more."""
        await self._stack.aclose()


def _part(message: StoredMessage) -> SnapshotDelivery:
    part: SnapshotPart | None
    try:
        part = decode_snapshot_part(message.payload)
    except InvalidMessageError:
        part = None
    return SnapshotDelivery(message.seq, message.subject, message.time, message.payload, part)
