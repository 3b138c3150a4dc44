"""Fault 25: everything at random for 20 seconds; ``python -m tests.crashes.soak`` for longer."""

from __future__ import annotations

from pathlib import Path

from tests.crashes.soak import soak

SECONDS = 20.0
SEED = 25


async def test_25_whatever_happens_nothing_is_lost_leaked_or_doubled(tmp_path: Path) -> None:
    result = await soak(tmp_path, seed=SEED, seconds=SECONDS)
    print(result)
    assert not result.findings, str(result)
    assert result.deaths > 0
    assert len(result.troubles) > 3
    assert result.declarations > 50
