"""The timeline of the fleet: the newest selected events of the log, or all coming ones."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from fnmatch import fnmatchcase

import msgspec
from nats.aio.client import Client

from events.log import OutcomeName, OutcomeRecorded
from events.names import check_token
from infra.bus.log_moments import log_between, log_range
from reconciler.ports import StoredEvent
from reconciler.sdk.moments import Span

_FIRST_LOOK = 1_000
_LOOK_GROWS = 8
"""The newest positions are searched first, then larger and larger parts of the older ones. Most
requested events are new, and rare ones cost one read of the log and some consumers."""


Progress = Callable[[int], object]
"""Called with the last position read."""


def no_progress(_position: int) -> None:
    """Report nothing."""


class Interest(msgspec.Struct, frozen=True):
    """Selects events. ``*`` and None stand for any value, also ``*`` in an actor's name.

    ``event_names``: names of event types, such as ``SpecDeclared``; none of them selects all.
    """

    namespace: str = "*"
    kind: str = "*"
    name: str = "*"
    actor: str | None = None
    outcome: OutcomeName | None = None
    event_names: Collection[str] = ()

    @property
    def subject_filter(self) -> str:
        """Subject filter for the server. Raises ``InvalidNameError``."""
        named = {"namespace": self.namespace, "kind": self.kind, "name": self.name}
        tokens = ".".join(
            value if value == "*" else check_token(value, what=what)
            for what, value in named.items()
        )
        return f"log.{tokens}.>" if self.outcome is None else f"log.{tokens}.outcome.{self.outcome}"

    def wants(self, stored: StoredEvent) -> bool:
        """Return whether an event from the server is selected."""
        event = stored.event
        if self.outcome is not None and not isinstance(event.data, OutcomeRecorded):
            return False
        if self.event_names and type(event.data).__name__ not in self.event_names:
            return False
        return self.actor in (None, event.actor) or fnmatchcase(event.actor, self.actor or "")


async def newest_events(
    nc: Client,
    interest: Interest,
    span: Span,
    limit: int,
    progress: Progress = no_progress,
) -> list[StoredEvent]:
    """Read the newest selected events, at most ``limit``, in the log's order.

    It needs memory only for the result. ``progress`` is called with the number of searched
    positions.
    """
    _, last = await log_range(nc)
    end = last if span.up_to is None else min(last, span.up_to)
    found: deque[StoredEvent] = deque()
    looked_at, size = 0, max(_FIRST_LOOK, limit)
    while end > span.after and len(found) < limit:
        begin = max(span.after, end - size)
        some: deque[StoredEvent] = deque(maxlen=limit - len(found))
        reading = log_between(nc, interest.subject_filter, after=begin, up_to=end)
        async with aclosing(reading) as batches:
            async for events in batches:
                some.extend(one for one in events if interest.wants(one))
                progress(looked_at + events[-1].position - begin)
        found.extendleft(reversed(some))
        looked_at += end - begin
        end, size = begin, size * _LOOK_GROWS
    return list(found)


async def coming_events(
    nc: Client, interest: Interest, after: int
) -> AsyncGenerator[list[StoredEvent]]:
    """Follow the selected events after a position, without an end."""
    reading = log_between(nc, interest.subject_filter, after=after, follows=True)
    async with aclosing(reading) as batches:
        async for events in batches:
            if wanted := [one for one in events if interest.wants(one)]:
                yield wanted
