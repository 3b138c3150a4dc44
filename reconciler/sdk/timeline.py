"""The fleet's timeline: the newest matching events of the log, or all new ones."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from fnmatch import fnmatchcase

import msgspec
from nats.aio.client import Client

from events.log import OutcomeName, OutcomeRecorded
from events.names import check_token
from infra.bus.log_times import log_between, log_range
from reconciler.ports import StoredEvent
from reconciler.sdk.moments import Span

_FIRST_WINDOW = 1_000
_WINDOW_GROWTH = 8
"""Growth of the search window. The search starts at the newest positions, because most requests
match recent events. A rare match costs one pass over the log and a few consumers."""


Progress = Callable[[int], object]
"""Called with the last position read."""


def no_progress(_position: int) -> None:
    """Ignore progress."""


class EventFilter(msgspec.Struct, frozen=True):
    """A filter for events; ``*`` and None match all, and ``*`` in ``actor`` matches any text.

    ``event_names``: names of event types, such as ``SpecDeclared``; an empty list matches all.
    """

    namespace: str = "*"
    kind: str = "*"
    name: str = "*"
    actor: str | None = None
    outcome: OutcomeName | None = None
    event_names: Collection[str] = ()

    @property
    def subject_filter(self) -> str:
        """The subject filter for the server; raises ``InvalidNameError``."""
        named = {"namespace": self.namespace, "kind": self.kind, "name": self.name}
        tokens = ".".join(
            value if value == "*" else check_token(value, what=what)
            for what, value in named.items()
        )
        return f"log.{tokens}.>" if self.outcome is None else f"log.{tokens}.outcome.{self.outcome}"

    def matches(self, stored: StoredEvent) -> bool:
        """Return whether an event that the server sent matches the other filters."""
        event = stored.event
        if self.outcome is not None and not isinstance(event.data, OutcomeRecorded):
            return False
        if self.event_names and type(event.data).__name__ not in self.event_names:
            return False
        return self.actor in (None, event.actor) or fnmatchcase(event.actor, self.actor or "")


async def newest_events(
    nc: Client,
    event_filter: EventFilter,
    span: Span,
    limit: int,
    progress: Progress = no_progress,
) -> list[StoredEvent]:
    """Return the newest matching events, at most ``limit``, in the log's order.

    Memory use depends on the result. ``progress`` is called with the number of positions searched.
    """
    _, last = await log_range(nc)
    end = last if span.up_to is None else min(last, span.up_to)
    newest: deque[StoredEvent] = deque()
    searched, size = 0, max(_FIRST_WINDOW, limit)
    while end > span.after and len(newest) < limit:
        window_start = max(span.after, end - size)
        matching: deque[StoredEvent] = deque(maxlen=limit - len(newest))
        events_between = log_between(nc, event_filter.subject_filter, after=window_start, up_to=end)
        async with aclosing(events_between) as batches:
            async for events in batches:
                matching.extend(event for event in events if event_filter.matches(event))
                progress(searched + events[-1].position - window_start)
        newest.extendleft(reversed(matching))
        searched += end - window_start
        end, size = window_start, size * _WINDOW_GROWTH
    return list(newest)


async def follow_events(
    nc: Client, event_filter: EventFilter, after: int
) -> AsyncGenerator[list[StoredEvent]]:
    """Endlessly yield the matching events after a position."""
    reading = log_between(nc, event_filter.subject_filter, after=after, keep_following=True)
    async with aclosing(reading) as batches:
        async for events in batches:
            if matching := [event for event in events if event_filter.matches(event)]:
                yield matching
