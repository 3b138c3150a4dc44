"""The read models of the log, folded in one pass.

They are stored as rows: bytes by name. Live rows and rows rebuilt from the log can therefore be
compared byte for byte (invariant 1). Only changed rows are stored again.

=====================================  ======================================================
``status.<namespace>.<kind>.<name>``   ``StatusRow``
``damage.<ns>.<kind>.<name>``          ``LogDamage``, only while the log is damaged there
``damage.position.<n>``                ``LogDamage`` of a message that belongs to no resource
``fleet``                              ``FleetSummary``, with a checksum of the status rows
``checkpoint``                         ``Checkpoint``: last folded position of the log
=====================================  ======================================================

All stored rows are exactly as of the checkpoint (ADR 0019).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from zlib import crc32

import msgspec

from events.integrity import LogDamage
from events.log import LogEvent
from events.names import ResourceKey
from projections.ownership import NameOwners, OwnershipRow, owned_names, ownership_of
from projections.status import StatusRow, fold_status

SCHEMA = 32
"""Schema of the rows. Increase it when a row's meaning changes, so that stored rows are rebuilt."""

STATUS = "status"
DAMAGE = "damage"
FLEET = "fleet"
CHECKPOINT = "checkpoint"


class Checkpoint(msgspec.Struct, frozen=True, rename="camel", order=True):
    """The last log position that is folded into the rows. Checkpoints are ordered by age.

    ``losses`` counts how often the log lost its end, because its positions are then reused.
    ``is_whole`` is false while a change that needs several batches is being stored. Such rows are
    incomplete, and cannot be folded further.
    """

    schema: int
    losses: int = 0
    position: int = 0
    is_whole: bool = True


EMPTY_CHECKPOINT = Checkpoint(SCHEMA)
"""Checkpoint of empty read models."""


class RowChanges(msgspec.Struct, frozen=True):
    """The changes from one checkpoint's rows to a later one's. None deletes a row.

    They also apply to the rows of any checkpoint in between, because they contain every row that
    changed since ``after``. ``damage``: whether they contain damage that was detected late.
    """

    after: Checkpoint
    checkpoint: Checkpoint
    rows: dict[str, bytes | None]
    damage: bool = False

    def merge(self, later: RowChanges) -> RowChanges:
        """Return these changes combined with later ones."""
        rows = {**self.rows, **later.rows}
        return RowChanges(self.after, later.checkpoint, rows, self.damage or later.damage)


class FleetCount(msgspec.Struct, frozen=True, rename="camel", order=True):
    """Number of resources with the same namespace, kind and outcome."""

    namespace: str
    kind: str
    outcome: str
    count: int


class FleetSummary(msgspec.Struct, frozen=True, rename="camel"):
    """Counts of the whole fleet."""

    counts: tuple[FleetCount, ...] = ()
    owned: int = 0
    in_flight: int = 0


class FleetRow(FleetSummary, frozen=True, rename="camel"):
    """The stored form of the counts, which reveals rows that do not belong to the checkpoint.

    ``checksum``: the sum of the versions and positions of all status rows, each multiplied by a
    hash of its name. Older rows result in a different checksum. It does not include the content,
    because damage may be stored before this row. ``position``: that of the checkpoint.
    """

    checksum: int = 0
    position: int = 0


_CHECKSUM_LIMIT = 2**53
"""Modulus of the checksum. All JSON readers represent smaller integers exactly."""


_FleetEntry = tuple[str, bool, bool, int, tuple[int, ...]]
"""Properties that the fleet counts: outcome, ownership, whether an action is in flight, and the
row's version plus its position, for the checksum. Also the names that it owns. A plain tuple,
because it is created per event.
"""


def _fleet_entry(row: StatusRow) -> _FleetEntry:
    is_acting, age = row.action_id != "", row.version + row.position
    return row.outcome, row.owned, is_acting, age, owned_names(row)


