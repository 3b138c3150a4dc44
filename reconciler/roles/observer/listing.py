"""Compare a complete listing with the log, and derive observations of the differences only.

The same assembler processes our own listings and those of other observers: a beginning, items, and
a completion with the count. Only a listing with the correct count proves the absence of other
objects (invariant 6).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from events.external import ExternalObject, identity
from events.hold import Hold
from events.intake import ListingBegan, LossCount, Observed, UnmanagedCount
from events.integrity import LogDamage
from events.names import ResourceKey, name_for_external
from events.provider_config import DeletionGuard, ProviderConfigSpec, is_within
from events.wording import plural
from projections.status import StatusRow
from reconciler.process_secrets import OF_THIS_PROCESS
from reconciler.resource.observation import AWAITING_LISTING, AWAITING_READ
from reconciler.resource.owner_label import OWNER_LABEL, belongs_to_log, owner, resource_of
from reconciler.roles.objects.object_secrets import hide_and_digest
from reconciler.roles.runtime.pauses import with_pauses
from reconciler.roles.runtime.search_turns import SearchTurns

MAX_LISTED_OBJECTS = 250_000
"""Limit of objects per listing. It is complete or void, so it is kept in memory, about 1 KiB
each."""


class ListingRefusedError(ValueError):
    """A listing proves nothing: it is incomplete, or has another scope."""


class ListingAssembler:
    """One listing of one scope while it is received.

    ``began_at``: start time. ``began_by``: start on the monotonic clock of this process, if it
    started here. Without ``unique_names``, the API assigns ids, and two objects may have the same
    name. ``has_unknown_names``: objects without a known name exist, so it proves no absence.
    """

    def __init__(
        self,
        began: ListingBegan,
        began_at: datetime | None,
        began_by: float | None = None,
        *,
        unique_names: bool = True,
    ) -> None:
        self.unique_names = unique_names
        self.began = began
        self.began_at = began_at
        self.began_by = began_by
        self.has_unknown_names = False
        self._unreadable: set[str] = set()
        self._objects: dict[str, ExternalObject] = {}

    def add(self, objects: Iterable[ExternalObject]) -> None:
        """Add a page.

        In an exclusive scope, undeclared listed objects are deleted, so none may be outside the
        scope.

        Raises:
            ListingRefusedError: an object is outside the scope, or there are too many.
        """
        began = self.began
        for each in objects:
            if not is_within(began.prefix, began.labels, each.name, each.labels):
                raise ListingRefusedError(
                    f"the object {each.name!r} is outside the scope of the listing"
                )
            self._objects[self.place(each.name, each.uid)] = each
        if len(self._objects) > MAX_LISTED_OBJECTS:
            raise ListingRefusedError(
                f"the listing has more than {MAX_LISTED_OBJECTS} objects; split the scope of its "
                "ProviderConfig"
            )

    def place(self, name: str, uid: str | None) -> str:
        """Return what distinguishes an object within the listing. It starts with the name."""
        return name if self.unique_names else f"{name}\n{uid or ''}"

    def place_of(self, row: StatusRow) -> str:
        """Return the place of a resource's object, as far as known."""
        return self.place(row.external_name, row.uid or row.observed_uid)

    def leave_out(self, unreadable: Iterable[tuple[str | None, str | None]]) -> None:
        """Take out objects that exist and cannot be shown: their names and uids.

        None stands for what is unknown: an object without a known name may be any one.
        """
        for name, uid in unreadable:
            if name is None:
                self.has_unknown_names = True
                continue
            place = self.place(name, uid)
            self._unreadable.add(name if uid is None else place)
            self._objects.pop(place, None)

    def is_unreadable(self, place: str) -> bool:
        """Return whether what is at a place exists and cannot be shown, as far as is known."""
        name = place if self.unique_names else place.partition("\n")[0]
        return place in self._unreadable or name in self._unreadable

    def complete(self, count: int) -> Mapping[str, ExternalObject]:
        """Return all objects by place; raises ``ListingRefusedError`` if the count differs.

        Repeated objects count once, so that they cannot hide a missing one.
        """
        if count != len(self._objects):
            raise ListingRefusedError(
                f"the listing has {plural(len(self._objects), 'object')}, but its last message "
                f"reports {count}; the listing is ignored"
            )
        return self._objects


