"""Loads, keeps and commits the states of shapes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from events.integrity import LogDamage, LogDamagedError
from events.log import LogEvent
from events.names import ShapeKey
from reconciler.ports import AppendLostError, LoadedShape, ShapeAppend, ShapeLog
from reconciler.resource.evolve import HistoryGapError, fold
from reconciler.resource.state import NEW, STATE_SCHEMA, ResourceState

EVENTS_BETWEEN_SNAPSHOTS = 50
MAX_EVENTS_AT_ONCE = 1_000
"""JetStream's limit for one atomic batch."""

_FEW_SHAPES = 4
"""So few are appended each by itself, at the same time: an atomic batch pays only for many."""

_CACHED_SHAPES = 50_000


class KeptShape(msgspec.Struct, frozen=True):
    """A shape's state, and its last position in the log."""

    state: ResourceState
    position: int
    snapshot_version: int = 0


class _Snapshot(msgspec.Struct, frozen=True):
    schema: int
    state: msgspec.Raw


class Commit(msgspec.Struct, frozen=True):
    """A turn to be stored: the shape as it was decided from, the state after, the events."""

    key: ShapeKey
    base: KeptShape
    after: ResourceState
    events: Sequence[LogEvent]


_logger = structlog.get_logger(__name__)
_encoder = msgspec.msgpack.Encoder()
_snapshot_decoder = msgspec.msgpack.Decoder(_Snapshot)
_state_decoder = msgspec.msgpack.Decoder(ResourceState)


class ShapeRepository:
    """The states of shapes: folded from the log, kept while they are in use.

    What is kept may be out of date (another decider may write): a commit is a compare-and-set, so
    that a stale state can decide, but never write.
    """

    def __init__(self, log: ShapeLog, *, cached_shapes: int = _CACHED_SHAPES) -> None:
        self._log = log
        self._kept: OrderedDict[ShapeKey, KeptShape] = OrderedDict()
        self._most = cached_shapes
        self.broken: dict[ShapeKey, ValueError] = {}
        self._held: set[ShapeKey] = set()

    async def get(self, keys: Sequence[ShapeKey]) -> dict[ShapeKey, KeptShape]:
        """Return the states of shapes, loading at once those that are not kept.

        A shape whose history is damaged is left out; ``broken`` then says where.
        """
        missing = [key for key in keys if key not in self._kept and key not in self._held]
        if missing:
            await self._load(missing)
        return {key: self._kept[key] for key in keys if key in self._kept}

    def knows(self, key: ShapeKey) -> bool:
        """Return whether something is known of a shape without reading: its state, or damage."""
        return key in self._kept or key in self.broken

    def hold(self, damage: LogDamage) -> None:
        """Leave a shape out from now on, whatever the log says: it has lost the newest events."""
        key = ShapeKey.parse(damage.shape)
        self._held.add(key)
        self._kept.pop(key, None)
        self.broken[key] = LogDamagedError(damage)

    def forget(self, keys: Sequence[ShapeKey]) -> None:
        """Forget what is kept: it may not be what the log has."""
        for key in keys:
            self._kept.pop(key, None)

    async def commit(self, commits: Sequence[Commit]) -> list[Commit]:
        """Append the turns, all at once; give back those that another writer was faster than.

        Of those nothing is stored, and the newest state is kept instead. A turn without events is
        checked too: what says nothing new to a stale state may be news to the newest.
        """
        outdated = await self._outdated([commit for commit in commits if not commit.events])
        remaining = [commit for commit in commits if commit.events]
        if len(remaining) <= _FEW_SHAPES:
            lost_each = await asyncio.gather(*(self._commit([each]) for each in remaining))
            lost = [each for some in lost_each for each in some]
        else:
            lost = await self._commit(remaining)
        self._trim()
        return lost + outdated

    async def _outdated(self, commits: Sequence[Commit]) -> list[Commit]:
        """Find turns that were decided from less than the log has, and keep what it has now."""
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
                beaten = await self._beaten(remaining)
                lost += beaten
                remaining = [commit for commit in remaining if commit not in beaten]
            except BaseException:
                self.forget([commit.key for commit in remaining])
                raise
            else:
                break
        return lost

    async def _append(self, commits: Sequence[Commit]) -> None:
        appends = [ShapeAppend(each.key, each.events, each.base.position) for each in commits]
        positions = await self._log.append(appends)
        snapshots: dict[ShapeKey, tuple[int, bytes]] = {}
        for each, position in zip(commits, positions, strict=True):
            version = each.base.snapshot_version
            if each.after.version - version >= EVENTS_BETWEEN_SNAPSHOTS:
                version = each.after.version
                if (snapshot := _try_to_encode(each.after)) is not None:
                    snapshots[each.key] = (position, snapshot)
            self._kept[each.key] = KeptShape(each.after, position, version)
            self._kept.move_to_end(each.key)
        if snapshots:
            await self._log.save_snapshots(snapshots)

    async def _beaten(self, commits: Sequence[Commit]) -> list[Commit]:
        """Find out whose log went on without us, and keep what it has now."""
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
        """Hold a shape whose history is shorter than what was decided from: a log only grows."""
        kept, base = self._kept.get(commit.key), commit.base.state.version
        if kept is not None and kept.state.version < base:
            found = f"a history that ends with event {kept.state.version}"
            expected = f"event {base}"
            self.hold(LogDamage("Lost", kept.position, base, expected, found, str(commit.key)))

    async def _load(self, keys: Sequence[ShapeKey], *, from_leader: bool = False) -> None:
        outdated = self._keep(await self._log.load(keys, from_leader=from_leader))
        if outdated:
            self._keep(await self._log.load(outdated, from_leader=from_leader, use_snapshots=False))

    def _keep(self, loaded: Mapping[ShapeKey, LoadedShape]) -> list[ShapeKey]:
        """Fold what was loaded; give back the shapes whose snapshot cannot be used."""
        outdated: list[ShapeKey] = []
        for key, shape in loaded.items():
            if shape.damage is not None:
                self.broken[key] = LogDamagedError(shape.damage)
                continue
            state = NEW if shape.snapshot is None else decode_snapshot(shape.snapshot)
            if state is None:
                outdated.append(key)
                continue
            try:
                folded = fold(shape.events, state)
            except HistoryGapError as gap:
                self.broken[key] = gap
                continue
            self.broken.pop(key, None)
            self._kept[key] = KeptShape(folded, shape.last_position, state.version)
        return outdated

    def _trim(self) -> None:
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


def _try_to_encode(state: ResourceState) -> bytes | None:
    """Encode a snapshot; None for what cannot be, such as numbers that only JSON can hold.

    Its events are stored by now: the shape is folded from them, as without a snapshot.
    """
    try:
        return encode_snapshot(state)
    except (OverflowError, RecursionError) as error:
        _logger.warning("a state has no snapshot", error=str(error))
        return None


def encode_snapshot(state: ResourceState) -> bytes:
    """Encode a state for the snapshot store."""
    return _encoder.encode(_Snapshot(STATE_SCHEMA, msgspec.Raw(_encoder.encode(state))))


def decode_snapshot(payload: bytes) -> ResourceState | None:
    """Decode a snapshot; None if it is of another schema, or damaged: fold the log then."""
    try:
        snapshot = _snapshot_decoder.decode(payload)
        return _state_decoder.decode(snapshot.state) if snapshot.schema == STATE_SCHEMA else None
    except msgspec.DecodeError:
        return None
