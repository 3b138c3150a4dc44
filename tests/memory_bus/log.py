"""The event log: compare-and-set for each resource, atomic batches, reads that may be stale."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from events.envelope import decode_log, encode_log
from events.integrity import LogChains, LogDamage
from events.names import ResourceKey
from reconciler.ports import (
    AppendLostError,
    DamageListener,
    EventFeed,
    LoadedResource,
    ResourceAppend,
    StoredEvent,
)
from tests.memory_bus.capacity import Capacity
from tests.memory_bus.network import Network
from tests.memory_bus.reading import Pushed
from tests.memory_bus.recorded import RecordedLog

LOG_ID = "simulated"
_MAX_SINGLE_APPENDS = 2


class LogStream:
    """The log as the server stores it."""

    def __init__(self, time: Callable[[], float], *, may_be_damaged: bool = False) -> None:
        self._time = time
        self.recorded = RecordedLog() if may_be_damaged else None
        self.events: list[StoredEvent] = []
        self.payloads: list[bytes] = []
        self.stored_at: list[float] = []
        self._of_resource: dict[ResourceKey, list[StoredEvent]] = {}
        self._states: dict[ResourceKey, tuple[int, bytes]] = {}
        self._follower_position = 0
        self._followers_lag_until = 0.0
        self.checks_expectations = True
        self.capacity = Capacity("LOG_1")
        self.before_store: list[Callable[[ResourceAppend], None]] = []
        self.after_store: list[Callable[[ResourceAppend, Sequence[StoredEvent]], None]] = []

    @property
    def last_position(self) -> int:
        """The position of the newest event."""
        return len(self.events)

    def head(self, key: ResourceKey) -> int:
        """Return the position of a resource's newest event, 0 without events."""
        mine = self._of_resource.get(key)
        return mine[-1].position if mine else 0

    def append(self, appends: Sequence[ResourceAppend]) -> list[int]:
        """Store all or nothing; raises ``AppendLostError`` or ``StreamFullError``."""
        for each in appends:
            head_version = self.head(each.key)
            if self.checks_expectations and head_version != each.expected_position:
                raise AppendLostError(f"wrong last sequence: {head_version}")
        self.capacity.reserve(sum(len(each.events) for each in appends))
        return [self._store(each) for each in appends]

    def _store(self, append: ResourceAppend) -> int:
        stored: list[StoredEvent] = []
        mine = self._of_resource.setdefault(append.key, [])
        for hook in self.before_store:
            hook(append)
        for event in append.events:
            payload = encode_log(event)
            stored.append(StoredEvent(len(self.events) + 1, decode_log(payload)))
            self.events.append(stored[-1])
            self.payloads.append(payload)
            self.stored_at.append(self._time())
            if self.recorded is not None:
                self.recorded.append(append.key, stored[-1].event, payload)
            mine.append(stored[-1])
        for hook in self.after_store:
            hook(append, stored)
        return len(self.events)

    # --- reading

    def let_followers_lag(self, seconds: float) -> None:
        """Make reads from a follower return nothing new for some time."""
        if self._time() >= self._followers_lag_until:
            self._follower_position = len(self.events)
        self._followers_lag_until = max(self._followers_lag_until, self._time() + seconds)

    def heal(self) -> None:
        """Make every read return all events."""
        self._followers_lag_until = 0.0

    def _visible(self) -> int:
        lagging = self._time() < self._followers_lag_until
        return self._follower_position if lagging else len(self.events)

    def read_kind(self, namespace: str, kind: str) -> list[StoredEvent]:
        """Return all events of a kind's resources; such a read waits for a lagging follower."""
        return [
            each
            for key, events in self._of_resource.items()
            if (key.namespace, key.kind) == (namespace, kind)
            for each in events
        ]

    def newest_version(self, key: ResourceKey) -> int:
        """Return the version of a resource's newest event, 0 without events."""
        events = self._of_resource.get(key)
        return events[-1].event.resourceversion if events else 0

    def load(self, key: ResourceKey, *, from_leader: bool, use_cache: bool) -> LoadedResource:
        """Return a resource's newest cached state, and the events after it."""
        visible = len(self.events) if from_leader else self._visible()
        events = [each for each in self._of_resource.get(key, ()) if each.position <= visible]
        head = events[-1].position if events else 0
        position, payload = self._states.get(key, (0, None))
        if not use_cache or payload is None or position > head:
            position, payload = 0, None
        later = [each.event for each in events if each.position > position]
        plain = LoadedResource(head, payload, later)
        return plain if self.recorded is None else self.recorded.loaded(key, plain)

    # --- states

    def save_states(self, states: Mapping[ResourceKey, tuple[int, bytes]]) -> None:
        """Store cached states."""
        for key, state in states.items():
            self._states.pop(key, None)  # the newest one is the last
            self._states[key] = state
        if self.recorded is not None:
            self.recorded.keep(states)

    @property
    def newest_state(self) -> tuple[str, int]:
        """The resource and position of the newest cached state, "" and 0 without one."""
        key, (position, _payload) = next(reversed(self._states.items()), ("", (0, b"")))
        return str(key), position

    def erase_states(self) -> None:
        """Delete all cached states."""
        self._states.clear()