def check_scope(began: ListingBegan, config: ProviderConfigSpec) -> None:
    """Raise ``ListingRefusedError`` unless the listing covers the configuration's whole scope."""
    scope = config.scope
    if began.prefix != scope.prefix or began.labels != scope.labels:
        raise ListingRefusedError(
            f"the listing has the scope prefix={began.prefix!r} labels={began.labels!r}, but "
            f"the ProviderConfig has prefix={scope.prefix!r} labels={scope.labels!r}; list the "
            "whole scope"
        )


@dataclass(frozen=True, slots=True)
class Findings:
    """The differences between a complete listing and the log.

    ``observed`` must be published. ``doubtful`` are rows whose object was not listed but may exist,
    so it must be read: a filter by labels only shows objects that still have them, and an object
    whose id the API assigns would be created twice. ``losses`` are the counts for the guards.
    """

    observed: list[tuple[ResourceKey, Observed]]
    doubtful: list[StatusRow]
    losses: LossCount


async def observations(
    listing: ListingAssembler,
    objects: Mapping[str, ExternalObject],
    rows: Mapping[str, StatusRow],
    config: ProviderConfigSpec,
    log_id: str,
    damage: Collection[LogDamage] = (),
    *,
    searches: SearchTurns | None = None,
    known_position: int = 0,
    deleted_ids: Container[str | None] = (),
    late_ids: Container[str | None] = (),
) -> Findings:
    """Compare a complete listing with the rows of all resources.

    It takes some seconds of CPU for a hundred thousand objects, in slices. The rows may change in
    the meantime. An observation contains its age, from which the resource decides what it proves.
    Observations contain no secret that ``searches`` look for, by default those of this process.

    ``known_position``: position of the log up to which the rows were read before this call.
    ``deleted_ids``: of objects that a resource has deleted recently, which no other resource may
    adopt. ``late_ids``: those of the last minute. An object with such an id and our owner label is
    the deleted one.
    """
    began = listing.began
    known = await _by_place(listing, objects, rows)
    released = await _released(listing, rows)
    is_ours, is_unclear = _claimed_by(config, log_id), _may_hide(damage, began.kind)
    unmanaged = None if is_ours is None else await _count_unmanaged(objects, known, is_ours)
    losses = await _loss_count(listing, objects, known)
    found: list[tuple[ResourceKey, Observed]] = []
    creators: set[ResourceKey] = set()
    searches = searches or SearchTurns(OF_THIS_PROCESS)
    secrecy = searches.secrecy
    async for some in with_pauses(objects.items()):
        for place, each in some:
            mine = known.get(place, ())
            # The listing may have started before the deletion, or the API shows the deletion late.
            # An object with our label is the deleted one, however late. Without it, the id may be
            # used again.
            is_deleted = each.uid in (late_ids if OWNER_LABEL in each.labels else deleted_ids)
            is_gone = is_deleted and not any(row.owned and row.uid == each.uid for row in mine)
            elsewhere = _owner_elsewhere(listing, each, rows, log_id)
            released_by = released.get((each.name, each.uid), "")
            creator = _creator(listing, each, mine, objects, rows, log_id)
            if creator is not None and not (released_by or is_gone):
                recorded = await searches.complete(hide_and_digest(each, secrecy, [creator]))
                creators.add(creator.key)
                if recorded is not None and _is_news(*recorded, creator):
                    seen = _observed(listing, each.name, recorded[0], unmanaged)
                    found.append((creator.key, seen))
                continue
            # Neither recent objects of a damaged resource nor released objects count as unmanaged.
            is_known = bool(mine) or not (is_unclear or released_by)
            is_shown = is_known and not is_gone
            recorded = None
            if is_shown:
                recorded = await searches.complete(hide_and_digest(each, secrecy, mine))
            if recorded is None:
                continue
            if not mine:
                key = _new_key(listing, each, config.scope.namespace, rows)
                seen = _observed(listing, each.name, recorded[0], unmanaged, belongs_to=elsewhere)
                found.append((key, seen))
                continue
            ours = log_id if is_ours and is_ours(each) else ""
            left_to = released_by or elsewhere
            guard = config.deletion_guard
            interested = _affected(
                listing, recorded, mine, unmanaged, guard, ours=ours, left_to=left_to
            )
            for row, taken in interested:
                seen = _observed(listing, each.name, recorded[0], unmanaged, belongs_to=taken)
                # A row that has changed meanwhile was not compared with everything before.
                version = row.version if row.position <= known_position else 0
                found.append((row.key, replace(seen, known_version=version)))
    missing, doubtful = await _missing(
        listing, objects, known, released, unmanaged, losses, creators=creators
    )
    return Findings(found + missing, doubtful, losses)


