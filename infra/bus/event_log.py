"""The event log in the LOG_1 stream: one message per event, one compare-and-set per resource."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple

import structlog
from nats.aio.client import Client

from events.envelope import encode_log, version_in
from events.integrity import (
    DIGEST_HEADER,
    HistoryChain,
    LogChains,
    LogDamage,
    LogDamagedError,
    RecordedEvent,
)
from events.log import LogEvent, log_suffix
from events.names import ResourceKey
from events.subjects import cached_state, log_filter, log_filter_of
from infra.bus.removals import with_remedy
from infra.bus.retries import retry_read
from infra.bus.streams import LOG, STATES, LogIdentity, find_log
from infra.jetstream.connection import is_clustered
from infra.jetstream.errors import (
    AppendConflictError,
    BusDeniedError,
    BusUnavailableError,
    MessageTooLargeError,
    NotFoundOnBusError,
)
from infra.jetstream.follow import Follower, follow
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import publish_many
from infra.jetstream.reads import (
    StoredMessage,
    SubjectStart,
    last_for_subjects,
    last_from_leader,
    read_starts,
    stream_state,
)
from infra.jetstream.sequences import Entry, Head, Sequences, digest_of
from reconciler.failpoints import Failpoint, is_armed, reach
from reconciler.ports import (
    EVENTS_BETWEEN_SAVES,
    AppendLostError,
    AppendRefusedError,
    DamageListener,
    LoadedResource,
    ResourceAppend,
    StoredEvent,
)

_POSITION_HEADER: Final = "Reconciler-Position"
_FACT_SUFFIX: Final = ".fact"
_MAX_SINGLE_APPENDS: Final = 2
ALL_RESOURCES: Final = "*.*.*"
"""The ``namespace.kind.name`` pattern that matches all resources."""

_LEADER_ATTEMPTS: Final = 40
_LEADER_PAUSE_SECONDS: Final = 0.05

_logger = structlog.get_logger(__name__)


class _Heads(NamedTuple):
    """A resource's newest position, and its newest message in each event class.

    ``messages``: by event version; empty if they do not reach the newest position.
    """

    newest: int
    messages: Mapping[int, StoredMessage]


class JetStreamLog:
    """Implements ``reconciler.ports.EventLog``. Create it with ``open_log``.

    ``identity``: that of the log when it was opened. ``log_id``, ``epoch`` and ``restored_as_of``
    are its parts. They are attributes, because each decision reads them.
    """

    def __init__(self, nc: Client, identity: LogIdentity) -> None:
        self.identity = identity
        self.log_id = identity.log_id
        self.epoch = identity.epoch
        self.restored_as_of = identity.restored_as_of
        self._nc = nc
        self._sequences = Sequences(nc, LOG, sequence_of=log_filter_of, has_digests=True)

    # --- writing

    async def append(self, appends: Sequence[ResourceAppend]) -> Sequence[int]:
        """Append to many resources in one atomic batch; see the port.

        One or two events of one resource are published one after the other instead, which is
        several times faster than a batch of two (ADR 0007). A crash between them is harmless: the
        cause is redelivered, and the decider derives the missing event from the state.
        """
        heads: dict[str, Head] = {}
        entries: list[Entry] = []
        for key, events, expected_position in appends:
            sequence = log_filter(key)
            # The head contains the digest of the history so far.
            cached = self._sequences.cached_head(sequence, expected_position)
            heads[sequence] = cached or await self._sequences.head_at(expected_position)
            entries += [_entry(sequence, event) for event in events]
        with _port_errors():
            if len(appends) == 1 and len(entries) <= _MAX_SINGLE_APPENDS:
                return [await self._append_one_by_one(entries, heads)]
            on_half_sent = (
                self._reach_half_sent if is_armed(Failpoint.DECIDER_BATCH_HALF_SENT) else None
            )
            positions = await self._sequences.append(entries, heads, before_commit=on_half_sent)
        last = accumulate(len(each.events) for each in appends)
        return [positions[count - 1] for count in last]

    async def _append_one_by_one(self, entries: Sequence[Entry], heads: dict[str, Head]) -> int:
        position = 0
        for number, entry in enumerate(entries):
            if number:
                reach(Failpoint.DECIDER_BETWEEN_EVENTS)
                cached = self._sequences.cached_head(entry.sequence, position)
                heads[entry.sequence] = cached or await self._sequences.head_at(position)
            [position] = await self._sequences.append([entry], heads)
        return position

    async def _reach_half_sent(self) -> None:
        await self._nc.flush()  # the server must receive the events, as in a real crash
        reach(Failpoint.DECIDER_BATCH_HALF_SENT)

    async def save_states(self, states: Mapping[ResourceKey, tuple[int, bytes]]) -> None:
        """Cache states. A failure is only logged, because the cache only saves time."""
        messages = [
            OutgoingMessage(
                cached_state(key),
                payload,
                {_POSITION_HEADER: str(position), **self._digest_header(key, position)},
            )
            for key, (position, payload) in states.items()
        ]
        for result in await publish_many(self._nc, messages):
            if isinstance(result, Exception):
                _logger.info("failed to store a cached state", error=str(result))

    def _digest_header(self, key: ResourceKey, position: int) -> dict[str, str]:
        head = self._sequences.cached_head(log_filter(key), position)
        return {DIGEST_HEADER: head.digest} if head is not None and head.digest else {}

    # --- loading

    async def newest_positions(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, int]:
        """Return the newest position of each resource; 0 if it has no events.

        A single server returns all positions in one response. In a cluster, the server might lag,
        so each resource is read from the leader.
        """
        newest = await self._newest(keys)
        return {key: newest[key].seq if key in newest else 0 for key in keys}

    async def newest_versions(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, int]:
        """Return the newest version of each resource; 0 if it has none or is unreadable."""
        newest = await self._newest(keys)
        return {key: version_in(newest[key].payload) if key in newest else 0 for key in keys}

    async def _newest(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, StoredMessage]:
        names = {log_filter(key): key for key in keys}
        newest = await self._sequences.newest(names, from_leader=is_clustered(self._nc))
        return {names[name]: message for name, message in newest.items()}

    async def load(
        self,
        keys: Sequence[ResourceKey],
        *,
        from_leader: bool = False,
        use_cache: bool = True,
    ) -> Mapping[ResourceKey, LoadedResource]:
        """Load many resources.

        One read loads all short histories. Longer histories need one more read for all cached
        states, and each needs a few concurrent reads for its remaining events.
        """
        loaded, longer = await self._load_short(keys, from_leader=from_leader)
        if longer:
            candidates = [key for key, heads in longer.items() if _may_have_state(heads)]
            states = await self._cached_states(candidates) if use_cache and candidates else {}
            loaded |= await self._load_complete(
                {key: heads for key, heads in longer.items() if key not in states}
            )
            longer = {key: heads for key, heads in longer.items() if key not in loaded}
            rest = await asyncio.gather(
                *(self._load_long(key, heads, states.get(key)) for key, heads in longer.items())
            )
            loaded |= dict(zip(longer, rest, strict=True))
        return loaded

    async def _load_short(
        self, keys: Sequence[ResourceKey], *, from_leader: bool
    ) -> tuple[dict[ResourceKey, LoadedResource], dict[ResourceKey, _Heads]]:
        """Load resources with at most one event per class. Return the heads of the others."""
        filters = {log_filter(key): key for key in keys}
        heads: dict[ResourceKey, list[StoredMessage]] = {key: [] for key in keys}
        for message in await last_for_subjects(self._nc, LOG, list(filters)):
            heads[_key_of(message.subject)].append(message)
        leaders = await self._sequences.newest(filters, from_leader=True) if from_leader else {}
        loaded: dict[ResourceKey, LoadedResource] = {}
        longer: dict[ResourceKey, _Heads] = {}
        for key, messages in heads.items():
            head = max((message.seq for message in messages), default=0)
            newest = head
            if from_leader:
                leaders_last = leaders.get(log_filter(key))
                newest = 0 if leaders_last is None else leaders_last.seq
            by_version = _by_version(messages) if newest == head else {}
            # Versions are numbered from 1 without gaps, so the highest one is the number of events.
            is_complete = newest == head and max(by_version, default=0) == len(messages)
            short = self._complete_history(key, messages) if is_complete else None
            if short is None:
                longer[key] = _Heads(newest, by_version)
            else:
                loaded[key] = short
        return loaded, longer

    async def _load_complete(
        self, longer: Mapping[ResourceKey, _Heads]
    ) -> dict[ResourceKey, LoadedResource]:
        """Load the complete histories of many resources, except damaged ones.

        For each subject, it reads only the missing events before the newest one. With a wildcard or
        an upper limit, the server would scan the log message by message. Facts come first, because
        most histories have several.
        """
        loaded_messages = {key: dict(heads.messages) for key, heads in longer.items()}
        subjects = {
            key: sorted((head.subject for head in heads.messages.values()), key=_facts_sort_key)
            for key, heads in longer.items()
        }
        while starts := {
            key: SubjectStart(subjects[key].pop(0), missing)
            for key, by_version in loaded_messages.items()
            if subjects[key] and (missing := max(by_version, default=0) - len(by_version)) > 0
        }:
            read = await read_starts(self._nc, LOG, list(starts.values()))
            for key, messages in zip(starts, read, strict=True):
                loaded_messages[key] |= _by_version(messages)
        complete = {
            key: self._complete_history(key, by_version.values())
            for key, by_version in loaded_messages.items()
            if by_version
        }
        return {
            key: resource
            for key, resource in complete.items()
            if resource is not None and resource.last_position == longer[key].newest
        }

    async def _load_long(
        self, key: ResourceKey, heads: _Heads, cached: StoredMessage | None
    ) -> LoadedResource:
        position = _position(cached)
        if position > heads.newest:
            cached, position = None, 0  # newer than the history, so it belongs to another log
        if cached is None:
            return await self._load_tail(key, HistoryChain(), heads.newest, None)
        if position == heads.newest:
            self._cache_head(key, HistoryChain(None, _cached_digest(cached), position))
            return LoadedResource(position, cached.payload, ())
        chain = HistoryChain(None, _cached_digest(cached), position)
        return await self._load_tail(key, chain, heads.newest, cached.payload)

    async def _load_tail(
        self, key: ResourceKey, chain: HistoryChain, head: int, cached: bytes | None
    ) -> LoadedResource:
        """Read the events after the end of a chain, and check that they continue the chain."""
        messages = await self._read_tail(key, chain.position, head)
        resource, events = str(key), list[LogEvent]()
        try:
            for message in messages:
                events.append(chain.verify_next(_to_recorded(message), resource))
        except LogDamagedError as error:
            return LoadedResource(messages[-1].seq, cached, events, error.damage)
        self._cache_head(key, chain)
        return LoadedResource(chain.position, cached, events)

    def _complete_history(
        self, key: ResourceKey, messages: Iterable[StoredMessage]
    ) -> LoadedResource | None:
        """Return the history if these messages are complete and valid, else None."""
        chain, resource, events = HistoryChain(), str(key), list[LogEvent]()
        try:
            for message in sorted(messages, key=attrgetter("seq")):
                events.append(chain.verify_next(_to_recorded(message), resource))
        except LogDamagedError:
            return None
        self._cache_head(key, chain)
        return LoadedResource(chain.position, None, events)

    async def _read_tail(self, key: ResourceKey, after: int, head: int) -> list[StoredMessage]:
        """Read a resource's events after a position, at least up to ``head``."""
        for _ in range(_LEADER_ATTEMPTS):
            messages = await self._sequences.read(log_filter(key), after=after)
            if messages and messages[-1].seq >= head:
                return messages
            await asyncio.sleep(_LEADER_PAUSE_SECONDS)  # the server that responded lags
        raise BusUnavailableError(f"{LOG}: no replica has returned {key} up to position {head} yet")

    def _cache_head(self, key: ResourceKey, chain: HistoryChain) -> None:
        head = Head(chain.position, chain.digest, chain.version)
        self._sequences.heads.put(log_filter(key), head)

    async def _cached_states(self, keys: Iterable[ResourceKey]) -> dict[ResourceKey, StoredMessage]:
        states = await last_for_subjects(self._nc, STATES, [cached_state(key) for key in keys])
        by_subject = {message.subject: message for message in states}
        return {
            key: by_subject[subject] for key in keys if (subject := cached_state(key)) in by_subject
        }

    # --- reading

    async def read_kind(self, namespace: str, kind: str) -> Sequence[StoredEvent]:
        """Read the histories of a kind's resources in a namespace, each up to any damage."""
        messages: list[StoredMessage] = []
        filters = [f"log.{namespace}.{kind}.>"]
        async with follow(self._nc, LOG, filters=filters) as follower:
            async for batch in follower.replay():  # ends at the leader's last event
                messages += batch
        return _valid_events_of(messages)

    def follow(
        self,
        after: int = 0,
        *,
        on_damage: DamageListener | None = None,
        max_resources: int | None = None,
        tokens: str = ALL_RESOURCES,
    ) -> AbstractAsyncContextManager[CheckedFeed]:
        """Follow the log after a position, for resources that match ``namespace.kind.name``."""
        is_whole = tokens == ALL_RESOURCES
        listener = on_damage or _log_damage
        chains = LogChains(listener, after=after, max_resources=max_resources, is_whole=is_whole)
        # Without a filter, messages on invalid subjects are also read and reported as damage.
        return self._follow(after, chains, ">" if is_whole else f"log.{tokens}.>")

    @asynccontextmanager
    async def _follow(
        self, after: int, chains: LogChains, subject_filter: str
    ) -> AsyncGenerator[CheckedFeed]:
        async with AsyncExitStack() as stack:
            log_from = follow(self._nc, LOG, filters=[subject_filter], start_seq=after + 1)
            follower = await retry_read(self._nc, lambda: stack.enter_async_context(log_from))
            feed = CheckedFeed(follower, chains)
            feed.check_end()
            yield feed

    async def missing_events(self) -> int:
        """Count the positions without an event. An intact log has none."""
        state = await stream_state(self._nc, LOG)
        return state.last_seq - state.messages

    async def newest_state(self) -> tuple[str, int]:
        """Return the resource and the position of the newest cached state.

        They are "" and 0 if there is none, or if this user may not read it.
        """
        with contextlib.suppress(NotFoundOnBusError, BusDeniedError):
            newest = await last_from_leader(self._nc, STATES, "state.>")
            if newest is not None:
                return newest.subject.partition(".")[2].replace(".", "/"), _position(newest)
        return "", 0

    async def last_position(self) -> int:
        """Return the position of the newest event."""
        return (await retry_read(self._nc, lambda: stream_state(self._nc, LOG))).last_seq


