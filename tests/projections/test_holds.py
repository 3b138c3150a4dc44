"""Holds and their approvals in the rows."""

from __future__ import annotations

import pytest

from events.hold import Hold
from events.log import HoldApproved
from events.names import ResourceKey
from projections.status import StatusRow, fold_status
from tests.bus.histories import event

FOO = ResourceKey("default", "Shape", "foo")


@pytest.mark.parametrize("hold", list(Hold))
def test_only_an_approval_that_needs_a_listing_requests_one(hold: Hold) -> None:
    row = StatusRow(FOO.namespace, FOO.kind, FOO.name)
    fold_status(row, 1, event(FOO, 1, HoldApproved(hold)))
    assert row.doubted is (hold in ("DeletionGuard", "LossGuard"))
