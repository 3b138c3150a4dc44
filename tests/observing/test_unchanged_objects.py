"""The quick check for unchanged objects skips only objects without any news."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.external import ExternalObject, digest
from events.hold import Hold
from events.intake import ListingBegan, Observed
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, Scope
from projections.status import StatusRow
from reconciler.resource.observation import AWAITING_LISTING, AWAITING_READ
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.roles.observer import listing as listing_module
from reconciler.roles.observer.listing import ListingAssembler, compare_listing

UIDS = st.sampled_from([None, "u1", "u2"])
OBJECTS = st.builds(
    ExternalObject,
    name=st.sampled_from(["a", "b"]),
    fields=st.sampled_from([{"color": "Red"}, {"color": "Blue"}]),
    uid=UIDS,
    labels=st.sampled_from([{}, {OWNER_LABEL: "log.default.Note.a"}]),
)
CONFIGS = st.sampled_from(
    [
        ProviderConfigSpec("notes", "http://notes"),
        ProviderConfigSpec("notes", "http://notes", scope=Scope(mode="Exclusive")),
        ProviderConfigSpec("notes", "http://notes", ownership="Label"),
    ]
)


COLUMNS: dict[str, list[Any]] = {
    "owned": [False],
    "declared": [False],
    "doubted": [True],
    "uid": [None, "u1", "u2"],
    "action_id": ["x@1"],
    "belongs_to": ["default/Note/b"],
    "reason": [AWAITING_READ, AWAITING_LISTING, Hold.DELETION_GUARD],
    "outcome": ["Unowned", "Held"],
    "retiring": ["b"],
    "external_name": ["b"],
    "foreign_identity": ["other"],
    "released": [(("a", "u1"),)],
    "observed_digest": ["", "other"],
}


@st.composite
def status_rows(draw: st.DrawFn, existing: ExternalObject) -> StatusRow:
    """Return the row of an unchanged object's owner, with up to three columns changed."""
    columns: dict[str, Any] = {
        "external_name": existing.name,
        "observed_digest": digest(existing),
        "uid": existing.uid,
        "observed_uid": existing.uid,
        "owned": True,
        "declared": True,
        "outcome": "Converged",
    }
    for column in draw(st.lists(st.sampled_from(sorted(COLUMNS)), max_size=3)):
        columns[column] = draw(st.sampled_from(COLUMNS[column]))
    return StatusRow("default", "Note", existing.name, provider_config="default", **columns)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[ExternalObject], list[StatusRow]]:
    """Return objects, and the rows of their owners and of objects that are missing."""
    objects = draw(st.lists(OBJECTS, min_size=1, max_size=2, unique_by=lambda each: each.name))
    rows = [draw(status_rows(each)) for each in objects]
    return objects[: draw(st.integers(1, 2))], rows


def compare(
    objects: list[ExternalObject], rows: list[StatusRow], config: ProviderConfigSpec, deleted: str
) -> list[tuple[ResourceKey, Observed]]:
    listing = ListingAssembler(ListingBegan("default", "Note", 5), None)
    listing.add(objects)
    by_name = {str(each.key): each for each in rows}
    result = compare_listing(
        listing,
        listing.complete(len(objects)),
        by_name,
        config,
        "log",
        deleted_ids={deleted},
        late_ids={deleted},
    )
    return asyncio.run(result).observed


def never(*_: object) -> bool:
    return False


@settings(max_examples=300, deadline=None)
@given(case=cases(), config=CONFIGS, deleted=st.sampled_from(["", "u1"]))
def test_the_quick_check_changes_no_result(
    case: tuple[list[ExternalObject], list[StatusRow]], config: ProviderConfigSpec, deleted: str
) -> None:
    objects, rows = case
    results = [compare(objects, rows, config, deleted)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing_module, "_is_unchanged", never)
        results.append(compare(objects, rows, config, deleted))
    assert results[0] == results[1]
