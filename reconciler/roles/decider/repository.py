"""Load, cache and commit the states of resources."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from events.envelope import MAX_MESSAGE_BYTES
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

MAX_BATCH_EVENTS = 1_000
"""JetStream's limit on the events of an atomic batch."""

_FEW_RESOURCES = 4
"""Up to this number, resources are appended concurrently. Above it, one batch is faster."""

_CACHED_RESOURCES = 50_000
_CACHED_BYTES = 128 * 1024 * 1024
"""Limit on the encoded size of cached states. Maps of short strings take up ten times as much
memory."""

_COPIES = 4
"""A state contains the fields of its largest message up to four times: as desired, resolved,
applied and observed."""


class FoldedResource(msgspec.Struct, frozen=True, gc=False):
    """A resource's state, and its last position in the log. ``size``: about its encoded bytes."""

    state: ResourceState
    position: int
    cached_version: int = 0
    size: int = 0


class _CachedState(msgspec.Struct, frozen=True, gc=False):
    schema: int
    state: msgspec.Raw


class Commit(msgspec.Struct, frozen=True, gc=False):
    """A turn to store: the resource before it, the state after it, and its events.

    ``size``: bytes of the messages that the turn processed.
    """

    key: ResourceKey
    base: FoldedResource
    after: ResourceState
    events: Sequence[LogEvent]
    size: int = 0


_logger = structlog.get_logger(__name__)
_encoder = msgspec.msgpack.Encoder()
_cached_decoder = msgspec.msgpack.Decoder(_CachedState)
_state_decoder = msgspec.msgpack.Decoder(ResourceState)