async def _missing(
    listing: ListingAssembler,
    objects: Mapping[str, ExternalObject],
    known: Mapping[str, Sequence[StatusRow]],
    released: Container[tuple[str, str | None]],
    unmanaged: UnmanagedCount | None,
    losses: LossCount,
    *,
    creators: Container[ResourceKey],
) -> tuple[list[tuple[ResourceKey, Observed]], list[StatusRow]]:
    """Return the absences that the listing proves, and the rows whose object must be read.

    ``creators``: resources with an object under another name. If such a resource owns nothing, none
    of its objects is absent.
    """
    began, absences = listing.began, list[tuple[ResourceKey, Observed]]()
    doubtful: list[StatusRow] = []
    async for some in with_pauses(known.items()):
        for place, mine in some:
            if place in objects or listing.is_unreadable(place):
                continue
            is_outside = not place.startswith(began.prefix or "")
            for row in mine:
                is_first = row.reason == AWAITING_LISTING
                is_asked = is_first or (row.observed_digest and not is_outside)
                if listing.place_of(row) != place or not is_asked or row.action_id:
                    continue
                if row.key in creators and not row.owned:
                    continue
                # A released object would become unmanaged once its row is deleted.
                is_released = not row.owned and (row.external_name, row.observed_uid) in released
                is_unproven = is_outside or is_released or listing.has_unknown_names
                is_unproven = is_unproven or bool(began.labels)
                if is_unproven or _would_be_made_twice(row, listing):
                    doubtful.append(row)
                else:
                    taken = _find_other_owner(row, mine)
                    name = row.external_name
                    gone = _observed(listing, name, None, unmanaged, losses, belongs_to=taken)
                    absences.append(
                        (row.key, replace(gone, absent_uid=row.uid or row.observed_uid))
                    )
    return absences, doubtful


def _would_be_made_twice(row: StatusRow, listing: ListingAssembler) -> bool:
    """Return whether a wrong listing would lead to a second object without a conflict.

    This is the case under a second name, and if the API assigns ids: each lagging listing would
    create another object. A listing that was wrong before is not trusted either.
    """
    has_own_id = row.owned and not listing.unique_names
    return has_own_id or row.listing_disproved or bool(row.declared_name)


async def _by_place(
    listing: ListingAssembler, objects: Mapping[str, ExternalObject], rows: Mapping[str, StatusRow]
) -> dict[str, list[StatusRow]]:
    """Return the resources of each object: two while an object is replaced (ADR 0026)."""
    began, known = listing.began, dict[str, list[StatusRow]]()
    without_id: list[StatusRow] = []
    async for some in with_pauses(list(rows.values())):
        for row in some:
            if row.provider_config != began.provider_config or row.kind != began.kind:
                continue
            is_known = listing.unique_names or row.uid or row.observed_uid
            places = {listing.place_of(row)} if is_known else set[str]()
            if row.pending_name and listing.unique_names:
                places.add(row.pending_name)
            if row.retiring:
                places.add(listing.place(row.retiring, row.retiring_uid))
            for place in places:
                known.setdefault(place, []).append(row)
            if not is_known or (row.operation == "Create" and not listing.unique_names):
                without_id.append(row)
    if without_id:
        _find_by_name(listing, without_id, objects, known)
    return known


