"""Restart a server that exits while `up` runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from reconciler.cli.errors import StackError

FIRST_DELAY_SECONDS: Final = 1.0
MAX_DELAY_SECONDS: Final = 30.0

STABLE_SECONDS: Final = 60.0
"""Time after which a running server counts as healthy, so that its next restart is not delayed."""

_POLL_SECONDS: Final = 0.5
_logger = structlog.get_logger(__name__)


async def supervise(
    name: str, log: Path, is_running: Callable[[], bool], restart: Callable[[], Awaitable[None]]
) -> None:
    """Restart a server whenever it exits, until this is canceled. Each failure doubles the delay.

    Raises:
        StackError: `restart` raised it, because a restart of the server does not help.
    """
    delay, started_at = FIRST_DELAY_SECONDS, time.monotonic()
    while True:
        if is_running():
            await asyncio.sleep(_POLL_SECONDS)
            continue
        if time.monotonic() - started_at >= STABLE_SECONDS:
            delay = FIRST_DELAY_SECONDS
        _logger.warning(f"{name} exited unexpectedly; restarting it", delay=delay, log=str(log))
        await asyncio.sleep(delay)
        delay = min(2 * delay, MAX_DELAY_SECONDS)
        try:
            await restart()
        except StackError:
            raise
        except Exception as error:  # noqa: BLE001 - such as a disk that is full; the next may succeed
            _logger.warning(f"{name} did not restart", error=str(error), log=str(log))
        else:
            _logger.warning(f"{name} is running again")
        started_at = time.monotonic()
