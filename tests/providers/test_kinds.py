"""The registry of kinds: what it says of a kind that it does not have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from infra.providers.shapes import SHAPE
from reconciler.provider.kind import KindRegistry


def test_a_kind_that_was_installed_since_is_told_from_one_that_is_not_installed() -> None:
    installed, now = ["Shape"], datetime(2026, 1, 2, tzinfo=UTC)
    kinds = KindRegistry([SHAPE], installed=lambda: list(installed))
    assert (
        kinds.missing_hint(now) == "install its package where the roles run, then restart the roles"
    )
    installed.append("Blob")
    assert "Blob" not in kinds.missing_hint(now)  # looked at a moment ago: asking costs nothing
    now += timedelta(seconds=60)
    assert (
        kinds.missing_hint(now)
        == "restart the roles, because these kinds were installed after they started: Blob"
    )


def test_the_providers_are_those_of_its_kinds() -> None:
    assert KindRegistry([SHAPE]).providers == {"shapes": ("Shape",)}
    assert KindRegistry([]).providers == {}