async def _released(
    listing: ListingAssembler, rows: Mapping[str, StatusRow]
) -> dict[tuple[str, str | None], str]:
    """Return the objects that were released, with the resources that released them."""
    began, released = listing.began, dict[tuple[str, str | None], str]()
    async for some in with_pauses(list(rows.values())):
        for row in some:
            is_here = (row.provider_config, row.kind) == (began.provider_config, began.kind)
            if row.released and is_here:
                released.update(dict.fromkeys(row.released, str(row.key)))
    return released


def _creator(
    listing: ListingAssembler,
    seen: ExternalObject,
    mine: Sequence[StatusRow],
    objects: Container[str],
    rows: Mapping[str, StatusRow],
    log_id: str,
) -> StatusRow | None:
    """Return the resource that may have created this object under another name or uid.

    After a late call, the object has a name that the resource used before a replacement. Without
    unique names, the creation may have returned a uid that the listing does not contain, or an
    earlier creation was abandoned. The resource then compares the keys.
    """
    label, began = seen.labels.get(OWNER_LABEL), listing.began
    if not label or any(row.owned or row.retiring for row in mine):
        return None
    row = rows.get(resource_of(label, log_id))
    if row is None or row.retiring or row.action_id or any(each is row for each in mine):
        return None
    if (row.provider_config, row.kind) != (began.provider_config, began.kind):
        return None
    if not listing.unique_names and seen.written_by is None:
        return None  # no name shows that the resource may have created it
    if not listing.unique_names and row.owned:
        place = listing.place_of(row)
        may_exist = listing.has_unknown_names or listing.is_unreadable(place)
        if place not in objects and not may_exist:
            return row
    return row if seen.name in row.uncertain_names else None


def _owner_elsewhere(
    listing: ListingAssembler,
    seen: ExternalObject,
    rows: Mapping[str, StatusRow],
    log_id: str,
) -> str:
    """Return the resource that owns an object through another configuration of its API, or ""."""
    label, began = seen.labels.get(OWNER_LABEL), listing.began
    row = rows.get(resource_of(label, log_id)) if label and not listing.unique_names else None
    if row is None or row.kind != began.kind or row.provider_config == began.provider_config:
        return ""
    return str(row.key) if row.owned and seen.uid is not None and row.uid == seen.uid else ""


def _find_by_name(
    listing: ListingAssembler,
    rows: Iterable[StatusRow],
    objects: Mapping[str, ExternalObject],
    known: dict[str, list[StatusRow]],
) -> None:
    """Assign rows without an id by name: declared resources, and those being created."""
    of_name: dict[str, list[str]] = {}
    unclaimed: dict[str, list[str]] = {}
    for place, each in objects.items():
        resources = known.get(place, ())
        if all(map(_is_about_to_claim, resources)):
            of_name.setdefault(each.name, []).append(place)
        if not any(map(_has_claim, resources)):
            unclaimed.setdefault(each.name, []).append(place)
    for row in rows:
        # An object that only undeclared resources have exists, so a first observation must report
        # it.
        places = unclaimed if row.reason == AWAITING_LISTING else of_name
        unknown = sorted(places.get(row.external_name, ()))
        if row.operation == "Create":  # each may be its result, which the action will report
            for place in unknown:
                # An object that an undeclared resource waits to claim existed before. This row is
                # not notified now, because otherwise the two would yield to each other without end.
                if not any(map(_is_about_to_claim, known.get(place, ()))):
                    known.setdefault(place, []).append(row)
        else:
            place = unknown[0] if unknown else listing.place_of(row)
            known.setdefault(place, []).append(row)


