"""Receive all of the decider's replies to one client in one inbox."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from events.intake import Reply
from infra.jetstream.parser import Incoming
from infra.jetstream.wire import subscribe, unsubscribe

_decoder = msgspec.json.Decoder(Reply)
_logger = structlog.get_logger(__name__)


class RequestBatch:
    """Requests that were sent together, and their replies by index."""

    def __init__(self, inbox: str, number: int, count: int) -> None:
        self.replies: list[Reply | None] = [None] * count
        self.complete = asyncio.Event()
        self._prefix = f"{inbox}.{number}-"
        self._missing_count = count
        if not count:
            self.complete.set()

    def reply_to(self, index: int) -> str:
        """Return the reply subject of a request."""
        return f"{self._prefix}{index}"

    @property
    def pending(self) -> list[int]:
        """The indexes of the requests without a reply."""
        return [index for index, reply in enumerate(self.replies) if reply is None]

    def set_reply(self, index: int, reply: Reply) -> None:
        """Store a reply, unless the request already has one."""
        if index >= len(self.replies) or self.replies[index] is not None:
            return
        self.replies[index] = reply
        self._missing_count -= 1
        if not self._missing_count:
            self.complete.set()


class ReplyBox:
    """The subscription for replies, open for the life of the client, so that no reply is missed."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._batches: dict[int, RequestBatch] = {}
        self._number = 0

    async def open(self, user: str) -> None:
        """Subscribe.

        The decider replies to a verified user only to an inbox whose subject contains the user's
        name.

        Raises:
            BusUnavailableError: the connection is closed.
        """
        self._inbox = f"_INBOX.{user}.{uuid.uuid4().hex}" if user else self._nc.new_inbox()
        self._subscription = await subscribe(self._nc, f"{self._inbox}.*", self._receive)

    async def close(self) -> None:
        """End the subscription."""
        if self._subscription is not None:
            await unsubscribe(self._subscription)

    @contextmanager
    def expect(self, count: int) -> Generator[RequestBatch]:
        """Expect the replies to `count` requests."""
        self._number += 1
        number = self._number
        self._batches[number] = RequestBatch(self._inbox, number, count)
        try:
            yield self._batches[number]
        finally:
            del self._batches[number]

    def _receive(self, message: Incoming) -> None:
        try:
            number, index = map(int, message.subject.rpartition(".")[2].split("-"))
            reply = _decoder.decode(message.data)
        except (ValueError, msgspec.DecodeError) as error:
            _logger.warning("failed to read a reply", error=str(error))
            return
        if number in self._batches:
            self._batches[number].set_reply(index, reply)
