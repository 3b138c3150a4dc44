"""A listing shows who owns the name of a missing object, and when that changes (ADR 0084)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from events.external import ExternalObject, digest
from events.intake import ListingBegan
from events.provider_config import ProviderConfigSpec
from projections.ownership import NameOwners, owned_names
from projections.status import StatusRow
from reconciler.provider.kind import installed_kinds
from reconciler.resource.observation import AWAITING_READ
from reconciler.roles.observer.listing import ListingAssembler, compare_listing

CONFIG = ProviderConfigSpec("shapes", "http://shapes")
FOO = ExternalObject("foo", {"color": "Red"}, "u1")
OWNER = "owner/Shape/foo"
EARLIER, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


def owner_row(**more: Any) -> StatusRow:
    known: dict[str, Any] = {"owned": True, "uid": "u1", "observed_digest": digest(FOO)}
    return row("owner", **(known | more))


def row(namespace: str, **more: Any) -> StatusRow:
    return StatusRow(
        namespace,
        "Shape",
        "foo",
        declared=True,
        provider_config="default",
        external_name="foo",
        **more,
    )


async def find_owners(*rows: StatusRow, unique_names: bool = True) -> dict[str, str | None]:
    """Return which resources learn of an unlabeled object, with its other owner."""
    began = ListingBegan("default", "Shape", 5)
    listing = ListingAssembler(began, None, unique_names=unique_names)
    by_name = {str(each.key): each for each in rows}
    objects = {listing.object_key(FOO.name, FOO.uid): FOO}
    findings = await compare_listing(listing, objects, by_name, CONFIG, "log")
    return {key.namespace: each.belongs_to for key, each in findings.observed}


async def find_absences(*rows: StatusRow, unique_names: bool = True) -> dict[str, str | None]:
    """Return which resources learn of an absence from an empty listing, with the name's owner."""
    listing = ListingAssembler(ListingBegan("default", "Shape", 5), None, unique_names=unique_names)
    names = NameOwners()
    for each in rows:
        names.move(str(each.key), (), owned_names(each))
    findings = await compare_listing(
        listing, {}, {str(each.key): each for each in rows}, CONFIG, "log", names=names
    )
    return {key.namespace: each.belongs_to for key, each in findings.observed}


async def test_the_owner_of_a_lost_object_learns_of_it_and_others_keep_waiting() -> None:
    waiting = row("other", belongs_to=OWNER)
    assert await find_absences(owner_row(), waiting) == {"owner": ""}


@pytest.mark.parametrize(
    "state", [{"action_id": "a1", "operation": "Create"}, {"outcome": "Held"}, {"paused": True}]
)
async def test_a_name_is_owned_until_the_lost_object_exists_again(state: dict[str, Any]) -> None:
    losing = row("owner", reserves_name=True, **state)
    assert await find_absences(losing, row("other", belongs_to=OWNER)) == {}
    assert await find_absences(losing, row("other")) == {"other": OWNER}


async def test_others_learn_that_a_name_is_free() -> None:
    gone = row("owner")
    assert await find_absences(gone, row("other", belongs_to=OWNER)) == {"other": ""}
    assert await find_absences(gone, row("other")) == {}


async def test_a_declared_name_belongs_to_the_resource_whose_object_has_a_second_one() -> None:
    owning = owner_row(reserves_name=True)
    owning.declared_name, owning.external_name = "foo", "foo-2"
    absences = await find_absences(owning, row("other"))
    assert absences["other"] == OWNER


async def test_names_that_are_not_unique_have_no_owner() -> None:
    losing = row("owner", reserves_name=True)
    assert await find_absences(losing, row("other"), unique_names=False) == {}


async def test_the_result_of_a_creation_in_flight_is_adopted_by_no_other() -> None:
    """The call has stored the object, and its response is late, lost or held for an operator."""
    creating = row("owner", action_id="a1", operation="Create", pending_name="foo")
    assert await find_owners(creating, row("other", reason=AWAITING_READ)) == {"other": OWNER}


async def test_of_two_resources_that_wait_to_adopt_an_object_the_first_one_does() -> None:
    first = row("owner", reason=AWAITING_READ, position=1)
    second = row("another", reason=AWAITING_READ, position=2)
    owners = await find_owners(first, second)
    assert owners == {"owner": "", "another": OWNER}


async def test_of_two_owners_only_the_second_learns_of_the_other() -> None:
    """Both adopted the object before either knew of the other. The first one keeps it."""
    first, second = owner_row(owned_since=EARLIER), owner_row(owned_since=LATER)
    second.namespace = "another"
    assert await find_owners(first, second) == {"another": OWNER}


async def test_the_absence_of_an_owned_object_with_an_unknown_state_is_reported() -> None:
    awaiting = owner_row(observed_digest="", reason=AWAITING_READ)
    assert await find_absences(awaiting) == {"owner": ""}


@pytest.mark.parametrize("unique_names", [True, False])
@pytest.mark.parametrize("waiting", [{}, {"observed_uid": "u1", "reason": AWAITING_READ}])
async def test_a_creation_in_doubt_keeps_its_result_from_others(
    waiting: dict[str, Any], unique_names: bool
) -> None:
    creating = row("owner", action_id="a1", operation="Create", outcome="Held")
    found = await find_owners(creating, row("other", **waiting), unique_names=unique_names)
    assert found == {"other": OWNER}


@pytest.mark.parametrize("kind", sorted(installed_kinds(), key=str))
def test_what_an_object_uses_and_has_alone_is_known_from_any_fields(kind: str) -> None:
    """A listing knows only the name, and an object of another client may have any fields."""
    known = installed_kinds()[kind]
    list(known.find_uses("a@b/c", {}))
    list(known.find_claims("a@b/c", {}))
