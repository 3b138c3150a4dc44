"""Outcomes as the client returns them, and a race-free wait for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog

from events.hold import Hold, hold_of
from events.log import Condition, OutcomeName, OutcomeRecorded, PartAvailability
from events.names import KIND_DEFINITION_KIND, PROVIDER_CONFIG_KIND, ResourceKey
from events.wording import plural
from infra.bus.client_bus import JetStreamClientBus
from infra.bus.outcome_feeds import OutcomeFeed
from infra.jetstream.errors import BusDeniedError, BusError
from projections.readiness import unknown_readiness
from reconciler.errors import WaitTimeoutError
from reconciler.ports import StoredEvent
from reconciler.sdk.messages import reconcile_request

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
"""Outcomes that change only after another declaration or observation: all but ``Degraded``, which
is retried, and ``Unowned`` and ``Rejected``, which belong to no generation."""

_REREAD_SECONDS: Final = 5.0  # a replica of the log may lag behind the subscription
_CHECK_SECONDS: Final = 0.1  # between checks whether to request a read
UNREQUESTED_SECONDS: Final = 10.0
"""Time for which an outcome must not change if the user may not request a read: two listings."""

_READ_REASON: Final = "a client waits for it to stay ready"
UNCONFIRMED_MESSAGE: Final = "it is ready, but has not stayed ready for long enough"
_EXACT_FILTERS: Final = 32
_ENDING_KINDS: Final = {"ProviderConfig": PROVIDER_CONFIG_KIND, "Kind": KIND_DEFINITION_KIND}
"""Kinds whose declaration ends a hold, by `Hold.ended_by`."""

_MAX_DESCRIBED: Final = 3
_logger = structlog.get_logger(__name__)


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """The outcome of a generation of a resource.

    ``position`` is its position in the log, from which ``after`` continues. A rejected declaration
    is not in the log, and has the position of the preceding outcome. ``version`` counts the
    resource's events, 0 for a rejection. ``actor`` is the source of the message that led to it.
    ``provider_config`` names the configuration of the object; empty if it has none.
    ``availability`` is how long the object has been ready; None if its kind keeps its readiness.

    The conditions are as recorded. If the API stops responding later, there is no new outcome:
    ``Client.silent_since`` reports it per configuration, and a wait for a ready object continues.
    """

    position: int
    key: ResourceKey
    outcome: OutcomeName
    generation: int
    reason: str
    message: str
    conditions: tuple[Condition, ...]
    at: datetime
    event_id: str
    version: int = 0
    actor: str = ""
    provider_config: str = ""
    availability: PartAvailability | None = None

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the object is ready, but has not stayed ready for long enough.

        Its kind may stop being ready by itself, for example because a process exits.
        """
        is_momentary = self.availability is not None and not self.availability.available
        return self.outcome == "Converged" and is_momentary and self.not_ready is None

    @property
    def not_ready(self) -> Condition | None:
        """The condition that states why a converged object is not ready, or None if it is."""
        for each in self.conditions:
            if each.type == "Ready" and each.status != "True":
                return each
        return None


def as_outcome(stored: StoredEvent) -> Outcome | None:
    """Convert an event to an outcome; None for other event types."""
    event = stored.event
    data = event.data
    if not isinstance(data, OutcomeRecorded):
        return None
    return Outcome(
        position=stored.position,
        key=event.key,
        outcome=data.outcome,
        generation=data.generation,
        reason=data.reason,
        message=data.message,
        conditions=data.conditions,
        at=event.time,
        event_id=event.id,
        version=event.resourceversion,
        actor=event.actor,
        provider_config=data.provider_config,
        availability=data.availability,
    )


