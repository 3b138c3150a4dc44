"""Compare a complete listing with the log, and derive observations only for the differences.

The same assembler processes Reconciler's own listings and those of other observers: a start, items,
and an end with their count. Only a listing with the correct count proves that other objects are
absent (invariant 6).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from msgspec.structs import replace

from events.external import ExternalObject, digest, identity
from events.hold import Hold
from events.intake import ListingBegan, LossCount, Observed, UndeclaredObjects, UnmanagedCount
from events.integrity import LogDamage
from events.manifest import Fields
from events.names import ResourceKey, name_for_external
from events.provider_config import DeletionGuard, LossGuard, ProviderConfigSpec, is_within
from events.wording import plural
from projections.ownership import NameOwners, may_use
from projections.status import StatusRow
from reconciler.process_secrets import PROCESS_SECRETS
from reconciler.provider.kind import ObjectUse, no_uses
from reconciler.resource.new_scope import MAX_NAMES
from reconciler.resource.observation import AWAITING_LISTING, AWAITING_READ, is_new_count
from reconciler.resource.owner_label import (
    OWNER_LABEL,
    belongs_to_log,
    label_in,
    owner,
    resource_of,
)
from reconciler.roles.objects.object_secrets import hide_and_digest
from reconciler.roles.runtime.pauses import in_slices
from reconciler.roles.runtime.search_turns import SearchTurns

_OwnerSearch = Callable[[StatusRow, Sequence[StatusRow]], str]
"""Returns another resource that owns or claims a row's object, given all rows of the object."""

MAX_LISTED_OBJECTS = 250_000
"""Limit on objects per listing, because memory holds all of them, at about 1 KiB each."""


class ListingRefusedError(ValueError):
    """A listing that proves nothing, because it is incomplete or has another scope."""


class ListingAssembler:
    """Collects one listing of one scope.

    ``began_at``: start time. ``began_monotonic``: start on the local monotonic clock, None if
    another process started the listing. If ``unique_names`` is false, the API assigns ids, and two
    objects may have the same name. ``path_names``: see ``Capabilities``. ``has_unknown_names``:
    objects with unknown names exist, so the listing does not prove absence. ``find_uses``: see
    ``Kind``.
    """

    def __init__(
        self,
        began: ListingBegan,
        began_at: datetime | None,
        began_monotonic: float | None = None,
        *,
        unique_names: bool = True,
        path_names: bool = False,
        find_uses: Callable[[str, Fields], Sequence[ObjectUse]] = no_uses,
    ) -> None:
        self.unique_names = unique_names
        self.path_names = path_names
        self.find_uses = find_uses
        self.began = began
        self.began_at = began_at
        self.began_monotonic = began_monotonic
        self.has_unknown_names = False
        self._unreadable: set[str] = set()
        self._unreadable_groups: list[Callable[[str], bool]] = []
        self._objects: dict[str, ExternalObject] = {}

    def add(self, objects: Iterable[ExternalObject]) -> None:
        """Add a page.

        In an exclusive scope, undeclared objects are deleted, so no listed object may be outside
        the scope.

        Raises:
            ListingRefusedError: an object is outside the scope, or there are too many.
        """
        began = self.began
        for item in objects:
            if not is_within(began.prefix, began.labels, item.name, item.labels):
                raise ListingRefusedError(
                    f"the object {item.name!r} is outside the scope of the listing"
                )
            self._objects[self.object_key(item.name, item.uid)] = item
        if len(self._objects) > MAX_LISTED_OBJECTS:
            raise ListingRefusedError(
                f"the listing has more than {MAX_LISTED_OBJECTS} objects; split the scope of its "
                "ProviderConfig"
            )

    def object_key(self, name: str, uid: str | None) -> str:
        """Return the key of an object within the listing. It starts with the name."""
        return name if self.unique_names else f"{name}\n{uid or ''}"

    def row_key(self, row: StatusRow) -> str:
        """Return the key of a resource's object, without a uid if that is unknown."""
        return self.object_key(row.external_name, row.uid or row.observed_uid)

    def exclude_unreadable(
        self,
        unreadable: Iterable[tuple[str | None, str | None]],
        groups: Iterable[Callable[[str], bool]] = (),
    ) -> None:
        """Exclude objects that exist but are unreadable, given as names and uids.

        None means unknown. An object with an unknown name may be any object. ``groups``: tests of a
        name for further objects, which exclude no listed object.
        """
        self._unreadable_groups.extend(groups)
        for name, uid in unreadable:
            if name is None:
                self.has_unknown_names = True
                continue
            object_key = self.object_key(name, uid)
            self._unreadable.add(name if uid is None else object_key)
            self._objects.pop(object_key, None)

    def is_unreadable(self, object_key: str) -> bool:
        """Return whether the object with a key exists but is unreadable, or may do so."""
        name = object_key if self.unique_names else object_key.partition("\n")[0]
        is_named = object_key in self._unreadable or name in self._unreadable
        return is_named or any(has(name) for has in self._unreadable_groups)

    @property
    def has_unreadable(self) -> bool:
        """Whether the listing lacks objects that exist but are unreadable."""
        return self.has_unknown_names or bool(self._unreadable)

    def complete(self, count: int) -> Mapping[str, ExternalObject]:
        """Return all objects by key; raises ``ListingRefusedError`` if the count differs.

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

    ``observed`` must be published. ``uncertain``: rows whose object was not listed but must be
    read, because it may exist. A label filter omits objects that have lost a label, and an object
    with an id that the API assigns would be created twice. ``losses``: counts for the guards.
    ``undeclared``: the objects to delete, None if there are none or the listing may lack some.
    """

    observed: list[tuple[ResourceKey, Observed]]
    uncertain: list[StatusRow]
    losses: LossCount
    undeclared: UndeclaredObjects | None = None


