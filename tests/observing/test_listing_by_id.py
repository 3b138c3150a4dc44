"""If the API generates ids, two objects may share a name, so a listing compares ids."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from msgspec.structs import replace

from events.external import ExternalObject, digest, identity
from events.intake import ListingBegan, Observed
from events.integrity import LogDamage
from events.provider_config import DeletionGuard, ProviderConfigSpec, Scope
from projections.status import StatusRow
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.roles.observer.listing import (
    Findings,
    ListingAssembler,
    ListingRefusedError,
    compare_listing,
)

CONFIG = ProviderConfigSpec("notes", "http://notes")
EXCLUSIVE = ProviderConfigSpec("notes", "http://notes", scope=Scope(mode="Exclusive"))


def note(uid: str, title: str = "todo", text: str = "x") -> ExternalObject:
    return ExternalObject(title, {"text": text}, uid)


def row(
    name: str, observed_object: ExternalObject | None = None, *, declared: bool = True, **more: Any
) -> StatusRow:
    """Return the row of a declared resource with the external name ``todo``."""
    observed_digest = "" if observed_object is None else digest(observed_object)
    return StatusRow(
        "default",
        "Note",
        name,
        provider_config="default",
        external_name="todo",
        observed_digest=observed_digest,
        declared=declared,
        **more,
    )


async def compare_objects(
    observed_objects: list[ExternalObject],
    *rows: StatusRow,
    config: ProviderConfigSpec = CONFIG,
    damage: Collection[LogDamage] = (),
    unique_names: bool = False,
    unreadable: Collection[tuple[str | None, str | None]] = (),
    **more: Any,
) -> Findings:
    began = ListingBegan("default", "Note", 5)
    listing = ListingAssembler(began, None, unique_names=unique_names)
    listing.add(observed_objects)
    objects = listing.complete(len(observed_objects))
    listing.exclude_unreadable(unreadable)
    by_name = {str(each.key): each for each in rows}
    return await compare_listing(listing, objects, by_name, config, "log", damage, **more)


async def observe_objects(
    objects: list[ExternalObject], *rows: StatusRow, **more: Any
) -> dict[str, Observed]:
    checks = await compare_objects(objects, *rows, **more)
    assert len({key for key, _ in checks.observed}) == len(checks.observed), (
        "each resource is reported once"
    )
    return {key.name: observation for key, observation in checks.observed}


async def test_an_owned_object_is_found_by_its_id_among_objects_with_its_name() -> None:
    own_row = row("mine", note("n1"), owned=True, uid="n1")
    found = await observe_objects([note("n1"), note("n2")], own_row)
    assert "mine" not in found, "the object is unchanged"
    assert [each.object and each.object.uid for each in found.values()] == ["n2"]


async def test_an_owned_object_is_read_by_its_id_though_another_has_its_name() -> None:
    own_row = row("mine", note("n1"), owned=True, uid="n1")
    checks = await compare_objects([note("n2")], own_row)
    assert checks.uncertain == [own_row]
    assert [each.object for _, each in checks.observed] == [note("n2")]


async def test_an_unowned_object_is_absent_though_another_has_its_name() -> None:
    observed_row = row("mine", note("n1"), declared=False, observed_uid="n1")
    found = await observe_objects([note("n2")], observed_row)
    assert (found["mine"].object, found["mine"].absent_uid) == (None, "n1")


async def test_each_foreign_object_becomes_a_resource_and_is_reported_once() -> None:
    first = await observe_objects([note("n1"), note("n2")])
    assert len(first) == 2
    known_rows = [
        row(name, each.object, declared=False, observed_uid=each.object.uid)
        for name, each in first.items()
        if each.object is not None
    ]
    for each in known_rows:
        each.foreign_identity = identity(note(each.observed_uid or ""))
    assert await observe_objects([note("n1", text="y"), note("n2")], *known_rows) == {}
    second = await observe_objects([note("n2")], *known_rows)
    assert [each.object for each in second.values()] == [None]


async def test_a_declared_resource_without_an_object_is_shown_one_object_with_its_name() -> None:
    declared_row = row("mine")
    found = await observe_objects([note("n2"), note("n1")], declared_row)
    assert found["mine"].object == note("n1")
    assert len(found) == 2
    declared_row = row("mine", note("n1"), observed_uid="n1")
    assert "mine" not in await observe_objects([note("n2"), note("n1")], declared_row), (
        "it is still shown the same object"
    )


@pytest.mark.parametrize("operation", ["Update", "Delete"])
async def test_a_listing_does_not_report_an_object_with_an_action_in_progress(
    operation: str,
) -> None:
    """A listing without the object may have begun before the action, or may lag."""
    own_row = row("mine", note("n1"), owned=True, uid="n1", action_id="a", operation=operation)
    checks = await compare_objects([], own_row)
    assert (checks.observed, checks.uncertain) == ([], [])
    observed_row = row("mine", note("n1"), observed_uid="n1", action_id="a", operation=operation)
    checks = await compare_objects([], observed_row)
    assert (checks.observed, checks.uncertain) == ([], [])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_listing_is_complete_if_it_has_the_reported_number_of_objects(count: int) -> None:
    listing = ListingAssembler(ListingBegan("default", "Note", 5), None, unique_names=False)
    listing.add([note("n1"), note("n2"), note("n2")])
    with pytest.raises(ListingRefusedError, match=f"has 2 objects, but .* reports {count};"):
        listing.complete(count)
    assert len(listing.complete(2)) == 2


async def test_a_deleted_object_does_not_replace_a_newer_one() -> None:
    labels = {OWNER_LABEL: "log.default.Note.mine"}
    late_object, own_object = replace(note("n1"), labels=labels), note("n2")
    own_row = row("mine", own_object, owned=True, uid="n2")
    assert await observe_objects([late_object], own_row, unique_names=True, late_ids={"n1"}) == {}
    old_row = row("mine", own_object, owned=True, uid="n1")
    assert (await observe_objects([late_object], old_row, unique_names=True, late_ids={"n1"}))[
        "mine"
    ].object == late_object


@pytest.mark.parametrize("config", [CONFIG, EXCLUSIVE])
async def test_the_possible_result_of_a_create_is_not_assigned_to_another_resource(
    config: ProviderConfigSpec,
) -> None:
    creating_row = row("mine", action_id="a", operation="Create")
    assert await observe_objects([note("n1")], creating_row, config=config) == {}
    replacing_row = row("mine", note("n1"), owned=True, uid="n1", action_id="a", operation="Create")
    assert await observe_objects([note("n1"), note("n2")], replacing_row, config=config) == {}


@pytest.mark.parametrize("resource", ["", "default/Note/broken"])
async def test_a_possible_object_of_a_damaged_resource_is_not_unmanaged(resource: str) -> None:
    own_row, objects = row("mine"), [note("n1"), note("n2"), note("n3", title="other")]
    damage = LogDamage("Missing", 7, 2, "event 2", "event 3", resource)
    assert (await observe_objects(objects, own_row, config=EXCLUSIVE, damage=[damage])).keys() == {
        "mine"
    }
    other_damage = LogDamage("Missing", 7, 2, "event 2", "event 3", "default/Shape/broken")
    assert len(
        await observe_objects(objects, own_row, config=EXCLUSIVE, damage=[other_damage])
    ) == len(objects)


async def test_a_deleted_object_with_our_label_is_ignored_if_it_is_listed_later() -> None:
    other_row = row("mine", declared=False)
    labeled_object = replace(note("n1"), labels={OWNER_LABEL: "log.default.Note.mine"})
    assert await observe_objects([labeled_object], other_row, late_ids={"n1"}) == {}
    assert (await observe_objects([note("n1")], other_row, late_ids={"n1"}))["mine"].object == note(
        "n1"
    )
    assert await observe_objects([note("n1")], other_row, deleted_ids={"n1"}) == {}


async def test_a_first_read_shows_an_object_that_an_undeclared_resource_had() -> None:
    undeclared = row("stray", note("n1"), declared=False, observed_uid="n1", reason="NotDeclared")
    waiting_row = row("mine", reason="AwaitingListing")
    assert (await observe_objects([note("n1")], undeclared, waiting_row))["mine"].object == note(
        "n1"
    )
    owned_row = row("other", note("n1"), owned=True, uid="n1")
    assert (await observe_objects([note("n1")], owned_row, waiting_row))["mine"].object is None


async def test_a_released_object_is_found_by_its_name_until_its_id_is_known() -> None:
    released_row = row("mine", note("n1"), declared=False)
    assert await observe_objects([note("n1")], released_row) == {}
    assert (await observe_objects([], released_row))["mine"].object is None


async def test_a_replaced_object_is_not_unmanaged() -> None:
    own_row = row("mine", note("n2"), owned=True, uid="n2", retiring="todo", retiring_uid="n1")
    assert await observe_objects([note("n1"), note("n2")], own_row, config=EXCLUSIVE) == {}


async def test_a_released_object_with_a_replacement_is_not_unmanaged() -> None:
    kept_row = row(
        "mine", note("n2"), declared=False, observed_uid="n2", released=(("todo", "n1"),)
    )
    assert await observe_objects([note("n1"), note("n2")], kept_row, config=EXCLUSIVE) == {}
    assert len(await observe_objects([note("n2"), note("n3")], kept_row, config=EXCLUSIVE)) == 1


async def test_a_released_object_that_is_not_listed_is_read_before_it_is_forgotten() -> None:
    released_row = row(
        "mine", note("n1"), declared=False, observed_uid="n1", released=(("todo", "n1"),)
    )
    checks = await compare_objects([], released_row)
    assert (checks.observed, checks.uncertain) == ([], [released_row])
    recreated_row = row("mine", note("n2"), owned=True, uid="n2", released=(("todo", "n1"),))
    checks = await compare_objects([], recreated_row, unique_names=True)
    assert (len(checks.observed), checks.uncertain) == (1, []), (
        "a new declaration has another object"
    )


async def test_an_object_that_one_resource_released_is_not_unmanaged_for_another() -> None:
    released_row = row(
        "mine", note("n1"), declared=False, observed_uid="n1", released=(("todo", "n1"),)
    )
    found = await observe_objects([note("n1")], released_row, unmanaged_row(), config=EXCLUSIVE)
    assert {name: each.belongs_to for name, each in found.items()} == {"stray": "default/Note/mine"}
    declared_row = row("wanted", note("n1"), observed_uid="n1", belongs_to="default/Note/other")
    found = await observe_objects([note("n1")], released_row, declared_row, config=EXCLUSIVE)
    assert found["wanted"].belongs_to == "", "a declaration may adopt it"


# --- an object that a late call created under its resource's former name

LATE_OBJECT = ExternalObject(
    "todo", {"text": "x"}, "n2", labels={OWNER_LABEL: "log.default.Note.mine"}
)


def row_with_second_name(**more: Any) -> StatusRow:
    """Return the row of a resource whose object was replaced under a second name."""
    columns: dict[str, Any] = {"owned": True, "uid": "n1"}
    columns |= {"declared_name": "todo", "uncertain_names": ("todo",), **more}
    moved_row = row("mine", note("n1", title="todo-2"), **columns)
    moved_row.external_name = "todo-2"
    return moved_row


async def names_reported_for_late_object(*rows: StatusRow, **more: Any) -> set[str]:
    objects = [note("n1", title="todo-2"), LATE_OBJECT]
    return set(await observe_objects(objects, *rows, unique_names=True, **more))


async def test_a_late_object_is_reported_to_the_resource_whose_label_it_has() -> None:
    assert await names_reported_for_late_object(row_with_second_name()) == {"mine"}
    columns = {"observed_uid": "n2", "foreign_identity": identity(LATE_OBJECT)}
    foreign_row = row("todo", LATE_OBJECT, declared=False, **columns)
    assert await names_reported_for_late_object(row_with_second_name(), foreign_row) == {"mine"}, (
        "even if it was listed before"
    )


@pytest.mark.parametrize("declared", [False, True])
async def test_a_late_object_is_reported_to_its_resource_if_that_owns_nothing(
    declared: bool,
) -> None:
    deleted_row = row("mine", declared=declared, uncertain_names=("todo-2",))
    observed_object = replace(LATE_OBJECT, name="todo-2")
    assert set(await observe_objects([observed_object], deleted_row, unique_names=True)) == {"mine"}
    deleted_row.observed_digest = digest(observed_object)
    assert not await observe_objects([observed_object], deleted_row, unique_names=True), (
        "the object is already known"
    )


async def test_a_late_object_that_was_deleted_recently_is_not_reported() -> None:
    objects = [note("n1", title="todo-2"), LATE_OBJECT]
    assert not await observe_objects(
        objects, row_with_second_name(), unique_names=True, late_ids={"n2"}
    )


@pytest.mark.parametrize(
    ("more", "config"),
    [
        ({"uncertain_names": ("todo-3",)}, CONFIG),
        ({"retiring": "todo-1", "retiring_uid": "n0"}, CONFIG),
        ({"released": (("todo", "n2"),)}, EXCLUSIVE),
        ({"action_id": "a", "operation": "Update"}, CONFIG),
    ],
    ids=["another name", "another one is being deleted", "it was released", "an action is running"],
)
async def test_an_object_that_may_be_a_copy_of_the_label_is_not_reported(
    more: dict[str, Any], config: ProviderConfigSpec
) -> None:
    assert "mine" not in await names_reported_for_late_object(
        row_with_second_name(**more), config=config
    )


async def test_a_late_object_that_another_resource_owns_is_not_reported() -> None:
    owner = row("other", LATE_OBJECT, owned=True, uid="n2")
    assert "mine" not in await names_reported_for_late_object(row_with_second_name(), owner)


# --- an object whose creation returned another id


def row_with_wrong_id(**more: Any) -> StatusRow:
    """Return the row of a resource whose creation returned an id that no object has."""
    columns: dict[str, Any] = {"owned": True, "uid": "n9", **more}
    return row("mine", note("n9"), **columns)


LATE_OBJECT_WITH_KEY = replace(LATE_OBJECT, written_by="key")


async def test_a_possible_creation_under_another_id_is_reported_to_its_resource() -> None:
    assert set(await observe_objects([LATE_OBJECT_WITH_KEY], row_with_wrong_id())) == {"mine"}
    columns = {"observed_uid": "n2", "foreign_identity": identity(LATE_OBJECT_WITH_KEY)}
    foreign_row = row("todo", LATE_OBJECT_WITH_KEY, declared=False, **columns)
    assert set(await observe_objects([LATE_OBJECT_WITH_KEY], row_with_wrong_id(), foreign_row)) == {
        "mine"
    }, "even if it was listed before"
    withdrawn_row = row("mine", declared=False, uncertain_names=("todo",))
    assert set(await observe_objects([LATE_OBJECT_WITH_KEY], withdrawn_row)) == {"mine"}, (
        "even if it was withdrawn before"
    )


async def test_an_object_is_reported_to_the_resource_whose_creation_was_abandoned() -> None:
    """Another object was created in the meantime, and both are listed."""
    objects = [LATE_OBJECT_WITH_KEY, note("n9")]
    assert "mine" in await observe_objects(objects, row_with_wrong_id(uncertain_names=("todo",)))
    columns = {"observed_uid": "n2", "foreign_identity": identity(LATE_OBJECT_WITH_KEY)}
    foreign_row = row("todo", LATE_OBJECT_WITH_KEY, declared=False, **columns)
    found = await observe_objects(
        objects, row_with_wrong_id(uncertain_names=("todo",)), foreign_row
    )
    assert found["mine"].object == LATE_OBJECT_WITH_KEY, "even if it was listed before"


async def test_an_id_that_is_not_listed_is_read_though_another_object_has_the_label() -> None:
    checks = await compare_objects([LATE_OBJECT_WITH_KEY], row_with_wrong_id())
    assert [each.name for each in checks.uncertain] == ["mine"]


@pytest.mark.parametrize(
    ("objects", "resource"),
    [
        ([LATE_OBJECT_WITH_KEY, note("n9")], row_with_wrong_id()),
        ([LATE_OBJECT], row_with_wrong_id()),
        ([LATE_OBJECT_WITH_KEY], row_with_wrong_id(action_id="a", operation="Update")),
    ],
    ids=["its object is listed", "no key", "an action is running"],
)
async def test_a_copy_is_not_reported_to_the_resource_of_the_original(
    objects: list[ExternalObject], resource: StatusRow
) -> None:
    assert "mine" not in await observe_objects(objects, resource)


@pytest.mark.parametrize("is_observed", [False, True])
async def test_an_object_of_another_configurations_resource_belongs_to_it(
    is_observed: bool,
) -> None:
    owner = row_with_wrong_id(uid="n2")
    owner.provider_config = "other"
    columns = {"observed_uid": "n2", "foreign_identity": identity(LATE_OBJECT_WITH_KEY)}
    rows = (
        [owner, row("todo", LATE_OBJECT_WITH_KEY, declared=False, **columns)]
        if is_observed
        else [owner]
    )
    found = await observe_objects([LATE_OBJECT_WITH_KEY], *rows)
    assert [each.belongs_to for each in found.values()] == ["default/Note/mine"]


# --- an undeclared object that a resource waits to delete, and another resource with its name


def unmanaged_row(name: str = "stray", **more: Any) -> StatusRow:
    existing = note("n1")
    columns = {"observed_uid": existing.uid, "foreign_identity": identity(existing), **more}
    return row(name, existing, declared=False, **{"reason": "AwaitingRead", **columns})


async def test_two_resources_are_shown_each_other_before_one_adopts_the_object() -> None:
    waiting_row, declared_row = unmanaged_row(), row("mine")
    found = await observe_objects([note("n1")], waiting_row, declared_row, config=EXCLUSIVE)
    assert {name: each.belongs_to for name, each in found.items()} == {
        "stray": "default/Note/mine",
        "mine": "default/Note/stray",
    }
    remaining_row = unmanaged_row(
        reason="BelongsToAnother", outcome="Unowned", belongs_to="default/Note/mine"
    )
    declared_row = row("mine", note("n1"), observed_uid="n1", belongs_to="default/Note/stray")
    found = await observe_objects([note("n1")], remaining_row, declared_row, config=EXCLUSIVE)
    assert {name: each.belongs_to for name, each in found.items()} == {"mine": ""}


async def test_an_object_held_by_the_guard_is_shown_again_once_the_guard_allows_it() -> None:
    held_row = unmanaged_row(outcome="Held", reason="DeletionGuard", unmanaged=1, total=1)
    guard = DeletionGuard(max_count=0)
    assert not await observe_objects(
        [note("n1")], held_row, config=replace(EXCLUSIVE, deletion_guard=guard)
    )
    assert set(await observe_objects([note("n1")], held_row, config=EXCLUSIVE)) == {"stray"}


async def test_one_of_two_resources_that_wait_to_delete_an_object_yields() -> None:
    """The first waits until then, because an older listing may still be in transit to either."""
    first_row, second_row = unmanaged_row("first"), unmanaged_row("second")
    found = await observe_objects([note("n1")], second_row, first_row, config=EXCLUSIVE)
    assert {name: each.belongs_to for name, each in found.items()} == {
        "second": "default/Note/first"
    }
    remaining_row = unmanaged_row(
        "second", reason="BelongsToAnother", outcome="Unowned", belongs_to="default/Note/first"
    )
    found = await observe_objects([note("n1")], remaining_row, first_row, config=EXCLUSIVE)
    assert {name: each.belongs_to for name, each in found.items()} == {"first": ""}


async def test_a_creation_in_progress_does_not_hold_an_object_that_existed_before() -> None:
    creating_row = row("mine", action_id="a", operation="Create")
    found = await observe_objects([note("n1")], unmanaged_row(), creating_row, config=EXCLUSIVE)
    assert {name: each.belongs_to for name, each in found.items()} == {"stray": ""}


async def test_an_undeclared_object_is_shown_again_with_the_version_that_was_read() -> None:
    waiting_row = unmanaged_row(version=7, position=70)
    for position, version in [(69, 0), (70, 7)]:
        found = await observe_objects(
            [note("n1")], waiting_row, config=EXCLUSIVE, known_position=position
        )
        assert (found["stray"].belongs_to, found["stray"].known_version) == ("", version)


@pytest.mark.parametrize("observed_object", [None, note("n1")], ids=["not observed", "observed"])
async def test_an_object_deleted_by_another_resource_is_not_shown_to_a_namesake(
    observed_object: ExternalObject | None,
) -> None:
    """The row of the deleting resource may be removed while a listing still shows the object."""
    same_name_row = row("mine", observed_object)
    if observed_object is not None:
        same_name_row.observed_uid, same_name_row.belongs_to = (
            observed_object.uid,
            "default/Note/stray",
        )
    assert await observe_objects([note("n1")], same_name_row, deleted_ids={"n1"}) == {}
    assert (await observe_objects([note("n1")], same_name_row)).keys() == {"mine"}
    own_row = row("mine", note("n1"), owned=True, uid="n1")
    changed = note("n1", text="y")
    assert (await observe_objects([changed], own_row, deleted_ids={"n1"}))["mine"].object == changed


def test_duplicates_count_once_and_two_objects_that_share_a_name_count_twice() -> None:
    listing = ListingAssembler(ListingBegan("default", "Note", 5), None, unique_names=False)
    listing.add([note("n1"), note("n1"), note("n2")])
    assert len(listing.complete(2)) == 2
    with pytest.raises(ListingRefusedError):
        listing.complete(3)


@pytest.mark.parametrize("unique_names", [True, False])
@pytest.mark.parametrize(
    ("unreadable", "is_absent"),
    [
        ([("todo", "n1")], False),
        ([("todo", None)], False),
        ([("other", "n2")], True),
        ([("other", None)], True),
        ([(None, None)], False),
    ],
)
async def test_an_unreadable_object_may_be_ours(
    unreadable: list[tuple[str | None, str | None]], is_absent: bool, unique_names: bool
) -> None:
    own_row = row("mine", note("n1"), owned=True, uid="n1")
    checks = await compare_objects([], own_row, unreadable=unreadable, unique_names=unique_names)
    needs_read = (None, None) in unreadable or (is_absent and not unique_names)
    assert [key.name for key, _ in checks.observed] == ["mine"] * (is_absent and unique_names)
    assert [each.key.name for each in checks.uncertain] == ["mine"] * needs_read
    assert checks.losses.missing == int(is_absent or (None, None) in unreadable)


async def test_indistinguishable_objects_are_not_shown() -> None:
    own_row = row("mine", None, owned=True, uid="n1")
    objects = [note("n1")]
    checks = await compare_objects(objects, own_row, unreadable=[("todo", None)], unique_names=True)
    assert not checks.observed
    assert not checks.uncertain