class OutcomeStream:
    """An endless stream of outcomes: ``async with`` it, then ``async for outcome in`` it.

    The ``async with`` creates the subscription, so no later outcome is missed. Without it, the
    first step of the loop creates the subscription, which lives as long as the client.

    A durable stream acknowledges an outcome when the loop requests the next one, or on ``ack()``.
    After two minutes without an acknowledgment, it is redelivered to this process or to another one
    with the same durable name (at least once, always in order).
    """

    def __init__(self, open_feed: Callable[[], AbstractAsyncContextManager[OutcomeFeed]]) -> None:
        self._open_feed = open_feed
        self._context: AbstractAsyncContextManager[OutcomeFeed] | None = None
        self._feed: OutcomeFeed | None = None
        self._waiting: deque[StoredEvent] = deque()
        self._unacknowledged: StoredEvent | None = None

    @property
    def is_open(self) -> bool:
        """Whether the subscription exists."""
        return self._context is not None

    async def __aenter__(self) -> Self:
        """Subscribe; raises ``BusError`` on failure."""
        await self._subscribe()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome:
        """Wait for the next outcome, and acknowledge the previous one."""
        feed = await self._subscribe()
        await self.ack()
        while True:
            while not self._waiting:
                self._waiting.extend(await feed.next_outcomes())
            self._unacknowledged = self._waiting.popleft()
            outcome = as_outcome(self._unacknowledged)
            if outcome is not None:
                return outcome
            await self.ack()

    async def ack(self) -> None:
        """Acknowledge the last outcome of a durable stream, before you leave a loop."""
        if self._feed is not None and self._unacknowledged is not None:
            await self._feed.acknowledge(self._unacknowledged)
            self._unacknowledged = None

    async def aclose(self) -> None:
        """End the subscription; a durable stream redelivers unacknowledged outcomes."""
        if self._context is None:
            return
        context, self._context, self._feed = self._context, None, None
        self._waiting.clear()
        self._unacknowledged = None
        await context.__aexit__(None, None, None)

    async def _subscribe(self) -> OutcomeFeed:
        if self._feed is None:
            context = self._open_feed()
            self._feed = await context.__aenter__()
            self._context = context
        return self._feed


OnOutcome = Callable[[Outcome], object]
"""Called with every new outcome of the awaited resources, whether or not it ends the wait."""


