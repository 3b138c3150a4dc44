"""Waiting for outcomes without a race: subscribe, look at what is there, then go on reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from events.log import OutcomeName
from events.names import ShapeKey
from reconciler.client.outcome_stream import Outcome, as_outcome
from reconciler.client.port import ClientBus, OutcomeFeed
from reconciler.errors import WaitTimeoutError

SETTLED: Final[frozenset[OutcomeName]] = frozenset(
    {
        "Converged",
        "Failed",
        "Conflict",
        "Disputed",
        "Drifted",
        "Held",
        "Paused",
        "Deleted",
        "Released",
    }
)
"""Outcomes after which nothing more happens by itself: all but ``Degraded``, which is tried again,
``Unowned`` and ``Rejected``, which are about no generation."""

_COPY_SECONDS: Final = 1.0  # the server copies an outcome of the log within milliseconds
_LOOK_AGAIN_SECONDS: Final = 5.0  # a replica of the log may have lagged behind the subscription
_EXACT_FILTERS: Final = 32
_SHOWN: Final = 3

OnOutcome = Callable[[Outcome], object]
"""Called with every new outcome of a shape that is waited for, whether it ends the wait or not."""


class Waiting:
    """Shapes with the generation that each shall reach, and what has been seen of them."""

    def __init__(
        self,
        wanted: Mapping[ShapeKey, int],
        outcomes: Collection[OutcomeName],
        on_outcome: OnOutcome | None = None,
    ) -> None:
        self.found: dict[ShapeKey, Outcome] = {}
        self._wanted = wanted
        self._outcomes = frozenset(outcomes)
        self._on_outcome = on_outcome
        self._last: dict[ShapeKey, Outcome] = {}
        self._missing = dict(wanted)

    @property
    def missing(self) -> Sequence[ShapeKey]:
        """Shapes that are still waited for."""
        return list(self._missing)

    @property
    def is_over(self) -> bool:
        """Whether all have been found."""
        return not self._missing

    def see(self, outcome: Outcome | None) -> None:
        """Take in an outcome of any shape, in any order."""
        if outcome is None or outcome.key not in self._missing:
            return
        last = self._last.get(outcome.key)
        if last is not None and (
            last.event_id == outcome.event_id or 0 < outcome.version < last.version
        ):
            return
        self._last[outcome.key] = outcome
        if outcome.generation >= self._wanted[outcome.key] and outcome.outcome in self._outcomes:
            del self._missing[outcome.key]
            self.found[outcome.key] = outcome
        if self._on_outcome is not None:
            self._on_outcome(outcome)

    def describe_missing(self) -> str:
        """Say which shapes are missing, and how the first of them stand."""
        shown = "; ".join(self._describe(key) for key in self.missing[:_SHOWN])
        more = len(self._missing) - _SHOWN
        return f"{shown}; and {more} more" if more > 0 else shown

    def _describe(self, key: ShapeKey) -> str:
        last = self._last.get(key)
        stands = "no outcome was seen"
        if last is not None:
            reason = f"{last.reason}: {last.message}" if last.message else last.reason
            stands = f"last seen: {last.outcome} of generation {last.generation} ({reason})"
        return f"{key} did not reach generation {self._wanted[key]}, {stands}"


async def wait(bus: ClientBus, waiting: Waiting, timeout_seconds: float) -> None:
    """Wait until all have been found; raises ``WaitTimeoutError``."""
    if waiting.is_over:
        return
    try:
        async with asyncio.timeout(timeout_seconds):
            async with bus.outcomes(_filters(waiting.missing), after=None) as feed:
                await _look_and_follow(bus, waiting, feed)
    except TimeoutError:
        raise WaitTimeoutError(
            f"{len(waiting.missing)} not settled after {timeout_seconds:g} s: "
            f"{waiting.describe_missing()}"
        ) from None


async def _look_and_follow(bus: ClientBus, waiting: Waiting, feed: OutcomeFeed) -> None:
    until_next_look = _COPY_SECONDS
    while True:
        for stored in await bus.last_outcomes(waiting.missing):
            # What is on its way to the outcome stream comes from there, with its position.
            if stored.position or until_next_look != _COPY_SECONDS:
                waiting.see(as_outcome(stored))
        try:
            async with asyncio.timeout(until_next_look):
                while not waiting.is_over:
                    for stored in await feed.next_outcomes():
                        waiting.see(as_outcome(stored))
        except TimeoutError:
            until_next_look = _LOOK_AGAIN_SECONDS
            continue
        return


def _filters(keys: Sequence[ShapeKey]) -> list[str]:
    """Ask for a few shapes by name, and for many by what they have in common."""
    if len(keys) <= _EXACT_FILTERS:
        return [key.tokens for key in keys]
    namespaces = {key.namespace for key in keys}
    kinds = {key.kind for key in keys}
    namespace = namespaces.pop() if len(namespaces) == 1 else "*"
    kind = kinds.pop() if len(kinds) == 1 else "*"
    return [f"{namespace}.{kind}.*"]
