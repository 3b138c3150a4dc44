"""Counts the server's advisories about changes. Like every change feed, they are hints."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from infra.jetstream.denials import Denial
from infra.jetstream.errors import BusError
from infra.jetstream.parser import Incoming
from infra.jetstream.wire import on_connection_change, on_denial, subscribe, unsubscribe
from infra.providers.jetstream.api import JetStreamApi
from reconciler.errors import NotDoneError

PREFIX: Final = "$JS.EVENT.ADVISORY"
STREAM_ADVISORIES: Final = tuple(
    f"{PREFIX}.STREAM.{verb}.*" for verb in ("CREATED", "UPDATED", "DELETED")
)

_MAX_WAIT_SECONDS: Final = 30.0
_MAX_WAIT_FRACTION: Final = 0.5
"""Fraction of the request timeout to wait before reporting no change."""


class Advisories:
    """Counts advisories during and between calls to ``changes``, with one subscription per subject.

    ``is_relevant``: whether an advisory concerns the objects of the kind.
    """

    def __init__(
        self, api: JetStreamApi, subjects: Sequence[str], is_relevant: Callable[[Incoming], bool]
    ) -> None:
        self._api = api
        self._subjects = subjects
        self._is_relevant = is_relevant
        self._wait_seconds = min(api.timeout_seconds * _MAX_WAIT_FRACTION, _MAX_WAIT_SECONDS)
        self._subscribed_client: Client | None = None
        self._connection_callbacks = ExitStack()
        self._feed = uuid.uuid4().hex
        self._count = 0
        self._changed = asyncio.Event()

    async def changes(self, after: str | None) -> str:
        """Wait a limited time for an advisory after ``after``, and return the newest mark."""
        client = await self._api.connection()
        if client is not self._subscribed_client:
            await self._subscribe(client)
        if after == self._mark:
            self._changed.clear()
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await self._changed.wait()
            except TimeoutError:
                await self._api.connection()  # the silence of a lost connection proves nothing
        return self._mark

    def close(self) -> None:
        """Stop counting. Closing the connection ends the subscriptions."""
        self._connection_callbacks.close()

    @property
    def _mark(self) -> str:
        return f"{self._feed}.{self._count}"

    async def _subscribe(self, client: Client) -> None:
        denials: list[Denial] = []

        def deny(denial: Denial) -> bool:
            is_own = any(map(denial.concerns, self._subjects))
            if is_own:
                denials.append(denial)
            return is_own

        subscriptions: list[Subscription] = []
        is_subscribed = False
        try:
            with on_denial(client, deny):
                for subject in self._subjects:
                    subscriptions.append(await subscribe(client, subject, self._handle_advisory))  # noqa: PERF401
                await client.flush(max(1, round(self._api.timeout_seconds)))
            is_subscribed = not denials
        except (nats.errors.Error, BusError) as error:
            raise NotDoneError(f"subscribing to the advisories failed: {error}") from error
        finally:
            if not is_subscribed:
                for subscription in subscriptions:
                    await unsubscribe(subscription)
        if denials:
            raise NotDoneError(f"the user may not {denials[0].verb} {denials[0].subject!r}")
        self._connection_callbacks.close()
        self._connection_callbacks.enter_context(on_connection_change(client, self._count_change))
        self._subscribed_client = client
        self._count_change()

    def _handle_advisory(self, advisory: Incoming) -> None:
        if self._is_relevant(advisory):
            self._count_change()

    def _count_change(self) -> None:
        """Count a change, or a lost connection, during which one may have been missed."""
        self._count += 1
        self._changed.set()
