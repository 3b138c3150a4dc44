"""Counts the server's advisories of changes: hints, like every feed of changes."""

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
    f"{PREFIX}.STREAM.{what}.*" for what in ("CREATED", "UPDATED", "DELETED")
)

_MAX_WAIT_SECONDS: Final = 30.0
_WAITING_SHARE: Final = 0.5
"""Share of a call's time after which it reports that nothing changed."""


class Advisories:
    """Counts advisories between and during the calls of ``changes``, with one subscription each.

    ``is_news``: whether an advisory concerns the objects of the kind.
    """

    def __init__(
        self, api: JetStreamApi, subjects: Sequence[str], is_news: Callable[[Incoming], bool]
    ) -> None:
        self._api = api
        self._subjects = subjects
        self._is_news = is_news
        self._wait_seconds = min(api.timeout_seconds * _WAITING_SHARE, _MAX_WAIT_SECONDS)
        self._followed_client: Client | None = None
        self._notices = ExitStack()
        self._feed = uuid.uuid4().hex
        self._count = 0
        self._changed = asyncio.Event()

    async def changes(self, after: str | None) -> str:
        """Wait some time for an advisory after the mark ``after``, and return the newest mark."""
        client = await self._api.connection()
        if client is not self._followed_client:
            await self._follow(client)
        if after == self._mark:
            self._changed.clear()
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await self._changed.wait()
            except TimeoutError:
                await self._api.connection()  # the silence of a lost connection proves nothing
        return self._mark

    def close(self) -> None:
        """Stop counting. The subscriptions end with their connection."""
        self._notices.close()

    @property
    def _mark(self) -> str:
        return f"{self._feed}.{self._count}"

    async def _follow(self, client: Client) -> None:
        denials: list[Denial] = []

        def deny(denial: Denial) -> bool:
            is_ours = any(map(denial.concerns, self._subjects))
            if is_ours:
                denials.append(denial)
            return is_ours

        subscriptions: list[Subscription] = []
        is_followed = False
        try:
            with on_denial(client, deny):
                for subject in self._subjects:
                    subscriptions.append(await subscribe(client, subject, self._take))  # noqa: PERF401
                await client.flush(max(1, round(self._api.timeout_seconds)))
            is_followed = not denials
        except (nats.errors.Error, BusError) as error:
            raise NotDoneError(f"subscribing to the advisories failed: {error}") from error
        finally:
            if not is_followed:
                for subscription in subscriptions:
                    await unsubscribe(subscription)
        if denials:
            raise NotDoneError(f"the user may not {denials[0].verb} {denials[0].subject!r}")
        self._notices.close()
        self._notices.enter_context(on_connection_change(client, self._note))
        self._followed_client = client
        self._note()

    def _take(self, advisory: Incoming) -> None:
        if self._is_news(advisory):
            self._note()

    def _note(self) -> None:
        """Count a change, or a time without a connection, in which one may have been missed."""
        self._count += 1
        self._changed.set()
