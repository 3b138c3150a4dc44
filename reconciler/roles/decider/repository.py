"""Load, cache and commit the states of resources."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from events.integrity import LogDamage, LogDamagedError
from events.log import LogEvent
from events.names import ResourceKey
from reconciler.ports import (
    EVENTS_BETWEEN_SAVES,
    AppendLostError,
    EventLog,
    LoadedResource,
    ResourceAppend,
)
from reconciler.resource.evolve import HistoryGapError, fold
from reconciler.resource.state import NEW, STATE_SCHEMA, ResourceState

MAX_EVENTS_AT_ONCE = 1_000
"""JetStream's limit for one atomic batch."""

_FEW_RESOURCES = 4
"""Up to this number, resources are appended separately and concurrently. A batch pays off above
it."""

_CACHED_RESOURCES = 50_000


class KeptResource(msgspec.Struct, frozen=True, gc=False):
    """A resource's state, and its last position in the log."""

    state: ResourceState
    position: int
    cached_version: int = 0


class _CachedState(msgspec.Struct, frozen=True, gc=False):
    schema: int
    state: msgspec.Raw


class Commit(msgspec.Struct, frozen=True, gc=False):
    """A turn to store: the resource before it, the state after it, and its events."""

    key: ResourceKey
    base: KeptResource
    after: ResourceState
    events: Sequence[LogEvent]


_logger = structlog.get_logger(__name__)
_encoder = msgspec.msgpack.Encoder()
_cached_decoder = msgspec.msgpack.Decoder(_CachedState)
_state_decoder = msgspec.msgpack.Decoder(ResourceState)


