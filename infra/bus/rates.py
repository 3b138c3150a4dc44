"""Rate limits on the bus: one message each, updated by compare-and-set, in server time."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

import msgspec
from nats.aio.client import Client

from events.subjects import rate
from infra.bus.streams import RATES
from infra.jetstream.append import append
from infra.jetstream.connection import api_request
from infra.jetstream.errors import AppendConflictError
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.reads import last_from_leader
from reconciler.ports import RateConflictError

_CALIBRATION_SECONDS: Final = 60.0


class _Arrival(msgspec.Struct, frozen=True, rename="camel"):
    """A rate limit's reserved time: when its next call may start, in seconds since 1970."""

    arrival_seconds: float


_decoder = msgspec.json.Decoder(_Arrival)
_encoder = msgspec.json.Encoder()


class JetStreamRates:
    """Implements ``reconciler.ports.RateStore``.

    It uses the clock of the stream's leader, so this machine's clock does not matter.
    """

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._offset = 0.0
        self._calibrated_at: float | None = None

    async def now(self) -> float:
        """Return the server's time: its last reading plus the monotonic time since then."""
        at = self._calibrated_at
        if at is None or time.monotonic() - at > _CALIBRATION_SECONDS:
            await self._calibrate()
        return time.monotonic() + self._offset

    async def load(self, name: str) -> tuple[float, int]:
        """Read a limit from the leader."""
        message = await last_from_leader(self._nc, RATES, rate(name))
        if message is None:
            return 0.0, 0
        try:
            return _decoder.decode(message.payload).arrival_seconds, message.seq
        except msgspec.DecodeError:  # written by another client, so replace it
            return 0.0, message.seq

    async def save(self, name: str, time: float, revision: int) -> int:
        """Store a limit if its revision is unchanged."""
        subject = rate(name)
        message = OutgoingMessage(
            subject,
            _encoder.encode(_Arrival(time)),
            expected_filter=subject,
            expected_last=revision,
        )
        try:
            return (await append(self._nc, [message]))[0]
        except AppendConflictError as conflict:
            raise RateConflictError(str(conflict)) from conflict

    async def _calibrate(self) -> None:
        # Assume that the server read its clock in the middle of the request.
        sent_at = time.monotonic()
        response = await api_request(self._nc, f"STREAM.INFO.{RATES}", None)
        received_at = time.monotonic()
        server_time = datetime.fromisoformat(response["ts"]).timestamp()
        self._offset = server_time - (sent_at + received_at) / 2
        self._calibrated_at = received_at