async def compare_listing(
    listing: ListingAssembler,
    objects: Mapping[str, ExternalObject],
    rows: Mapping[str, StatusRow],
    config: ProviderConfigSpec,
    log_id: str,
    damage: Collection[LogDamage] = (),
    *,
    names: NameOwners | None = None,
    searches: SearchTurns | None = None,
    known_position: int = 0,
    deleted_ids: Container[str | None] = (),
    late_ids: Container[str | None] = (),
) -> Findings:
    """Compare a complete listing with the rows of all resources.

    A hundred thousand objects take a few seconds of CPU time, in slices. The rows may change in the
    meantime. An observation contains its age, which the resource uses to decide what it proves.
    Observations contain no secret that ``searches`` detects; it defaults to this process's secrets.

    ``names``: the owners of external names, which the rows do not show at once.
    ``known_position``: log position of the rows at the time of this call. ``deleted_ids``: ids of
    recently deleted objects, which no other resource may adopt. ``late_ids``: ids that were deleted
    within the last minute. An object with such an id and an owner label is the deleted one.
    """
    began = listing.began
    known, released = await _match_rows(listing, objects, rows)
    is_owned, is_unclear = _ownership_test(config, log_id), _may_hide_objects(damage, began.kind)
    undeclared = None if is_owned is None else await _find_undeclared(objects, known, is_owned)
    unmanaged = None if undeclared is None else UnmanagedCount(undeclared.count, undeclared.total)
    losses = await _count_losses(listing, objects, known)
    observations: list[tuple[ResourceKey, Observed]] = []
    creators: set[ResourceKey] = set()
    find_other_owner = partial(_find_other_owner, listing, names or NameOwners(), all_rows=rows)
    searches = searches or SearchTurns(PROCESS_SECRETS)
    secrecy = searches.secrecy
    async for chunk in in_slices(objects.items()):
        for object_key, each in chunk:
            matches = known.get(object_key, ())
            if len(matches) == 1 and _is_unchanged(listing, each, matches[0], released):
                continue  # the frequent case
            # The listing may have started before the deletion, or the API may lag. A labeled object
            # is the deleted one even after a long lag. Without a label, its id may be reused.
            has_deleted_id = each.uid in (late_ids if label_in(each.labels) else deleted_ids)
            was_deleted = has_deleted_id and not any(
                row.owned and row.uid == each.uid for row in matches
            )
            owner_elsewhere = _find_owner_elsewhere(listing, each, rows, log_id)
            released_by = released.get((each.name, each.uid), "")
            creator = _find_creator(listing, each, matches, objects, rows, log_id)
            if creator is not None and not (released_by or was_deleted):
                recorded = await searches.complete(hide_and_digest(each, secrecy, [creator]))
                creators.add(creator.key)
                if recorded is not None and _is_news(*recorded, creator):
                    observation = _build_observation(listing, each.name, recorded[0], unmanaged)
                    observations.append((creator.key, observation))
                continue
            # Neither recent objects of a damaged resource nor released objects count as unmanaged.
            is_known = bool(matches) or not (is_unclear or released_by)
            if was_deleted or not is_known:
                continue
            find_affected = partial(
                _find_affected,
                listing,
                rows=matches,
                find_other_owner=find_other_owner,
                unmanaged=unmanaged,
                guard=config.deletion_guard,
                own_log_id=log_id if is_owned and is_owned(each) else "",
                preferred_owner=released_by or owner_elsewhere,
            )
            # Most objects are unchanged, so they are not recorded and need no search for secrets.
            if matches and not any(find_affected((each, digest(each)))):
                continue
            recorded = await searches.complete(hide_and_digest(each, secrecy, matches))
            if recorded is None:
                continue
            if not matches:
                key = _choose_key(listing, each, config.scope.namespace, rows)
                observation = _build_observation(
                    listing, each.name, recorded[0], unmanaged, belongs_to=owner_elsewhere
                )
                observations.append((key, observation))
                continue
            for row, other_owner in find_affected(recorded):
                observation = _build_observation(
                    listing, each.name, recorded[0], unmanaged, belongs_to=other_owner
                )
                # A row that has since changed was not compared in its current version.
                version = row.version if row.position <= known_position else 0
                observations.append((row.key, replace(observation, known_version=version)))
    missing, uncertain = await _find_missing(
        listing,
        objects,
        known,
        released,
        unmanaged,
        losses,
        find_other_owner=find_other_owner,
        guard=config.loss_guard,
        creators=creators,
    )
    return Findings(
        observations + missing, uncertain, losses, None if listing.has_unreadable else undeclared
    )


