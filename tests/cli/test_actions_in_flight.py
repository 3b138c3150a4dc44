"""The check `lost actions` while the log goes on: what moves between its reads is not lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from projections.status import StatusRow
from reconciler.cli.checks import actions


async def test_a_retry_that_begins_during_the_check_waits_for_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = StatusRow("default", "Shape", "called", action_id="called@1")
    retried = StatusRow("default", "Shape", "retried", action_id="retried@1")
    retried.retry_at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = {str(row.key): row for row in (called, retried)}
    replay: Any = SimpleNamespace(models=SimpleNamespace(status=rows), damage=())

    async def not_handed_out(_nc: object, called: list[StatusRow]) -> list[StatusRow]:
        return called

    async def read_on(*_: object) -> frozenset[str]:
        retried.retry_at = None  # the log that was read on contains the beginning of the retry
        return frozenset()

    async def timed(_nc: object, waiting: Sequence[StatusRow]) -> tuple[frozenset[str], ...]:
        assert all(row.retry_at is not None for row in waiting)
        return frozenset(), frozenset()

    monkeypatch.setattr(actions, "_not_handed_out", not_handed_out)
    monkeypatch.setattr(actions, "_really_lost", read_on)
    monkeypatch.setattr(actions, "_not_timed", timed)

    bus: Any = None
    finding = await actions.check_actions(bus, replay)

    assert (finding.verdict, finding.found) == ("ok", "none; 2 in flight, all accounted for")