class Waiting:
    """Awaited resources, the generation that each must reach, and their outcomes so far."""

    def __init__(
        self,
        generations: Mapping[ResourceKey, int],
        outcomes: Collection[OutcomeName],
        on_outcome: OnOutcome | None = None,
        *,
        ready: bool = True,
    ) -> None:
        self.accepted: dict[ResourceKey, Outcome] = {}
        self._generations = generations
        self._outcomes = frozenset(outcomes)
        self._on_outcome = on_outcome
        self._ready = ready
        self._last: dict[ResourceKey, Outcome] = {}
        self._pending = dict(generations)
        self._silent_since: dict[str, datetime | None] = {}
        self._lasting: set[str] = set()  # ids of outcomes that have not changed for a reread
        self._confirmed: set[str] = set()  # ids of outcomes that count without a requested read

    @property
    def pending(self) -> Sequence[ResourceKey]:
        """Resources without an accepted outcome so far."""
        return list(self._pending)

    @property
    def is_over(self) -> bool:
        """Whether all resources have an accepted outcome."""
        return not self._pending

    def record(self, outcome: Outcome | None) -> None:
        """Record an outcome of any resource, in any order."""
        if outcome is None or outcome.key not in self._pending:
            return
        last = self._last.get(outcome.key)
        if last is not None and (
            last.event_id == outcome.event_id or 0 < outcome.version < last.version
        ):
            return
        self._last[outcome.key] = outcome
        if self._on_outcome is not None:
            self._on_outcome(outcome)
        self._accept(outcome)

    @property
    def unread_apis(self) -> set[str]:
        """Configurations of objects that end the wait only if their API responds."""
        configs = {
            self._last[key].provider_config
            for key in self._pending
            if key in self._last and self._needs_api(self._last[key])
        }
        return configs - self._silent_since.keys()

    def record_silence(self, provider_config: str, since: datetime | None) -> None:
        """Record whether an API responds, and accept the outcomes that waited for it."""
        self._silent_since[provider_config] = since
        for key in list(self._pending):
            if key in self._last:
                self._accept(self._last[key])

    def forget_silences(self) -> None:
        """Read again whether the APIs respond."""
        self._silent_since.clear()

    def accept_lasting(self) -> None:
        """Accept the holds that have not changed since the last call."""
        last = {each.event_id for key, each in self._last.items() if key in self._pending}
        self._lasting, unchanged = last, last & self._lasting
        self._accept_holds(unchanged)

    @property
    def unconfirmed(self) -> Sequence[Outcome]:
        """The outcomes that end the wait once their objects have stayed ready."""
        last = (self._last.get(key) for key in self._pending)
        return [
            each
            for each in last
            if each is not None
            and self._needs_confirmation(each)
            and each.generation >= self._generations[each.key]
        ]

    def confirm(self, outcome: Outcome) -> None:
        """Accept an outcome although no requested read has confirmed it."""
        self._confirmed.add(outcome.event_id)
        if self._last.get(outcome.key) == outcome and outcome.key in self._pending:
            self._accept(outcome)

    def _needs_confirmation(self, outcome: Outcome) -> bool:
        return self._ready and outcome.is_unconfirmed and outcome.event_id not in self._confirmed

    def accept_all_holds(self) -> None:
        """Accept the holds that another resource of this wait may have ended, but did not."""
        self._accept_holds({each.event_id for each in self._last.values()})

    def _accept_holds(self, events: Container[str]) -> None:
        for key in list(self._pending):
            outcome = self._last.get(key)
            if outcome is not None and outcome.event_id in events:
                self._accept(outcome, lasts=True)

    def _accept(self, outcome: Outcome, *, lasts: bool = False) -> None:
        if self._may_be_momentary(outcome) and not lasts:
            return
        if outcome.generation >= self._generations[outcome.key] and self._ends_the_wait(outcome):
            del self._pending[outcome.key]
            self.accepted[outcome.key] = outcome

    def _may_be_momentary(self, outcome: Outcome) -> bool:
        """Return whether another awaited resource may end the hold.

        The roles may have decided it before they read that resource.
        """
        hold = hold_of(outcome.outcome, outcome.reason)
        if hold is None:
            return False
        if hold is Hold.DANGLING:
            return len(self._generations) > 1
        ending_kind = _ENDING_KINDS.get(hold.ended_by)
        return any(key.kind == ending_kind for key in self._generations)

    def _ends_the_wait(self, outcome: Outcome) -> bool:
        is_starting = outcome.outcome == "Converged" and outcome.not_ready is not None
        if outcome.outcome not in self._outcomes or (self._ready and is_starting):
            return False
        if self._needs_confirmation(outcome):
            return False
        if not self._needs_api(outcome):
            return True
        config = outcome.provider_config
        return config in self._silent_since and self._silent_since[config] is None

    def _needs_api(self, outcome: Outcome) -> bool:
        return self._ready and outcome.outcome == "Converged" and bool(outcome.provider_config)

    def _find_unready(self, outcome: Outcome) -> Condition | None:
        since = self._silent_since.get(outcome.provider_config)
        ready = next((each for each in outcome.conditions if each.type == "Ready"), None)
        if since is not None and ready is not None and ready.status == "True":
            return unknown_readiness(outcome.provider_config, since, ready)
        return outcome.not_ready

    def describe_pending(self) -> str:
        """Return the pending resources, and the status of the first of them."""
        text = "; ".join(self._describe(key) for key in self.pending[:_MAX_DESCRIBED])
        more = len(self._pending) - _MAX_DESCRIBED
        return f"{text}; and {more} more" if more > 0 else text

    def _describe(self, key: ResourceKey) -> str:
        last = self._last.get(key)
        status = "no outcome received"
        if last is not None:
            condition = self._find_unready(last) if last.outcome == "Converged" else None
            source, outcome = (
                (last, last.outcome) if condition is None else (condition, "Converged, not ready")
            )
            reason = f"{source.reason}: {source.message}" if source.message else source.reason
            if self._needs_confirmation(last):
                outcome, reason = "Converged, not ready", UNCONFIRMED_MESSAGE
            status = f"last outcome: {outcome} of generation {last.generation} ({reason})"
        expected = f"generation {self._generations[key]} did not reach the expected outcome"
        return f"{key}: {expected}; {status}"