class MemoryLog:
    """Implements ``reconciler.ports.EventLog`` for one process."""

    def __init__(self, stream: LogStream, network: Network) -> None:
        self._stream = stream
        self._network = network

    @property
    def log_id(self) -> str:
        return LOG_ID

    @property
    def epoch(self) -> str:
        return ""

    async def load(
        self,
        keys: Sequence[ResourceKey],
        *,
        from_leader: bool = False,
        use_cache: bool = True,
    ) -> Mapping[ResourceKey, LoadedResource]:
        stream = self._stream

        def read() -> dict[ResourceKey, LoadedResource]:
            return {
                key: stream.load(key, from_leader=from_leader, use_cache=use_cache) for key in keys
            }

        return await self._network.ask("load", read)

    async def append(self, appends: Sequence[ResourceAppend]) -> Sequence[int]:
        if len(appends) > 1 or len(appends[0].events) > _MAX_SINGLE_APPENDS:
            return await self._network.ask("append", lambda: self._stream.append(appends))
        [each] = appends
        position = each.expected_position
        for event in each.events:  # like the JetStream log: a crash may leave half a turn
            single = ResourceAppend(each.key, [event], position)
            [position] = await self._network.ask(
                "append", lambda single=single: self._stream.append([single])
            )
        return [position]

    async def save_states(self, states: Mapping[ResourceKey, tuple[int, bytes]]) -> None:
        self._network.send("states", lambda: self._stream.save_states(states))

    async def newest_positions(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, int]:
        return await self._network.ask(
            "load", lambda: {key: self._stream.head(key) for key in keys}
        )

    async def newest_versions(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, int]:
        return {key: self._stream.newest_version(key) for key in keys}

    async def read_kind(self, namespace: str, kind: str) -> Sequence[StoredEvent]:
        return await self._network.ask(
            "configurations", lambda: self._stream.read_kind(namespace, kind)
        )

    def follow(
        self,
        after: int = 0,
        *,
        on_damage: DamageListener | None = None,
        max_resources: int | None = None,
    ) -> AbstractAsyncContextManager[EventFeed]:
        return self._follow(
            after, LogChains(on_damage or _ignore, after=after, max_resources=max_resources)
        )

    @asynccontextmanager
    async def _follow(self, after: int, chains: LogChains) -> AsyncGenerator[EventFeed]:
        stream, network = self._stream, self._network
        target = await network.ask("feed", lambda: stream.last_position)
        if stream.recorded is None:
            yield _Feed(stream, network, after, target)
        else:
            yield _CheckedFeed(stream, network, after, target, chains)

    async def missing_events(self) -> int:
        recorded = self._stream.recorded
        missing = 0 if recorded is None else recorded.missing
        return await self._network.ask("position", lambda: missing)

    @property
    def restored_as_of(self) -> str:
        return ""

    async def newest_state(self) -> tuple[str, int]:
        return self._stream.newest_state

    async def last_position(self) -> int:
        return await self._network.ask("position", lambda: self._stream.last_position)


class _Feed:
    """Implements ``reconciler.ports.EventFeed``."""

    def __init__(self, stream: LogStream, network: Network, after: int, target: int) -> None:
        self._target = target
        self._pushed = Pushed(stream.events, network, after, "feed")
        self.position = after
        stream.after_store.append(lambda _append, _stored: self._pushed.send())
        self._pushed.send()

    @property
    def caught_up(self) -> bool:
        return self.position >= self._target

    async def next_events(self) -> Sequence[StoredEvent]:
        events = await self._pushed.next()
        self.position = events[-1].position
        return events


class _CheckedFeed:
    """A feed of a log that may be damaged, like ``infra.bus.event_log.CheckedFeed``."""

    def __init__(
        self,
        stream: LogStream,
        network: Network,
        after: int,
        target: int,
        chains: LogChains,
    ) -> None:
        assert stream.recorded is not None
        self._target = target
        self._chains = chains
        self._pushed = Pushed(stream.recorded.events, network, after, "feed")
        self.position = after
        stream.after_store.append(lambda _append, _stored: self._pushed.send())
        self._pushed.send()
        self._verify_end()

    @property
    def caught_up(self) -> bool:
        return self.position >= self._target

    async def next_events(self) -> Sequence[StoredEvent]:
        arrived = await self._pushed.next()
        found = [
            (each.position, self._chains.verify_next(each)) for each in arrived if each is not None
        ]
        self.position += len(arrived)
        self._verify_end()
        return [StoredEvent(position, event) for position, event in found if event is not None]

    def _verify_end(self) -> None:
        if self.caught_up:
            self._chains.end(self.position)


def _ignore(_damage: LogDamage) -> None:
    return