class CheckedFeed:
    """Implements ``reconciler.ports.EventFeed``. ``chains``: the state of the integrity checks."""

    def __init__(self, follower: Follower, chains: LogChains) -> None:
        self.chains = chains
        self._follower = follower

    @property
    def caught_up(self) -> bool:
        """Whether all events that were in the log at the start have been returned."""
        return self._follower.caught_up.is_set()

    @property
    def position(self) -> int:
        """The last position returned."""
        return self._follower.position

    async def next_events(self) -> Sequence[StoredEvent]:
        """Wait for the next events. An empty list means that the feed has caught up."""
        with with_remedy():
            messages = await anext(self._follower)
        events = _valid_events(messages, self.chains)
        self.check_end()
        return events

    def check_end(self) -> None:
        """Once caught up, check that no event is missing at the end of the log."""
        if self._follower.caught_up.is_set():
            self.chains.end(self._follower.position)


def _log_damage(damage: LogDamage) -> None:
    _logger.error("the log is damaged", where=str(damage), problem=damage.problem)


def _valid_events(messages: Iterable[StoredMessage], chains: LogChains) -> list[StoredEvent]:
    return [
        StoredEvent(message.seq, event)
        for message in messages
        if (event := chains.verify_next(_to_recorded(message))) is not None
    ]