async def _find_missing(
    listing: ListingAssembler,
    objects: Mapping[str, ExternalObject],
    known: Mapping[str, Sequence[StatusRow]],
    released: Container[tuple[str, str | None]],
    unmanaged: UnmanagedCount | None,
    losses: LossCount,
    *,
    find_other_owner: _OwnerSearch,
    guard: LossGuard,
    creators: Container[ResourceKey],
) -> tuple[list[tuple[ResourceKey, Observed]], list[StatusRow]]:
    """Return the absences that the listing proves, and the rows whose object must be read.

    ``creators``: resources with an object under another name. If such a resource owns no object,
    its object is not reported as absent.
    """
    began, absences = listing.began, list[tuple[ResourceKey, Observed]]()
    uncertain: list[StatusRow] = []
    is_doubted = guard.doubts(losses.missing, losses.owned)
    names_by_uid: dict[str | None, str] | None = None
    async for chunk in in_slices(known.items()):
        for object_key, matches in chunk:
            if object_key in objects or listing.is_unreadable(object_key):
                continue
            is_outside = not object_key.startswith(began.prefix or "")
            for row in matches:
                found_as, missing_uid = "", _missing_uid(row)
                if missing_uid is not None and listing.unique_names:
                    if names_by_uid is None:  # most listings miss no object
                        names_by_uid = {each.uid: each.name for each in objects.values()}
                    found_as = names_by_uid.get(missing_uid, "")
                is_awaited = row.reason == AWAITING_LISTING or (
                    row.owned and row.reason == AWAITING_READ
                )
                is_found = row.hold == Hold.DATA_MISSING and row.found_as != found_as
                is_known = row.observed_digest and not is_outside
                other_owner = find_other_owner(row, matches)
                is_waiting = row.declared and not row.owned
                has_new_owner = is_waiting and row.belongs_to != other_owner
                is_expected = is_awaited or is_known or is_found or has_new_owner
                if listing.row_key(row) != object_key or not is_expected or row.action_id:
                    continue
                if row.key in creators and not row.owned:
                    continue
                if is_doubted and row.hold == Hold.LOSS_GUARD and not row.doubted:
                    continue  # it waits for another listing, or for an approval
                # After the deletion of its row, a released object would count as unmanaged.
                is_released = not row.owned and (row.external_name, row.observed_uid) in released
                is_unproven = is_outside or is_released or listing.has_unknown_names
                is_unproven = is_unproven or bool(began.labels)
                if is_unproven or _might_duplicate(row, listing):
                    uncertain.append(row)
                else:
                    name = row.external_name
                    absence = _build_observation(
                        listing, name, None, unmanaged, losses, belongs_to=other_owner
                    )
                    absent_uid = row.uid or row.observed_uid
                    absence = replace(absence, absent_uid=absent_uid, found_as=found_as)
                    absences.append((row.key, absence))
    return absences, uncertain


