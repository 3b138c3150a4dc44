"""The `lost actions` check while the log grows: changed actions are not reported as lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from projections.status import StatusRow
from reconciler.cli.checks import actions


async def test_a_retry_that_starts_during_the_check_needs_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = StatusRow("default", "Shape", "called", action_id="called@1")
    retried = StatusRow("default", "Shape", "retried", action_id="retried@1")
    retried.retry_at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = {str(row.key): row for row in (called, retried)}
    replay: Any = SimpleNamespace(models=SimpleNamespace(status=rows), damage=())

    async def find_undelivered(_nc: object, unscheduled: list[StatusRow]) -> list[StatusRow]:
        return unscheduled

    async def read_on(*_: object) -> frozenset[str]:
        retried.retry_at = None  # the log has grown by the start of the retry
        return frozenset()

    async def find_untimed(_nc: object, waiting: Sequence[StatusRow]) -> tuple[frozenset[str], ...]:
        assert all(row.retry_at is not None for row in waiting)
        return frozenset(), frozenset()

    monkeypatch.setattr(actions, "_find_undelivered", find_undelivered)
    monkeypatch.setattr(actions, "_confirm_lost", read_on)
    monkeypatch.setattr(actions, "_find_untimed", find_untimed)

    bus: Any = None
    finding = await actions.check_actions(bus, replay)

    assert (finding.verdict, finding.details) == ("ok", "none; 2 in flight, all accounted for")
