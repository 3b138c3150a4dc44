"""The undeclared objects of a new scope are reported, and its resources wait for the approval."""

from __future__ import annotations

import pytest

from events.external import ExternalObject
from events.intake import ListingBegan, UndeclaredObjects
from events.log import HoldApproved, ResourceEvent, SpecDeclared, SpecWithdrawn, UndeclaredCounted
from events.provider_config import ProviderConfigSpec, Scope, config_key
from projections.status import StatusRow
from reconciler.resource.new_scope import MAX_NAMES
from reconciler.roles.observer.listing import ListingAssembler, compare_listing
from reconciler.roles.runtime.configurations import Configurations
from tests.bus.histories import event
from tests.observing.test_listing_reports import LISTING, Stage
from tests.observing.test_sweeper import Scene

EXCLUSIVE = ProviderConfigSpec("shapes", "http://shapes", scope=Scope(mode="Exclusive"))
FIELDS = {"provider": "shapes", "endpoint": "http://shapes", "scope": {"mode": "Exclusive"}}
DECLARED = SpecDeclared(1, "reconciler/v1", "", "billing", FIELDS)
NEW_SCOPE = SpecDeclared(1, "reconciler/v1", "", "billing", FIELDS, undeclared={})
APPROVED = HoldApproved("ExclusiveScope")


def counted(**counts: int) -> UndeclaredCounted:
    return UndeclaredCounted(
        {kind: UndeclaredObjects(count, count) for kind, count in counts.items()}
    )


async def find_undeclared(
    count: int, config: ProviderConfigSpec = EXCLUSIVE, *, unreadable: bool = False
) -> UndeclaredObjects | None:
    """List some objects, the first of which is declared."""
    listing = ListingAssembler(ListingBegan("billing", "Shape", 5), None)
    listing.add(ExternalObject(f"n{number:02}", {}, f"u{number}") for number in range(count))
    objects = listing.complete(count)
    if unreadable:
        listing.exclude_unreadable([(None, None)])
    row = StatusRow("default", "Shape", "n00", provider_config="billing")
    row.external_name, row.declared = "n00", True
    findings = await compare_listing(listing, objects, {str(row.key): row}, config, "log")
    return findings.undeclared


async def test_a_listing_shows_the_undeclared_objects_of_its_scope():
    assert await find_undeclared(3) == UndeclaredObjects(2, 3, ("n01", "n02"))
    assert await find_undeclared(1) == UndeclaredObjects(0, 1)
    many = await find_undeclared(30)
    assert many is not None
    assert (many.count, many.total, len(many.names)) == (29, 30, MAX_NAMES)


async def test_a_listing_that_lacks_objects_proves_no_count():
    assert await find_undeclared(1, unreadable=True) is None


async def test_a_shared_scope_has_no_objects_to_delete():
    assert await find_undeclared(3, ProviderConfigSpec("shapes", "http://shapes")) is None


async def test_a_report_names_the_declaration_that_was_listed():
    stage = Stage()
    stage.record(NEW_SCOPE)
    await stage.listings.report_undeclared(LISTING, UndeclaredObjects(2, 3, ("a" * 300, "b")))
    (report,) = stage.reports
    assert (report.state, report.as_of, report.kind) == ("UndeclaredCounted", 1, "Shape")
    assert report.undeclared is not None
    assert (report.undeclared.count, len(report.undeclared.names[0])) == (2, 200)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([DECLARED], None),
        ([NEW_SCOPE], {}),
        ([NEW_SCOPE, counted(Shape=3)], {"Shape": 3}),
        ([NEW_SCOPE, counted(Shape=3), APPROVED], None),
        ([NEW_SCOPE, HoldApproved("Twin")], {}),
        ([NEW_SCOPE, SpecWithdrawn(2)], None),
        ([NEW_SCOPE, counted(Shape=3), DECLARED], None),
    ],
)
def test_every_process_folds_the_new_scopes(
    events: list[ResourceEvent], expected: dict[str, int] | None
):
    """A decider may read its own newest event before the earlier ones of others."""
    key, in_order, newest_first = config_key("billing"), Configurations(), Configurations()
    recorded = [event(key, version, data) for version, data in enumerate(events, 1)]
    for each in recorded:
        in_order.apply(each)
    for each in reversed(recorded):
        newest_first.apply(each)
    assert in_order.new_scopes.get("billing") == expected
    if not isinstance(events[-1], HoldApproved) or events[-1].hold == "ExclusiveScope":
        assert newest_first.new_scopes.get("billing") == expected


@pytest.mark.parametrize(
    ("last", "is_woken"),
    [
        (counted(Shape=3), False),
        (counted(Shape=0), True),
        (counted(Note=0), False),
        (APPROVED, True),
        (SpecDeclared(2, "reconciler/v1", "", "billing", FIELDS), True),
    ],
)
async def test_a_resource_that_its_scope_holds_is_woken_when_that_ends(
    last: ResourceEvent, *, is_woken: bool
):
    scene, key = Scene(), config_key("billing")
    scene.row.outcome, scene.row.reason = "Held", "ExclusiveScope"
    scene.row.provider_config = "billing"
    scene.configurations.apply(event(key, 1, NEW_SCOPE))
    assert await scene.sweep_for(10) == []
    scene.configurations.apply(event(key, 2, last))
    assert bool(await scene.sweep_for(10)) == is_woken
