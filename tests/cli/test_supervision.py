"""A server that exits while `up` runs is restarted, with increasing delays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from reconciler.cli import supervision
from reconciler.cli.errors import StackError


class EndOfTestError(Exception):
    """Ends a supervision, which would run forever."""


async def delays_until(
    monkeypatch: pytest.MonkeyPatch, count: int, restart: Callable[[], Awaitable[None]]
) -> list[float]:
    """Supervise a server that is never running; return its first delays."""
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        if len(delays) == count:
            raise EndOfTestError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(EndOfTestError):
        await supervision.supervise("a server", Path("a.log"), lambda: False, restart)
    return delays


async def test_each_failed_restart_doubles_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise OSError("No space left on device")

    assert await delays_until(monkeypatch, 7, fail) == [1, 2, 4, 8, 16, 30, 30]


async def test_a_server_that_ran_for_long_is_restarted_after_the_first_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "STABLE_SECONDS", 0)

    async def succeed() -> None:
        pass

    assert await delays_until(monkeypatch, 3, succeed) == [1, 1, 1]


async def test_a_restart_that_cannot_help_ends_the_supervision() -> None:
    async def fail() -> None:
        raise StackError("another address")

    with pytest.raises(StackError, match="another address"):
        await supervision.supervise("a server", Path("a.log"), lambda: False, fail)