def _may_hide(damage: Collection[LogDamage], kind: str) -> bool:
    """Return whether resources of a kind may have objects that are missing in their rows."""
    resources = (each.resource for each in damage)
    return any(not each or ResourceKey.parse(each).kind == kind for each in resources)


def _lives_somewhere(row: StatusRow) -> bool:
    """Return whether the resource already has one object, and so cannot represent another."""
    return row.declared or row.owned or bool(row.observed_digest or row.action_id)


def _new_key(
    listing: ListingAssembler,
    seen: ExternalObject,
    namespace: str,
    rows: Mapping[str, StatusRow],
) -> ResourceKey:
    """Return the key for an object that no resource has.

    An existing resource of that name may have another external name or API. It would ignore
    observations of this object, or alternate between two objects.
    """
    began, name = listing.began, seen.name
    if not listing.unique_names:
        place = f"{began.provider_config}/{seen.uid}"
        return ResourceKey(namespace, began.kind, name_for_external(name, place))
    key = ResourceKey(namespace, began.kind, name_for_external(name))
    of_that_name = rows.get(str(key))
    if of_that_name is None or not _lives_somewhere(of_that_name):
        return key
    return ResourceKey(namespace, began.kind, name_for_external(name, began.provider_config))


def _affected(
    listing: ListingAssembler,
    recorded: tuple[ExternalObject, str],
    rows: Sequence[StatusRow],
    unmanaged: UnmanagedCount | None,
    guard: DeletionGuard,
    *,
    ours: str,
    left_to: str,
) -> Iterable[tuple[StatusRow, str]]:
    """Yield the resources for which the object is news, each with another resource that has it.

    ``recorded``: the object, and its digest. ``ours``: the log's id, if an undeclared object counts
    as its own. ``left_to``: the resource that has released the object, or owns it in another
    configuration; empty if none has.
    """
    seen, shown = recorded
    for row in rows:
        if row.action_id:
            continue  # the result of the action will contain more
        is_other = bool(row.uid or row.observed_uid) or listing.unique_names
        if is_other and listing.place_of(row) != listing.place(seen.name, seen.uid):
            continue  # it was replaced, and will be deleted
        is_alone = len(rows) == 1 and not left_to  # the frequent case
        taken = "" if is_alone else _find_other_owner(row, rows) or _yielded_to(row, rows, left_to)
        if taken and taken == row.belongs_to and not _has_claim(row):
            continue  # the other resource decides about the object
        if not taken and _is_about_to_claim(row) and len([*filter(_is_about_to_claim, rows)]) > 1:
            continue  # the others yield first: this listing notifies them
        is_news = _is_news(seen, shown, row) or row.belongs_to != taken or row.doubted
        if is_news or _may_change_hold(row, seen, unmanaged, guard, ours):
            yield row, taken


def _is_news(seen: ExternalObject, shown: str, row: StatusRow) -> bool:
    """Return whether an object differs from the log; if foreign, whether its identity does."""
    if row.reason == AWAITING_READ:
        return True
    if row.foreign_identity:
        return row.foreign_identity != identity(seen)
    return row.observed_digest != shown


def _find_other_owner(row: StatusRow, rows: Sequence[StatusRow]) -> str:
    """Return another resource that has the object of this external name, or "".

    The owner has it, or the resource that declares it if this one does not. While a resource waits
    to delete an undeclared object, no other one may adopt it, because each would yield to the
    other.
    """
    others = [each for each in rows if each is not row]
    if not _has_claim(row):
        return min((str(each.key) for each in others if _has_claim(each)), default="")
    if row.owned:
        return min((str(each.key) for each in others if each.owned), default="")
    having = (each for each in others if each.owned or _is_about_to_claim(each))
    return min((str(each.key) for each in having), default="")