def _missing_uid(row: StatusRow) -> str | None:
    """Return the uid of the row's missing object, which may now have another name."""
    if row.uid is None and row.lost is not None and row.lost[0] == row.provider_config:
        return row.lost[1]
    return row.uid


def _might_duplicate(row: StatusRow, listing: ListingAssembler) -> bool:
    """Return whether an incorrect listing would lead to a second object without a conflict.

    This happens if the object has a second name, or the API assigns ids: each lagging listing would
    create another object. The same applies if an earlier listing was incorrect.
    """
    has_own_id = row.owned and not listing.unique_names
    return has_own_id or row.listing_disproved or bool(row.declared_name)


async def _match_rows(
    listing: ListingAssembler, objects: Mapping[str, ExternalObject], rows: Mapping[str, StatusRow]
) -> tuple[dict[str, list[StatusRow]], dict[tuple[str, str | None], str]]:
    """Return the rows of each object, and each released object with the resource that released it.

    An object has two rows while it is being replaced (ADR 0026).
    """
    began, known = listing.began, dict[str, list[StatusRow]]()
    released = dict[tuple[str, str | None], str]()
    rows_without_id: list[StatusRow] = []

    async for chunk in in_slices(list(rows.values())):
        for row in chunk:
            if row.provider_config != began.provider_config or row.kind != began.kind:
                continue
            if row.released:
                released.update(dict.fromkeys(row.released, str(row.key)))
            is_known = listing.unique_names or row.uid or row.observed_uid
            object_keys = {listing.row_key(row)} if is_known else set[str]()
            if row.pending_name and listing.unique_names:
                object_keys.add(row.pending_name)
            if row.retiring:
                object_keys.add(listing.object_key(row.retiring, row.retiring_uid))
            for object_key in object_keys:
                known.setdefault(object_key, []).append(row)
            if not is_known or (row.operation == "Create" and not listing.unique_names):
                rows_without_id.append(row)
    if rows_without_id:
        _assign_by_name(listing, rows_without_id, objects, known)
    return known, released


def _find_creator(
    listing: ListingAssembler,
    existing: ExternalObject,
    matches: Sequence[StatusRow],
    objects: Container[str],
    rows: Mapping[str, StatusRow],
    log_id: str,
) -> StatusRow | None:
    """Return the resource that may have created this object under another name or uid.

    After a late call, the object has a name that the resource used before a replacement. Without
    unique names, the listing may lack the uid that the creation returned, or an earlier creation
    may have been abandoned. The resource then compares the idempotency keys.
    """
    label, began = label_in(existing.labels), listing.began
    if not label or any(row.owned or row.retiring for row in matches):
        return None
    row = rows.get(resource_of(label, log_id))
    if row is None or row.retiring or row.action_id or any(each is row for each in matches):
        return None
    if (row.provider_config, row.kind) != (began.provider_config, began.kind):
        return None
    if row.outcome == "Released":
        return None  # it observes only the released object
    if not listing.unique_names and existing.written_by is None:
        return None  # nothing indicates that the resource may have created it
    if not listing.unique_names and row.owned:
        object_key = listing.row_key(row)
        may_exist = listing.has_unknown_names or listing.is_unreadable(object_key)
        if object_key not in objects and not may_exist:
            return row
    return row if existing.name in row.uncertain_names else None


