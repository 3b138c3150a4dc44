"""Requests about the owners of external names, which workers send and observers answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client

from events.subjects import NAME_OWNERS
from infra.jetstream.errors import BusError
from infra.jetstream.parser import Incoming
from infra.jetstream.wire import request_service, send, subscribe, unsubscribe
from reconciler.ports import ExternalName, NameSearch

_SECONDS: Final = 5.0

_encoder = msgspec.json.Encoder()
_question = msgspec.json.Decoder(list[ExternalName])
_answer = msgspec.json.Decoder(list[str])
_logger = structlog.get_logger(__name__)


class BusNameOwners:
    """Implements ``reconciler.ports.NameDirectory``.

    Every observer answers, and the first answer counts, so that a busy observer delays nothing.
    """

    def __init__(self, nc: Client) -> None:
        self._nc = nc

    async def find_owners(self, names: Sequence[ExternalName]) -> Sequence[str]:
        """Ask the observers, and return the owners. Without observers, no name has a known owner.

        Raises ``BusError`` if no observer answers in time.
        """
        payload = _encoder.encode(names)
        response = await request_service(self._nc, NAME_OWNERS, payload, timeout=_SECONDS)
        if response is None:
            return [""] * len(names)
        try:
            owners = _answer.decode(response.data)
        except msgspec.DecodeError as error:
            raise BusError(f"{NAME_OWNERS}: invalid response: {error}") from None
        if len(owners) != len(names):
            raise BusError(f"{NAME_OWNERS}: {len(owners)} answers to {len(names)} questions")
        return owners

    async def answer(self, search: NameSearch) -> None:
        """Answer requests until canceled."""
        requests = asyncio.Queue[Incoming]()
        subscription = await subscribe(self._nc, NAME_OWNERS, requests.put_nowait)
        try:
            while True:
                request = await requests.get()
                try:
                    names = _question.decode(request.data)
                    answer = _encoder.encode([search(each) for each in names])
                    await send(self._nc, request.reply, answer)
                except (msgspec.DecodeError, BusError) as error:
                    _logger.warning("failed to respond", subject=NAME_OWNERS, error=str(error))
        finally:
            await unsubscribe(subscription)
