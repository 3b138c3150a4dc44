"""The guard on the withdrawals of a commit: an approval covers only one version of it."""

from __future__ import annotations

from msgspec.structs import replace

from events.hold import Hold
from events.log import SpecResolved
from events.names import ResourceKey
from reconciler.resource.evolve import evolve
from reconciler.resource.state import NEW
from tests.bus.histories import event

SHOP = ResourceKey("default", "GitSource", "shop")


def test_changed_content_voids_an_approval():
    approved = replace(NEW, holds=replace(NEW.holds, approved=Hold.PRUNE_GUARD))
    newer = evolve(approved, event(SHOP, 1, SpecResolved(1, {"content": "0" * 32})))
    assert newer.holds.approved == ""
