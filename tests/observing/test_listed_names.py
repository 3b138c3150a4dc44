"""A listing shows who owns the name of a missing object, and when that changes (ADR 0084)."""

from __future__ import annotations

from typing import Any

import pytest

from events.external import ExternalObject, digest
from events.intake import ListingBegan
from events.provider_config import ProviderConfigSpec
from projections.name_owners import NameOwners, owned_names
from projections.status import StatusRow
from reconciler.roles.observer.listing import ListingAssembler, compare_listing

CONFIG = ProviderConfigSpec("shapes", "http://shapes")
FOO = ExternalObject("foo", {"color": "Red"}, "u1")
OWNER = "owner/Shape/foo"


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