def _find_owner_elsewhere(
    listing: ListingAssembler,
    existing: ExternalObject,
    rows: Mapping[str, StatusRow],
    log_id: str,
) -> str:
    """Return the resource that owns an object through another configuration of its API, or ""."""
    label, began = label_in(existing.labels), listing.began
    row = rows.get(resource_of(label, log_id)) if label and not listing.unique_names else None
    if row is None or row.kind != began.kind or row.provider_config == began.provider_config:
        return ""
    return (
        str(row.key) if row.owned and existing.uid is not None and row.uid == existing.uid else ""
    )


def _assign_by_name(
    listing: ListingAssembler,
    rows: Iterable[StatusRow],
    objects: Mapping[str, ExternalObject],
    known: dict[str, list[StatusRow]],
) -> None:
    """Assign rows without an id by name: declared ones, and those with a creation in flight."""
    keys_by_name: dict[str, list[str]] = {}
    unclaimed_by_name: dict[str, list[str]] = {}
    unowned_by_name: dict[str, list[str]] = {}
    for object_key, each in objects.items():
        resources = known.get(object_key, ())
        if all(map(_is_about_to_claim, resources)):
            keys_by_name.setdefault(each.name, []).append(object_key)
        if not any(map(_has_claim, resources)):
            unclaimed_by_name.setdefault(each.name, []).append(object_key)
        if not any(row.owned for row in resources):
            unowned_by_name.setdefault(each.name, []).append(object_key)
    for row in rows:
        # A first observation must also report objects that only undeclared resources represent.
        object_keys = unclaimed_by_name if row.reason == AWAITING_LISTING else keys_by_name
        candidates = sorted(object_keys.get(row.external_name, ()))
        if row.operation == "Create":  # any of them may be its result, also if others wait for it
            for object_key in sorted(unowned_by_name.get(row.external_name, ())):
                # An object that an undeclared resource is about to claim existed before. Matching
                # this row as well would make the two resources yield to each other endlessly.
                if not any(map(_is_about_to_claim, known.get(object_key, ()))):
                    known.setdefault(object_key, []).append(row)
        else:
            object_key = candidates[0] if candidates else listing.row_key(row)
            known.setdefault(object_key, []).append(row)


def _may_hide_objects(damage: Collection[LogDamage], kind: str) -> bool:
    """Return whether damage may hide objects of a kind from the rows of their resources."""
    resources = (each.resource for each in damage)
    return any(not each or ResourceKey.parse(each).kind == kind for each in resources)


def _has_object(row: StatusRow) -> bool:
    """Return whether a resource already has an object, and so cannot represent another."""
    return row.declared or row.owned or bool(row.observed_digest or row.action_id)


def _choose_key(
    listing: ListingAssembler,
    existing: ExternalObject,
    namespace: str,
    rows: Mapping[str, StatusRow],
) -> ResourceKey:
    """Return the key for an object without a resource.

    An existing resource with that name may have another external name or API. It would ignore
    observations of this object, or alternate between two objects.
    """
    began, name = listing.began, existing.name
    if not listing.unique_names:
        scope = f"{began.provider_config}/{existing.uid}"
        return ResourceKey(namespace, began.kind, name_for_external(name, scope))
    key = ResourceKey(namespace, began.kind, name_for_external(name))
    namesake = rows.get(str(key))
    if namesake is None or not _has_object(namesake):
        return key
    return ResourceKey(namespace, began.kind, name_for_external(name, began.provider_config))


def _is_unchanged(
    listing: ListingAssembler,
    existing: ExternalObject,
    row: StatusRow,
    released: Container[tuple[str, str | None]],
) -> bool:
    """Return whether an object is obviously as its owner recorded it, so that it is no news.

    Otherwise, the complete comparison decides.
    """
    return (
        row.owned
        and row.uid == existing.uid
        and listing.unique_names
        and row.observed_digest == digest(existing)
        and not (row.doubted or row.belongs_to or row.foreign_identity)
        and row.reason != AWAITING_READ
        and row.outcome != "Unowned"
        and row.hold != Hold.DELETION_GUARD
        and (existing.name, existing.uid) not in released
    )


