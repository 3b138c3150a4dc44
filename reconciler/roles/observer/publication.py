"""Limits what is published about an API before the log reflects it.

The operator of an API decides how many of its objects change. The decider accepts all messages of
roles, so unprocessed observations of one API could fill the intake for all namespaces (ADR 0062).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import ClassVar, Final, NamedTuple

import msgspec

from events.intake import Observed
from events.log import (
    AbsenceDoubted,
    ExternalObserved,
    LogEvent,
    OwnershipClaimed,
    OwnershipReleased,
)
from events.names import ResourceKey
from reconciler.roles.runtime.pauses import in_slices

Observation = tuple[ResourceKey, Observed]

MAX_UNPROCESSED: Final = 2_000
"""Limit on an API's observations that are published but not yet reflected in the log."""

MAX_UNPROCESSED_BYTES: Final = 8 * 1024 * 1024
BYTES_PER_SECOND: Final = 1024 * 1024
"""Limit on the average rate of an API's observations, which the log keeps."""

BURST_BYTES: Final = 64 * 1024 * 1024
MAX_DEBT_BYTES: Final = BYTES_PER_SECOND
"""Limit on the bytes of a slice beyond the remaining burst. The first slice of the next listing,
which contains the small changes of every namespace, waits until the rate has covered them."""

LEAST_BYTES: Final = 512
"""Size at which a smaller observation counts, because the log stores an event for each."""

REPEAT_SECONDS: Final = 15.0
"""Time after which an observation counts as lost. It doubles while the log reflects none."""

MAX_REPEAT_SECONDS: Final = 300.0

MAX_WAIT_SECONDS: Final = 10.0
"""Limit on the time for which one listing waits for room. It is at most the resync interval."""

_SLICE: Final = 500

_encoder = msgspec.json.Encoder()


class _Published(NamedTuple):
    """The unprocessed observations of one resource: their number and size."""

    messages: int
    size: int
    until: float


@dataclass(slots=True, eq=False)
class _Api:
    """The unprocessed observations of one API, and its remaining burst."""

    refilled_at: float
    published: dict[str, _Published] = field(default_factory=dict[str, _Published])
    messages: int = 0
    size: int = 0
    burst: float = BURST_BYTES
    pause_seconds: float = REPEAT_SECONDS
    has_room: asyncio.Event = field(default_factory=asyncio.Event)

    def remove(self, subject: str) -> None:
        removed = self.published.pop(subject, None)
        if removed is not None:
            self.messages -= removed.messages
            self.size -= removed.size
            self.has_room.set()


class Publication:
    """The published observations of each API, until the log reflects them."""

    event_types: ClassVar = frozenset(
        {AbsenceDoubted, ExternalObserved, OwnershipClaimed, OwnershipReleased}
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._apis: dict[str, _Api] = {}
        self._apis_of: dict[str, set[_Api]] = {}  # by subject

    async def slices(
        self,
        provider_config: str,
        observations: Sequence[Observation],
        *,
        is_undeclared: Callable[[ResourceKey], bool] = lambda _key: False,
        max_wait_seconds: float = 0.0,
    ) -> AsyncIterator[Sequence[Observation]]:
        """Divide observations into slices to publish, each when there is room for it.

        A slice counts as published when the next one is requested. The iteration ends when there
        has been no room for `max_wait_seconds`: the next listing repeats the rest, and also
        contains what has changed since.
        """
        api = self._apis.setdefault(provider_config, _Api(self._clock()))
        ends_at = self._clock() + max_wait_seconds
        waiting = await _share_fairly(observations, is_undeclared)
        waiting.reverse()
        while waiting:
            while (wait := self._wait_seconds(api)) > 0:
                if self._clock() >= ends_at:
                    return
                api.has_room.clear()
                with suppress(TimeoutError):
                    remaining = ends_at - self._clock()
                    await asyncio.wait_for(api.has_room.wait(), min(wait, remaining))
            chosen, sizes = list[Observation](), list[int]()
            room = MAX_UNPROCESSED - api.messages
            room_bytes = min(MAX_UNPROCESSED_BYTES - api.size, api.burst + MAX_DEBT_BYTES)
            while waiting and len(chosen) < min(room, _SLICE):
                size = _size_of(waiting[-1])
                if chosen and sum(sizes) + size > room_bytes:
                    break
                sizes.append(size)
                chosen.append(waiting.pop())
            yield chosen
            self._record(api, chosen, sizes)

    def handle_event(self, event: LogEvent) -> None:
        """Forget the observations of a resource, because the decider has processed one of them.

        At most as many further ones can be unprocessed, because it processes them in order.
        """
        for api in self._apis_of.pop(event.subject, ()):
            api.pause_seconds = REPEAT_SECONDS
            api.remove(event.subject)

    def _record(self, api: _Api, published: Sequence[Observation], sizes: Sequence[int]) -> None:
        until = self._clock() + api.pause_seconds
        for (key, _), size in zip(published, sizes, strict=True):
            earlier = api.published.get(str(key), _Published(0, 0, 0.0))
            api.published[str(key)] = _Published(earlier.messages + 1, earlier.size + size, until)
            api.messages += 1
            api.size += size
            self._apis_of.setdefault(str(key), set()).add(api)
        api.burst -= sum(sizes)

    def _wait_seconds(self, api: _Api) -> float:
        """Return the time until there may be room for one more observation."""
        now = self._clock()
        api.burst = min(BURST_BYTES, api.burst + (now - api.refilled_at) * BYTES_PER_SECOND)
        api.refilled_at = now
        expired = [subject for subject, each in api.published.items() if each.until <= now]
        for subject in expired:
            api.remove(subject)
            apis = self._apis_of.pop(subject, set()) - {api}
            if apis:
                self._apis_of[subject] = apis
        if expired:
            api.pause_seconds = min(2 * api.pause_seconds, MAX_REPEAT_SECONDS)
        if api.messages >= MAX_UNPROCESSED or api.size >= MAX_UNPROCESSED_BYTES:
            return max(0.0, min(each.until for each in api.published.values()) - now)
        return max(0.0, -api.burst / BYTES_PER_SECOND)


async def _share_fairly(
    observations: Sequence[Observation], is_undeclared: Callable[[ResourceKey], bool]
) -> list[Observation]:
    """Order observations so that each namespace gets the same number of bytes, small ones first.

    Undeclared objects, which have no namespace of their own, follow all others.
    """
    sized: list[tuple[int, Observation]] = []
    async for chunk in in_slices(observations):
        sized += [(_size_of(each), each) for each in chunk]
    sized.sort(key=itemgetter(0))
    totals = Counter[str]()
    declared, undeclared = list[tuple[int, Observation]](), list[Observation]()
    async for chunk in in_slices(sized):
        for size, each in chunk:
            key = each[0]
            if is_undeclared(key):
                undeclared.append(each)
            else:
                totals[key.namespace] += size
                declared.append((totals[key.namespace], each))
    declared.sort(key=itemgetter(0))
    return [each for _, each in declared] + undeclared


def _size_of(observation: Observation) -> int:
    return max(LEAST_BYTES, len(_encoder.encode(observation[1].object)))