class _FleetCounts:
    """Incremental counts of the fleet. An event's cost does not depend on the fleet's size."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._owned = 0
        self._in_flight = 0
        self._checksum = 0

    def move(self, name: str, previous: _FleetEntry | None, after: _FleetEntry | None) -> None:
        """Move a resource from its earlier counts to its current ones; None if it has no row."""
        change = (after[3] if after else 0) - (previous[3] if previous else 0)
        self._checksum += crc32(name.encode()) * change
        if previous is not None and after is not None and previous[:3] == after[:3]:
            return
        namespace, kind, _ = name.split("/")
        if previous is not None:
            self._add(namespace, kind, previous, -1)
        if after is not None:
            self._add(namespace, kind, after, 1)

    def _add(self, namespace: str, kind: str, entry: _FleetEntry, sign: int) -> None:
        outcome, owned, in_flight, _, _ = entry
        bucket = (namespace, kind, outcome or "Pending")
        self._counts[bucket] += sign
        if not self._counts[bucket]:
            del self._counts[bucket]
        self._owned += sign * owned
        self._in_flight += sign * in_flight

    def row(self, position: int) -> FleetRow:
        """Return the current counts and checksum, with the position of the rows."""
        counts = tuple(FleetCount(*each, count) for each, count in sorted(self._counts.items()))
        checksum = self._checksum % _CHECKSUM_LIMIT
        return FleetRow(counts, self._owned, self._in_flight, checksum, position)


_encoder = msgspec.json.Encoder()
_status = msgspec.json.Decoder(StatusRow)
_damage = msgspec.json.Decoder(LogDamage)
_checkpoint = msgspec.json.Decoder(Checkpoint)
_fleet = msgspec.json.Decoder(FleetSummary)
_fleet_row = msgspec.json.Decoder(FleetRow)


class OutdatedRowsError(ValueError):
    """Stored rows have a different schema, or are inconsistent. Rebuild them from the log."""


class ReadModels:
    """Status rows, damage and fleet counts, as of one position of the log.

    Values that depend on whole rows (``fleet``, ``names``, ``swept``, ``unready``, ``linked``,
    ``users``) are updated on access, once per row rather than per event.
    """

    def __init__(self) -> None:
        self.position = 0
        self.losses = 0
        self.status: dict[str, StatusRow] = {}
        self.damage: dict[str, LogDamage] = {}
        self._dirty: dict[str, None] = {}
        self._dirty_damage: dict[str, None] = {}
        self._outdated_entries: dict[str, _FleetEntry | None] = {}
        self._swept: dict[str, None] = {}
        self._unready: dict[str, None] = {}
        self._linked: dict[str, None] = {}
        self._names = NameOwners()
        self._users: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._used_configs: dict[str, tuple[str, ...]] = {}
        self._fleet = _FleetCounts()
        self._last_checkpoint = EMPTY_CHECKPOINT
        self.replaces: Checkpoint | None = None  # checkpoint of the stored rows, if unusable

    @property
    def checkpoint(self) -> Checkpoint:
        """Checkpoint of the last folded position."""
        return Checkpoint(SCHEMA, self.losses, self.position)

    @property
    def ownership(self) -> dict[str, OwnershipRow]:
        """Objects that resources own or may own, by resource."""
        rows = ((name, ownership_of(row)) for name, row in self.status.items())
        return {name: owned for name, owned in rows if owned is not None}

    @property
    def swept(self) -> Mapping[str, None]:
        """Resources that the sweeper must check, in a stable order."""
        self._update_derived()
        return self._swept

    @property
    def unready(self) -> Mapping[str, None]:
        """Resources with an object that is as declared but not ready."""
        self._update_derived()
        return self._unready

    def is_unready(self, name: str) -> bool:
        """Return whether `unready` contains a resource, without updating the other values."""
        row = self.status.get(name)
        return row is not None and row.not_ready is not None

    @property
    def linked(self) -> Mapping[str, None]:
        """Resources with references or secrets, or that other resources reference."""
        self._update_derived()
        return self._linked

    def users(self, config: str) -> Mapping[str, None]:
        """Return the resources that use a ProviderConfig."""
        self._update_derived()
        return self._users.get(config, {})

    @property
    def names(self) -> NameOwners:
        """The owners of external names."""
        self._update_derived()
        return self._names

    @property
    def changed_rows(self) -> int:
        """Number of rows changed since the last call to ``take_changes``."""
        return len(self._dirty) + len(self._dirty_damage)

    def known_version(self, key: ResourceKey) -> int:
        """Return the newest folded version of a resource; 0 if it has no row."""
        row = self.status.get(str(key))
        return 0 if row is None else row.version

    def apply(self, position: int, event: LogEvent) -> StatusRow:
        """Fold an event, and return the status row of its resource. Positions must increase.

        The row of a damaged history stays unchanged.
        """
        name = event.subject
        row = self._row_to_change(name)
        self.position = position
        if name in self.damage:
            return row
        if position > row.position:  # otherwise the row already reflects it
            if 0 < row.version != event.resourceversion - 1:
                self.mark_damage(_build_gap_damage(row, position, event))
                return row
            fold_status(row, position, event)
            if row.is_gone:
                del self.status[name]
        self._dirty[name] = None
        return row

    def _row_to_change(self, name: str) -> StatusRow:
        row = self.status.get(name)
        if row is None:
            row = self.status[name] = _new_row(name)
            self._outdated_entries.setdefault(name, None)
        elif name not in self._outdated_entries:
            self._outdated_entries[name] = _fleet_entry(row)
        return row

    def _update_derived(self) -> None:
        """Update the values that depend on whole rows, for the rows that changed."""
        for name, previous in self._outdated_entries.items():
            row = self.status.get(name)
            after = None if row is None else _fleet_entry(row)
            if after != previous:
                self._fleet.move(name, previous, after)
                owned_before, owned_now = previous[4] if previous else (), after[4] if after else ()
                if owned_before != owned_now:
                    self._names.move(name, owned_before, owned_now)
            for names, is_member in (
                (self._swept, row is not None and row.is_swept),
                (self._unready, row is not None and row.not_ready is not None),
                (self._linked, row is not None and row.is_linked),
            ):
                if is_member:
                    names[name] = None
                elif name in names:
                    del names[name]
            self._update_users(name, () if row is None else row.used_configs)
        self._outdated_entries.clear()

    def _update_users(self, name: str, used: tuple[str, ...]) -> None:
        known = self._used_configs.get(name, ())
        if used == known:
            return
        for config in known:
            del self._users[config][name]
        for config in used:
            self._users[config][name] = None
        if used:
            self._used_configs[name] = used
        else:
            del self._used_configs[name]

    def fold_damage(self, damage: LogDamage) -> None:
        """Mark damage and advance to its position, because no valid event has that position."""
        self.mark_damage(damage)
        self.position = max(self.position, damage.position)

    def mark_damage(self, damage: LogDamage) -> None:
        """Hold a resource, because its history is damaged.

        The position does not change, because events before the damage may not have been folded yet.
        """
        name = damage.resource or f"position/{damage.position}"
        if name not in self.damage:
            self.damage[name] = damage
            self._dirty_damage[name] = None
        if damage.resource:
            self._row_to_change(name).hold_for_damage(damage)
            self._dirty[name] = None

    def mark_damage_changed(self) -> None:
        """Include all damage in the next changes, if another projector may have omitted it."""
        for name in self.damage:
            self._dirty_damage[name] = None
            if name in self.status:
                self._dirty[name] = None

    def find_losses(self, newest: Mapping[ResourceKey, int]) -> list[LogDamage]:
        """Return the damage of resources whose rows reflect events that the log no longer has.

        ``newest`` contains the position of each resource's newest event. A history without its last
        events has no gap, so only the rows reveal the loss.
        """
        return [
            _build_loss_damage(name, row, newest.get(row.key, 0), self.losses)
            for name, row in self.status.items()
            if row.position > newest.get(row.key, 0) and name not in self.damage
        ]

    def has_earlier_loss(self, name: str) -> bool:
        """Return whether a resource lost events before the log last lost its end.

        It has since been held, and has no later events.
        """
        damage = self.damage.get(name)
        return damage is not None and damage.problem == "Lost" and damage.losses < self.losses

    def record_lost_end(self, last_position: int) -> None:
        """Mark the damage if the log lost folded events, and continue from its end."""
        if self.position > last_position:
            expected = f"a log that ends at position {self.position} or later"
            found = f"one that ends at position {last_position}"
            self.mark_damage(LogDamage("Lost", self.position, 0, expected, found, "", self.losses))
            self.position = last_position
            self.losses += 1

    def take_changes(self) -> RowChanges | None:
        """Return the changes since the last call or restoration; None if there are none."""
        if not self.changed_rows:
            return None
        self._update_derived()
        rows: dict[str, bytes | None] = {}
        for name in self._dirty_damage:
            rows[_row_name(DAMAGE, name)] = _encoder.encode(self.damage[name])
        for name in self._dirty:
            row = self.status.get(name)
            rows[_row_name(STATUS, name)] = None if row is None else _encoder.encode(row)
        # Even if the counts are unchanged: intermediate rows may have been stored, and rows without
        # counts are incomplete.
        rows[FLEET] = _encoder.encode(self._fleet.row(self.position))
        changes = RowChanges(self._last_checkpoint, self.checkpoint, rows, bool(self._dirty_damage))
        self._forget_changes()
        return changes

    def take_all(self) -> RowChanges:
        """Return all rows, for an empty store."""
        self._forget_changes()
        rows: dict[str, bytes | None] = dict(self.rows())
        del rows[CHECKPOINT]
        return RowChanges(EMPTY_CHECKPOINT, self.checkpoint, rows)

    def _forget_changes(self) -> None:
        self._dirty.clear()
        self._dirty_damage.clear()
        self._last_checkpoint = self.checkpoint

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Return the name and the stored form of every row, the checkpoint last."""
        for name, damage in self.damage.items():
            yield _row_name(DAMAGE, name), _encoder.encode(damage)
        for name, row in self.status.items():
            yield _row_name(STATUS, name), _encoder.encode(row)
        yield FLEET, _encoder.encode(self.fleet_row())
        yield CHECKPOINT, _encoder.encode(self.checkpoint)

    def fleet(self) -> FleetSummary:
        """Return the number of resources by namespace, kind and outcome."""
        row = self.fleet_row()
        return FleetSummary(row.counts, row.owned, row.in_flight)

    def fleet_row(self) -> FleetRow:
        """Return the stored form of the counts."""
        self._update_derived()
        return self._fleet.row(self.position)

    def set_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Set the checkpoint of the current rows, and discard recorded changes."""
        self.position, self.losses = checkpoint.position, checkpoint.losses
        self._outdated_entries = dict.fromkeys(self.status)
        self._update_derived()
        self._forget_changes()


def restore(rows: Mapping[str, bytes], *, is_selection: bool = False) -> ReadModels:
    """Return read models from stored rows, or from a selection of them.

    Raises ``OutdatedRowsError`` if they have a different schema, are incomplete, or include rows
    that are older or newer than the checkpoint.
    """
    models = ReadModels()
    try:
        checkpoint = _checkpoint.decode(rows[CHECKPOINT])
        if checkpoint.schema != SCHEMA:
            raise OutdatedRowsError(
                f"stored rows have schema {checkpoint.schema}, but this release uses {SCHEMA}"
            )
        if not checkpoint.is_whole:
            raise OutdatedRowsError(
                "stored rows are incomplete: writing all of them was interrupted"
            )
        for name, payload in rows.items():
            model, _, key = name.partition(".")
            if model == STATUS:
                models.status[key.replace(".", "/")] = _status.decode(payload)
            elif model == DAMAGE:
                models.damage[key.replace(".", "/")] = _damage.decode(payload)
        stored = None if is_selection else _fleet_row.decode(rows[FLEET])
    except KeyError as error:
        raise OutdatedRowsError(f"stored rows are incomplete: {error} is missing") from None
    except msgspec.DecodeError as error:
        raise OutdatedRowsError(f"stored rows are unreadable: {error}") from None
    models.set_checkpoint(checkpoint)
    if stored is not None:
        _check_complete(models.fleet_row(), stored)
    return models


def _check_complete(found: FleetRow, stored: FleetRow) -> None:
    """Raise ``OutdatedRowsError`` unless the rows are those that the fleet row counts.

    The bus loses rows if their stream has a limit, and a full disk or a restored file may bring
    back older ones. A resource without its row would look undeclared, and events after an older row
    would look lost. Outcomes may differ, because damage is stored before the fleet row.
    """
    if _resources_by_kind(found) != _resources_by_kind(stored):
        raise OutdatedRowsError(f"{_total(found)} resource rows exist instead of {_total(stored)}")
    if (found.checksum, found.position) != (stored.checksum, stored.position):
        raise OutdatedRowsError("some stored rows are older or newer than the others")


def _resources_by_kind(fleet: FleetSummary) -> Counter[tuple[str, str]]:
    resources: Counter[tuple[str, str]] = Counter()
    for each in fleet.counts:
        resources[each.namespace, each.kind] += each.count
    return resources


def _total(fleet: FleetSummary) -> int:
    return sum(each.count for each in fleet.counts)


def rebuild(history: Iterable[tuple[int, LogEvent]]) -> ReadModels:
    """Fold a whole log, given as (position, event) pairs."""
    models = ReadModels()
    for position, event in history:
        models.apply(position, event)
    return models


def _new_row(name: str) -> StatusRow:
    namespace, kind, resource = name.split("/")
    return StatusRow(namespace, kind, resource)


def _build_gap_damage(row: StatusRow, position: int, event: LogEvent) -> LogDamage:
    """Return the damage of a history that continues with the wrong version."""
    return LogDamage(
        "Missing" if event.resourceversion > row.version else "OutOfOrder",
        position,
        row.version + 1,
        f"event {row.version + 1}",
        f"event {event.resourceversion}",
        event.subject,
    )


def _build_loss_damage(name: str, row: StatusRow, newest: int, losses: int) -> LogDamage:
    """Return the damage of a history without its last events."""
    found = f"position {newest} as the newest" if newest else "no event"
    expected = f"event {row.version}"
    return LogDamage("Lost", row.position, row.version, expected, found, name, losses)


def status_name(key: ResourceKey) -> str:
    """Return the name of a resource's status row."""
    return f"{STATUS}.{key.tokens}"


def damage_name(key: ResourceKey) -> str:
    """Return the name of a resource's damage row."""
    return f"{DAMAGE}.{key.tokens}"


def decode_status(payload: bytes) -> StatusRow:
    """Decode a status row."""
    return _status.decode(payload)


def decode_damage(payload: bytes) -> LogDamage:
    """Decode a damage row."""
    return _damage.decode(payload)


def decode_fleet(payload: bytes) -> FleetSummary:
    """Decode the fleet row."""
    return _fleet.decode(payload)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint."""
    return _encoder.encode(checkpoint)


def decode_checkpoint(payload: bytes) -> Checkpoint:
    """Decode a checkpoint."""
    return _checkpoint.decode(payload)


def read_checkpoint(payload: bytes) -> Checkpoint | None:
    """Decode a checkpoint; None if it is missing, or another client has overwritten it."""
    try:
        return decode_checkpoint(payload)
    except msgspec.DecodeError:
        return None


def _row_name(model: str, key_text: str) -> str:
    return f"{model}.{key_text.replace('/', '.')}"