def _has_claim(row: StatusRow) -> bool:
    return row.declared or row.owned or row.action_id != ""


def _is_about_to_claim(row: StatusRow) -> bool:
    """Return whether a resource waits for this listing to claim an undeclared object."""
    return row.reason == AWAITING_READ and not _has_claim(row)


def _yielded_to(row: StatusRow, rows: Sequence[StatusRow], released_by: str) -> str:
    """Return the resource to which an undeclared one leaves an object that none has, or "".

    Only a declaration adopts an object that another resource has released. Of several resources
    that wait to claim an undeclared object, the first by name claims it.
    """
    if _has_claim(row):
        return ""
    if released_by:
        return "" if released_by == str(row.key) else released_by
    waiting = sorted(str(each.key) for each in rows if _is_about_to_claim(each))
    return "" if waiting[:1] in ([], [str(row.key)]) else waiting[0]


def _may_change_hold(
    row: StatusRow,
    seen: ExternalObject,
    unmanaged: UnmanagedCount | None,
    guard: DeletionGuard,
    ours: str,
) -> bool:
    """Return whether a changed configuration or count may change the decision on an object."""
    if row.hold == Hold.DELETION_GUARD:
        if unmanaged is None or guard.allows(unmanaged.unmanaged, unmanaged.total):
            return True  # of a configuration that was changed since
        return (unmanaged.unmanaged, unmanaged.total) != (row.unmanaged, row.total)
    if not ours or row.outcome != "Unowned" or row.belongs_to:
        return False
    return seen.labels.get(OWNER_LABEL) in (None, owner(ours, row.key))


async def _count_unmanaged(
    objects: Mapping[str, ExternalObject],
    known: Mapping[str, Sequence[StatusRow]],
    is_ours: Callable[[ExternalObject], bool],
) -> UnmanagedCount:
    """Count the objects to delete because no manifest declares them, and all owned objects."""
    unmanaged, total = 0, 0
    async for some in with_pauses(objects.items()):
        ours = [name for name, each in some if is_ours(each)]
        total += len(ours)
        unmanaged += sum(1 for name in ours if not any(map(_has_claim, known.get(name, ()))))
    return UnmanagedCount(unmanaged, total)


def _claimed_by(config: ProviderConfigSpec, log_id: str) -> Callable[[ExternalObject], bool] | None:
    """Return the test whether an undeclared object counts as owned, or None for no object."""
    if config.ownership == "Strict":
        return None
    if config.scope.mode == "Exclusive":
        return lambda _each: True
    if config.ownership == "Label":
        return lambda each: belongs_to_log(each.labels.get(OWNER_LABEL, ""), log_id)
    if config.ownership == "Prefix" and config.owner_prefix is not None:
        prefix = config.owner_prefix
        return lambda each: each.name.startswith(prefix)
    return None


async def _loss_count(
    listing: ListingAssembler,
    objects: Mapping[str, ExternalObject],
    known: Mapping[str, Sequence[StatusRow]],
) -> LossCount:
    missing, total = 0, 0
    async for some in with_pauses(known.items()):
        owned = [
            name
            for name, rows in some
            if any(row.owned and listing.place_of(row) == name for row in rows)
        ]
        total += len(owned)
        missing += sum(
            1 for name in owned if name not in objects and not listing.is_unreadable(name)
        )
    return LossCount(missing, total)


def _observed(
    listing: ListingAssembler,
    external_name: str,
    seen: ExternalObject | None,
    unmanaged: UnmanagedCount | None,
    losses: LossCount | None = None,
    *,
    belongs_to: str = "",
) -> Observed:
    return Observed(
        provider_config=listing.began.provider_config,
        external_name=external_name,
        object=seen,
        evidence="CompleteListing",
        as_of=listing.began.as_of,
        began_at=listing.began_at,
        exclusive=unmanaged,
        losses=losses,
        belongs_to=belongs_to,
    )