class ResourceRepository:
    """The states of resources, folded from the log and cached.

    A cached state may be stale, because another decider may write. A commit is a compare-and-set,
    so a stale state can lead to a decision, but never to a write.
    """

    def __init__(self, log: EventLog, *, cached_resources: int = _CACHED_RESOURCES) -> None:
        self._log = log
        self._kept: OrderedDict[ResourceKey, KeptResource] = OrderedDict()
        self._most = cached_resources
        self.broken: dict[ResourceKey, ValueError] = {}
        self._held: set[ResourceKey] = set()

    async def get(self, keys: Sequence[ResourceKey]) -> dict[ResourceKey, KeptResource]:
        """Return the states of resources, loading all uncached ones together.

        Resources with a damaged history are omitted, and listed in ``broken``.
        """
        missing = [key for key in keys if key not in self._kept and key not in self._held]
        if missing:
            await self._load(missing)
        return {key: self._kept[key] for key in keys if key in self._kept}

    async def newest(self, keys: Sequence[ResourceKey]) -> dict[ResourceKey, KeptResource]:
        """Return the current states, also of resources that another decider may write."""
        kept = [key for key in keys if key in self._kept]
        if kept:
            positions = await self._log.newest_positions(kept)
            self.forget([key for key in kept if positions[key] != self._kept[key].position])
        return await self.get(keys)

    def knows(self, key: ResourceKey) -> bool:
        """Return whether a resource's state or damage is cached."""
        return key in self._kept or key in self.broken

    def hold(self, damage: LogDamage) -> None:
        """Exclude a resource permanently, because its newest events are lost."""
        key = ResourceKey.parse(damage.resource)
        self._held.add(key)
        self._kept.pop(key, None)
        self.broken[key] = LogDamagedError(damage)

    def forget(self, keys: Sequence[ResourceKey]) -> None:
        """Drop cached states, which may differ from the log."""
        for key in keys:
            self._kept.pop(key, None)

    async def commit(self, commits: Sequence[Commit]) -> list[Commit]:
        """Append the turns together. Return those with a conflict with another writer.

        Nothing is stored for these, and their newest states are cached instead. Turns without
        events are also checked, because they may have events with the newest state.
        """
        outdated = await self._outdated([commit for commit in commits if not commit.events])
        remaining = [commit for commit in commits if commit.events]
        if len(remaining) <= _FEW_RESOURCES:
            lost_each = await asyncio.gather(*(self._commit([each]) for each in remaining))
            lost = [each for some in lost_each for each in some]
        else:
            lost = await self._commit(remaining)
        self._trim()
        return lost + outdated

    async def _outdated(self, commits: Sequence[Commit]) -> list[Commit]:
        """Return turns that were decided from a stale state, and cache the newest states."""
        if not commits:
            return []
        newest = await self._log.newest_positions([commit.key for commit in commits])
        outdated = [each for each in commits if newest[each.key] != each.base.position]
        if outdated:
            keys = [commit.key for commit in outdated]
            self.forget(keys)
            await self._load(keys, from_leader=True)
        return outdated

    async def _commit(self, remaining: Sequence[Commit]) -> list[Commit]:
        lost: list[Commit] = []
        while remaining:
            try:
                await self._append(remaining)
            except AppendLostError:
                conflicting = await self._find_conflicting(remaining)
                lost += conflicting
                remaining = [commit for commit in remaining if commit not in conflicting]
            except BaseException:
                self.forget([commit.key for commit in remaining])
                raise
            else:
                break
        return lost

    async def _append(self, commits: Sequence[Commit]) -> None:
        appends = [ResourceAppend(each.key, each.events, each.base.position) for each in commits]
        positions = await self._log.append(appends)
        states: dict[ResourceKey, tuple[int, bytes]] = {}
        for each, position in zip(commits, positions, strict=True):
            version = each.base.cached_version
            if each.after.version - version >= EVENTS_BETWEEN_SAVES:
                version = each.after.version
                if (cached := _try_to_encode(each.after)) is not None:
                    states[each.key] = (position, cached)
            self._kept[each.key] = KeptResource(each.after, position, version)
            self._kept.move_to_end(each.key)
        if states:
            await self._log.save_states(states)

    async def _find_conflicting(self, commits: Sequence[Commit]) -> list[Commit]:
        """Return the turns whose resources another writer has changed. Cache the new states."""
        self.forget([commit.key for commit in commits])
        await self._load([commit.key for commit in commits], from_leader=True)
        for each in commits:
            self._check_progress(each)
        return [
            each
            for each in commits
            if each.key not in self._kept or self._kept[each.key].position != each.base.position
        ]

    def _check_progress(self, commit: Commit) -> None:
        """Exclude a resource whose history became shorter, because a log only grows."""
        kept, base = self._kept.get(commit.key), commit.base.state.version
        if kept is not None and kept.state.version < base:
            actual = f"a history that ends with event {kept.state.version}"
            expected = f"event {base}"
            self.hold(LogDamage("Lost", kept.position, base, expected, actual, str(commit.key)))

    async def _load(self, keys: Sequence[ResourceKey], *, from_leader: bool = False) -> None:
        outdated = self._keep(await self._log.load(keys, from_leader=from_leader))
        if outdated:
            self._keep(await self._log.load(outdated, from_leader=from_leader, use_cache=False))

    def _keep(self, loaded: Mapping[ResourceKey, LoadedResource]) -> list[ResourceKey]:
        """Fold loaded resources. Return those whose cached state cannot be used."""
        outdated: list[ResourceKey] = []
        for key, resource in loaded.items():
            if resource.damage is not None:
                self.broken[key] = LogDamagedError(resource.damage)
                continue
            state = NEW if resource.cached is None else decode_state(resource.cached)
            if state is None:
                outdated.append(key)
                continue
            try:
                folded = fold(resource.events, state)
            except HistoryGapError as gap:
                self.broken[key] = gap
                continue
            self.broken.pop(key, None)
            self._kept[key] = KeptResource(folded, resource.last_position, state.version)
        return outdated

    def _trim(self) -> None:
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


def _try_to_encode(state: ResourceState) -> bytes | None:
    """Encode a cached state. Return None if that is impossible, as for some numbers of JSON.

    Its events are already stored, so the resource can be folded from them without a cached state.
    """
    try:
        return encode_state(state)
    except (OverflowError, RecursionError) as error:
        _logger.warning("caching a state failed", error=str(error))
        return None


def encode_state(state: ResourceState) -> bytes:
    """Encode a state for the cache."""
    return _encoder.encode(_CachedState(STATE_SCHEMA, msgspec.Raw(_encoder.encode(state))))


def decode_state(payload: bytes) -> ResourceState | None:
    """Decode a cached state. Return None if its schema differs or it is damaged."""
    try:
        cached = _cached_decoder.decode(payload)
        return _state_decoder.decode(cached.state) if cached.schema == STATE_SCHEMA else None
    except msgspec.DecodeError:
        return None