def _find_affected(
    listing: ListingAssembler,
    recorded: tuple[ExternalObject, str],
    *,
    rows: Sequence[StatusRow],
    find_other_owner: _OwnerSearch,
    unmanaged: UnmanagedCount | None,
    guard: DeletionGuard,
    own_log_id: str,
    preferred_owner: str,
) -> Iterable[tuple[StatusRow, str]]:
    """Yield the resources for which the object is news, each with the object's other owner or "".

    ``recorded``: the object and its digest. ``own_log_id``: the log's id if an undeclared object
    counts as owned, or "". ``preferred_owner``: the resource that has released the object, or owns
    it in another configuration, or "".
    """
    existing, object_digest = recorded
    for row in rows:
        if row.action_id:
            continue  # the action's result will report the object
        is_other = bool(row.uid or row.observed_uid) or listing.unique_names
        if is_other and listing.row_key(row) != listing.object_key(existing.name, existing.uid):
            continue  # a replaced object, which will be deleted
        is_settled = row.owned or not row.declared
        is_alone = is_settled and len(rows) == 1 and not preferred_owner  # the common case
        other_owner = (
            ""
            if is_alone
            else find_other_owner(row, rows) or _find_preferred_owner(row, rows, preferred_owner)
        )
        if other_owner and other_owner == row.belongs_to and not _has_claim(row):
            continue  # the other resource is responsible for the object
        if (
            not other_owner
            and _is_about_to_claim(row)
            and len([*filter(_is_about_to_claim, rows)]) > 1
        ):
            continue  # this listing first notifies the others, which then yield
        is_news = (
            _is_news(existing, object_digest, row) or row.belongs_to != other_owner or row.doubted
        )
        if is_news or _may_change_hold(row, existing, unmanaged, guard, own_log_id):
            yield row, other_owner


def _is_news(existing: ExternalObject, object_digest: str, row: StatusRow) -> bool:
    """Return whether an object, or the identity of a foreign one, differs from the log."""
    if row.reason == AWAITING_READ:
        return True
    if row.foreign_identity:
        return row.foreign_identity != identity(existing)
    return row.observed_digest != object_digest


def _find_other_owner(
    listing: ListingAssembler,
    names: NameOwners,
    row: StatusRow,
    rows: Sequence[StatusRow],
    *,
    all_rows: Mapping[str, StatusRow],
) -> str:
    """Return another resource that owns or claims this row's object, or "".

    The first owner precedes, then a resource that declares the object if this one does not. While
    a resource waits to claim an undeclared object, no other may adopt it, because each would yield
    to the other. Of several resources that wait to adopt it, the first to wait does. It may also be
    the result of a creation that has not ended: its label may be missing, or not written yet. Where
    names are unique, the owner of a name owns it without an object, too. What uses an object, such
    as a privilege on a database, belongs to the owner of that object, unless it permits the use.
    """
    others = [each for each in rows if each is not row]
    if not _has_claim(row):
        return min((str(each.key) for each in others if _has_claim(each)), default="")
    if row.owned:
        earlier = (each for each in others if each.owned and _owns_longer(each, row))
        return min((str(each.key) for each in earlier), default="")
    claimants = (
        each
        for each in others
        if each.owned
        or _is_about_to_claim(each)
        or _adopts_before(each, row)
        or each.operation == "Create"
    )
    claimant = min((str(each.key) for each in claimants), default="")
    if claimant or row.reserves_name or not listing.unique_names:
        return claimant
    name, config = row.declared_name or row.external_name, row.provider_config
    for use in listing.find_uses(name, {}):
        for other in names.find_used(config, use.kind, use.name, other_than=str(row.key)):
            if not may_use(all_rows[other], row.key):
                return other
    return names.find(config, row.kind, name, other_than=str(row.key), is_path=listing.path_names)


def _has_claim(row: StatusRow) -> bool:
    return row.declared or row.owned or row.action_id != ""