class ResourceRepository:
    """The states of resources, folded from the log and cached.

    A cached state is stale once another decider writes. Commits are compare-and-set operations, so
    a stale state may lead to a decision, but never to a write.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        cached_resources: int = _CACHED_RESOURCES,
        cached_bytes: int = _CACHED_BYTES,
    ) -> None:
        self._log = log
        self._resources: OrderedDict[ResourceKey, FoldedResource] = OrderedDict()
        self._size = 0
        self._max_cached = cached_resources
        self._max_size = cached_bytes
        self.errors: dict[ResourceKey, ValueError] = {}
        self._held_keys: set[ResourceKey] = set()

    async def get(self, keys: Sequence[ResourceKey]) -> dict[ResourceKey, FoldedResource]:
        """Return the states of resources, loading all uncached ones together.

        Resources with a damaged history are omitted, and listed in ``errors``.
        """
        missing = [key for key in keys if key not in self._resources and key not in self._held_keys]
        if missing:
            await self._load(missing)
        resources = {key: self._resources[key] for key in keys if key in self._resources}
        self._trim()
        return resources

    async def get_newest(self, keys: Sequence[ResourceKey]) -> dict[ResourceKey, FoldedResource]:
        """Return the current states, even if another decider has written since they were cached."""
        cached = [key for key in keys if key in self._resources]
        if cached:
            positions = await self._log.newest_positions(cached)
            self.evict([key for key in cached if positions[key] != self._resources[key].position])
        unknown = [key for key in keys if not self.is_cached(key)]
        if unknown:
            await self._load(unknown, from_leader=True)  # a follower may lag
        return await self.get(keys)

    def is_cached(self, key: ResourceKey) -> bool:
        """Return whether a resource's state or damage is cached."""
        return key in self._resources or key in self.errors

    def hold(self, damage: LogDamage) -> None:
        """Exclude a resource permanently, because its newest events are lost."""
        key = ResourceKey.parse(damage.resource)
        self._held_keys.add(key)
        self.evict([key])
        self.errors[key] = LogDamagedError(damage)

    def evict(self, keys: Sequence[ResourceKey]) -> None:
        """Drop cached states that may differ from the log."""
        for key in keys:
            if (resource := self._resources.pop(key, None)) is not None:
                self._size -= resource.size

    async def commit(self, commits: Sequence[Commit]) -> list[Commit]:
        """Append turns together. Return those that conflict with another writer.

        Those are not stored, and their newest states are cached. Turns without events are also
        checked, because the newest state may lead to events.
        """
        stale = await self._find_stale([commit for commit in commits if not commit.events])
        remaining = [commit for commit in commits if commit.events]
        if len(remaining) <= _FEW_RESOURCES:
            results = await asyncio.gather(*(self._commit([each]) for each in remaining))
            conflicts = [each for result in results for each in result]
        else:
            conflicts = await self._commit(remaining)
        self._trim()
        return conflicts + stale

    async def commit_together(self, commits: Sequence[Commit]) -> bool:
        """Append turns that depend on each other in one atomic batch: all of them, or none.

        Return False if any of them conflicts with another writer. Their newest states are cached.
        """
        try:
            await self._append(commits)
        except AppendLostError:
            await self._find_conflicting(commits)
            return False
        except BaseException:
            self.evict([commit.key for commit in commits])
            raise
        self._trim()
        return True

    async def _find_stale(self, commits: Sequence[Commit]) -> list[Commit]:
        """Return the turns that were decided from a stale state, and cache the newest states."""
        if not commits:
            return []
        newest = await self._log.newest_positions([commit.key for commit in commits])
        stale = [each for each in commits if newest[each.key] != each.base.position]
        if stale:
            keys = [commit.key for commit in stale]
            self.evict(keys)
            await self._load(keys, from_leader=True)
        return stale

    async def _commit(self, remaining: Sequence[Commit]) -> list[Commit]:
        conflicts: list[Commit] = []
        while remaining:
            try:
                await self._append(remaining)
            except AppendLostError:
                conflicting = await self._find_conflicting(remaining)
                conflicts += conflicting
                remaining = [commit for commit in remaining if commit not in conflicting]
            except BaseException:
                self.evict([commit.key for commit in remaining])
                raise
            else:
                break
        return conflicts

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
            size = max(each.base.size, _COPIES * each.size)
            self._put(each.key, FoldedResource(each.after, position, version, size))
        if states:
            await self._log.save_states(states)

    async def _find_conflicting(self, commits: Sequence[Commit]) -> list[Commit]:
        """Return the turns that conflict with another writer, and cache the new states."""
        self.evict([commit.key for commit in commits])
        await self._load([commit.key for commit in commits], from_leader=True)
        for each in commits:
            self._check_progress(each)
        return [
            each
            for each in commits
            if each.key not in self._resources
            or self._resources[each.key].position != each.base.position
        ]

    def _check_progress(self, commit: Commit) -> None:
        """Exclude a resource if its history became shorter, because a log only grows."""
        resource, base = self._resources.get(commit.key), commit.base.state.version
        if resource is not None and resource.state.version < base:
            actual = f"a history that ends with event {resource.state.version}"
            expected = f"event {base}"
            self.hold(LogDamage("Lost", resource.position, base, expected, actual, str(commit.key)))

    async def _load(self, keys: Sequence[ResourceKey], *, from_leader: bool = False) -> None:
        stale = self._fold_loaded(await self._log.load(keys, from_leader=from_leader))
        if stale:
            self._fold_loaded(await self._log.load(stale, from_leader=from_leader, use_cache=False))

    def _fold_loaded(self, loaded: Mapping[ResourceKey, LoadedResource]) -> list[ResourceKey]:
        """Fold loaded resources. Return the resources with an unusable cached state."""
        stale: list[ResourceKey] = []
        for key, resource in loaded.items():
            if resource.damage is not None:
                self.errors[key] = LogDamagedError(resource.damage)
                continue
            state = NEW if resource.cached is None else decode_state(resource.cached)
            if state is None:
                stale.append(key)
                continue
            try:
                folded = fold(resource.events, state)
            except HistoryGapError as gap:
                self.errors[key] = gap
                continue
            self.errors.pop(key, None)
            size = _estimate_size(folded)
            self._put(key, FoldedResource(folded, resource.last_position, state.version, size))
        return stale

    def _put(self, key: ResourceKey, resource: FoldedResource) -> None:
        """Cache a resource as the newest one."""
        previous = self._resources.pop(key, None)
        self._resources[key] = resource
        self._size += resource.size if previous is None else resource.size - previous.size

    def _trim(self) -> None:
        while len(self._resources) > self._max_cached or self._size > self._max_size:
            self._size -= self._resources.popitem(last=False)[1].size


def _try_to_encode(state: ResourceState) -> bytes | None:
    """Encode a state for the cache; return None if that is impossible, as for some JSON numbers.

    The events are already stored, so the resource can be folded without a cached state.
    """
    try:
        return encode_state(state)
    except (OverflowError, RecursionError) as error:
        _logger.warning("failed to cache a state", error=str(error))
        return None


def _estimate_size(state: ResourceState) -> int:
    try:
        return len(_encoder.encode(state))
    except (OverflowError, RecursionError):
        return MAX_MESSAGE_BYTES


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