async def wait(bus: JetStreamClientBus, waiting: Waiting, timeout_seconds: float) -> None:
    """Wait until all resources have an accepted outcome; raises ``WaitTimeoutError``."""
    if waiting.is_over:
        return
    try:
        async with asyncio.timeout(timeout_seconds):
            async with bus.outcomes(_filters(waiting.pending), after=None) as feed:
                requests = asyncio.create_task(request_reads(bus, waiting))
                try:
                    await _read_and_follow(bus, waiting, feed)
                finally:
                    requests.cancel()
                    await asyncio.wait({requests})
    except TimeoutError:
        waiting.accept_all_holds()
        if waiting.is_over:
            return
        raise WaitTimeoutError(
            f"{plural(len(waiting.pending), 'resource')} not settled after {timeout_seconds:g} s: "
            f"{waiting.describe_pending()}"
        ) from None


async def _read_and_follow(bus: JetStreamClientBus, waiting: Waiting, feed: OutcomeFeed) -> None:
    while True:
        waiting.forget_silences()
        for stored in await bus.last_outcomes(waiting.pending):
            waiting.record(as_outcome(stored))
        await _read_silences(bus, waiting)
        try:
            async with asyncio.timeout(_REREAD_SECONDS):
                while not waiting.is_over:
                    for stored in await feed.next_outcomes():
                        waiting.record(as_outcome(stored))
                    await _read_silences(bus, waiting)
        except TimeoutError:
            waiting.accept_lasting()
            if waiting.is_over:
                return
            continue
        return


async def request_reads(bus: JetStreamClientBus, waiting: Waiting) -> None:
    """Request a read of each object that has been ready for long enough, until canceled.

    Its last read may be as old as a listing, so only a new one shows that it stayed ready.
    """
    clock = asyncio.get_running_loop().time
    due: dict[str, float] = {}
    while True:
        outcomes = {each.event_id: each for each in waiting.unconfirmed}
        due = {name: due.get(name) or clock() + _wait_seconds(outcomes[name]) for name in outcomes}
        ready_to_read = [each for name, each in outcomes.items() if due[name] <= clock()]
        if ready_to_read:
            messages = [reconcile_request(each.key, _READ_REASON) for each in ready_to_read]
            try:
                await bus.store(messages, timeout_seconds=_REREAD_SECONDS)
            except BusDeniedError:  # the user may only read
                await asyncio.sleep(UNREQUESTED_SECONDS)
                for each in ready_to_read:
                    waiting.confirm(each)
            except (BusError, WaitTimeoutError) as error:
                _logger.info("failed to request a read; retrying", error=str(error))
            for each in ready_to_read:
                due[each.event_id] = clock() + _REREAD_SECONDS
        await asyncio.sleep(_CHECK_SECONDS)


def _wait_seconds(outcome: Outcome) -> float:
    """Return the time after which a read shows that the object of an outcome stayed ready."""
    # A process that awaits no such outcome need not load it.
    from reconciler.resource.availability import available_from  # noqa: PLC0415

    known = outcome.availability
    if known is None or known.since is None:
        return 0.0
    total = (available_from(known.since, known.interruptions) - known.since).total_seconds()
    # The clock of this machine may be wrong. If a read begins too early, another one is requested.
    passed = (datetime.now(UTC) - known.since).total_seconds()
    return min(max(total - passed, 0.0), total) + _CHECK_SECONDS


async def _read_silences(bus: JetStreamClientBus, waiting: Waiting) -> None:
    """Read whether the APIs of ready objects respond, once per configuration and reread."""
    for config in sorted(waiting.unread_apis):
        waiting.record_silence(config, await bus.readable_silence(config))


def _filters(keys: Sequence[ResourceKey]) -> list[str]:
    """Return one filter per resource if there are few, else one filter with common tokens."""
    if len(keys) <= _EXACT_FILTERS:
        return [key.tokens for key in keys]
    namespaces = {key.namespace for key in keys}
    kinds = {key.kind for key in keys}
    namespace = namespaces.pop() if len(namespaces) == 1 else "*"
    kind = kinds.pop() if len(kinds) == 1 else "*"
    return [f"{namespace}.{kind}.*"]