def _owns_longer(other: StatusRow, row: StatusRow) -> bool:
    """Return whether another resource adopted the object first. The second one must not write."""
    if other.owned_since is None or row.owned_since is None or other.owned_since == row.owned_since:
        return str(other.key) < str(row.key)
    return other.owned_since < row.owned_since


def _adopts_before(other: StatusRow, row: StatusRow) -> bool:
    """Return whether another declared resource has waited longer for a read before it adopts."""
    is_waiting = other.reason == row.reason == AWAITING_READ
    return is_waiting and other.declared and not other.owned and other.position < row.position


def _is_about_to_claim(row: StatusRow) -> bool:
    """Return whether a resource waits for this listing to claim an undeclared object."""
    return row.reason == AWAITING_READ and not _has_claim(row)


def _find_preferred_owner(row: StatusRow, rows: Sequence[StatusRow], released_by: str) -> str:
    """Return the resource to which an undeclared one yields an unclaimed object, or "".

    Only a declaration adopts an object that another resource has released. If several resources
    wait to claim an undeclared object, the first by name claims it.
    """
    if _has_claim(row):
        return ""
    if released_by:
        return "" if released_by == str(row.key) else released_by
    waiting = sorted(str(each.key) for each in rows if _is_about_to_claim(each))
    return "" if waiting[:1] in ([], [str(row.key)]) else waiting[0]


def _may_change_hold(
    row: StatusRow,
    existing: ExternalObject,
    unmanaged: UnmanagedCount | None,
    guard: DeletionGuard,
    own_log_id: str,
) -> bool:
    """Return whether a changed configuration or count may change a hold."""
    if row.hold == Hold.DELETION_GUARD:
        if unmanaged is None or guard.allows(unmanaged.unmanaged, unmanaged.total):
            return True  # the configuration has since changed
        counts = (unmanaged.unmanaged, unmanaged.total)
        return is_new_count(guard, (row.unmanaged, row.total), counts)
    if not own_log_id or row.outcome != "Unowned" or row.belongs_to:
        return False
    return label_in(existing.labels) in (None, owner(own_log_id, row.key))


async def _find_undeclared(
    objects: Mapping[str, ExternalObject],
    known: Mapping[str, Sequence[StatusRow]],
    is_owned: Callable[[ExternalObject], bool],
) -> UndeclaredObjects:
    """Return the undeclared objects to delete, and the number of objects that count as owned."""
    count, total, names = 0, 0, list[str]()
    async for chunk in in_slices(objects.items()):
        owned = [name for name, each in chunk if is_owned(each)]
        undeclared = [name for name in owned if not any(map(_has_claim, known.get(name, ())))]
        total += len(owned)
        count += len(undeclared)
        names += [objects[each].name for each in undeclared[: MAX_NAMES - len(names)]]
    return UndeclaredObjects(count, total, tuple(names))


def _ownership_test(
    config: ProviderConfigSpec, log_id: str
) -> Callable[[ExternalObject], bool] | None:
    """Return a predicate for undeclared objects that count as owned; None if none does."""
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


async def _count_losses(
    listing: ListingAssembler,
    objects: Mapping[str, ExternalObject],
    known: Mapping[str, Sequence[StatusRow]],
) -> LossCount:
    missing, total = 0, 0
    async for chunk in in_slices(known.items()):
        owned = [
            name
            for name, rows in chunk
            if any(row.owned and listing.row_key(row) == name for row in rows)
        ]
        total += len(owned)
        missing += sum(
            1 for name in owned if name not in objects and not listing.is_unreadable(name)
        )
    return LossCount(missing, total)


def _build_observation(
    listing: ListingAssembler,
    external_name: str,
    existing: ExternalObject | None,
    unmanaged: UnmanagedCount | None,
    losses: LossCount | None = None,
    *,
    belongs_to: str = "",
) -> Observed:
    return Observed(
        provider_config=listing.began.provider_config,
        external_name=external_name,
        object=existing,
        evidence="CompleteListing",
        as_of=listing.began.as_of,
        began_at=listing.began_at,
        exclusive=unmanaged,
        losses=losses,
        belongs_to=belongs_to,
    )