def _valid_events_of(messages: Sequence[StoredMessage]) -> list[StoredEvent]:
    """Return the events of histories, each up to any damage, ignoring gaps in positions."""
    chains: dict[str, HistoryChain] = {}
    damaged: set[str] = set()
    events: list[StoredEvent] = []
    for message in messages:
        resource = str(_key_of(message.subject))
        if resource in damaged:
            continue
        chain = chains.setdefault(resource, HistoryChain())
        try:
            events.append(
                StoredEvent(message.seq, chain.verify_next(_to_recorded(message), resource))
            )
        except LogDamagedError as error:
            damaged.add(resource)
            _log_damage(error.damage)
    return events


async def open_log(nc: Client) -> JetStreamLog:
    """Open the log.

    Raises:
        NotFoundOnBusError: no log exists yet.
    """
    try:
        identity = await find_log(nc)
    except NotFoundOnBusError:
        raise NotFoundOnBusError(
            "this server has no event log yet; create it with `reconciler init`, or start "
            "everything with `reconciler up`"
        ) from None
    return JetStreamLog(nc, identity)


def _entry(sequence: str, event: LogEvent) -> Entry:
    # Replace the wildcard, the filter's last token.
    subject = sequence[:-1] + log_suffix(event.data)
    return Entry(sequence, event.resourceversion, subject, encode_log(event))


