"""A restart of an API explains a loss only if its process is younger than the last listing."""

from __future__ import annotations

import pytest

from events.intake import ListingBegan, LossCount
from events.provider_config import LossGuard, ProviderConfigSpec
from reconciler.roles.observer.listing import ListingAssembler
from reconciler.roles.observer.restarts import Restarts

CONFIG = ProviderConfigSpec("caddy", "http://127.0.0.1:2019")
OTHER_CONFIG = ProviderConfigSpec("caddy", "http://127.0.0.1:2020")
COMPLETE, LOST = LossCount(0, 12), LossCount(12, 12)
NOW = 1000.0


def listing(began_at: float) -> ListingAssembler:
    return ListingAssembler(ListingBegan("a", "Route", 1), None, began_at)


def restarts(losses: LossCount = COMPLETE, began_at: float = NOW - 60) -> Restarts:
    recorded = Restarts(lambda: NOW)
    recorded.record_listing(listing(began_at), losses, CONFIG)
    return recorded


@pytest.mark.parametrize(
    ("uptime_seconds", "expected"),
    [(0, True), (59, True), (60.9, True), (62, False), (None, False)],
)
def test_only_a_process_younger_than_the_last_listing_has_restarted(
    uptime_seconds: float | None, expected: bool
) -> None:
    assert restarts().is_younger(uptime_seconds, listing(NOW), CONFIG) is expected


def test_a_listing_that_lost_its_objects_is_no_reference() -> None:
    """The repair of a loss may need several listings."""
    recorded = restarts()
    recorded.record_listing(listing(NOW - 1), LOST, CONFIG)
    assert recorded.is_younger(30, listing(NOW), CONFIG)
    for losses in (LOST, LossCount(3, 3)):
        assert not restarts(losses).is_younger(0, listing(NOW), CONFIG), "never listed"
    assert restarts(LossCount(0, 0)).is_younger(0, listing(NOW), CONFIG), "before the first object"


def test_another_endpoint_is_no_restart() -> None:
    recorded = restarts()
    assert not recorded.is_younger(0, listing(NOW), OTHER_CONFIG)
    other_guard = ProviderConfigSpec(
        "caddy", "http://127.0.0.1:2019", loss_guard=LossGuard(min_count=1)
    )
    assert not recorded.is_younger(0, listing(NOW), other_guard)