@contextlib.contextmanager
def _port_errors() -> Generator[None]:
    """Convert errors to those of the port's ``append``."""
    try:
        yield
    except AppendConflictError as conflict:
        raise AppendLostError(str(conflict)) from conflict
    except MessageTooLargeError as error:
        raise AppendRefusedError(str(error)) from error


def _position(cached: StoredMessage | None) -> int:
    if cached is None or cached.headers is None:
        return 0
    text = cached.headers.get(_POSITION_HEADER, "0")
    return int(text) if text.isdecimal() else 0


def _cached_digest(cached: StoredMessage) -> str:
    """Return the digest of the history in a cached state, or "" if it has none."""
    return (cached.headers or {}).get(DIGEST_HEADER, "")


def _key_of(subject: str) -> ResourceKey:
    """Return the resource of a log subject, even if its event class is invalid."""
    return ResourceKey(*subject.split(".")[1:4])


def _may_have_state(heads: _Heads) -> bool:
    """Return whether a history may have a cached state: it is long or of unknown length."""
    return max(heads.messages, default=EVENTS_BETWEEN_SAVES) >= EVENTS_BETWEEN_SAVES


def _facts_sort_key(subject: str) -> bool:
    return not subject.endswith(_FACT_SUFFIX)


def _by_version(messages: Iterable[StoredMessage]) -> dict[int, StoredMessage]:
    """Return the messages by event version, except those that are not events."""
    by_version = {version_in(message.payload): message for message in messages}
    by_version.pop(0, None)
    return by_version


def _to_recorded(message: StoredMessage) -> RecordedEvent:
    return RecordedEvent(message.seq, message.subject, message.payload, digest_of(message))
