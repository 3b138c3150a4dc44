"""Run until Ctrl-C or SIGTERM: the first stops gracefully, the second immediately."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine

from reconciler.cli.exits import Exit

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run_until_stopped(work: Coroutine[None, None, None]) -> Exit:
    """Run ``work`` until it ends or a signal arrives, and wait for its cleanup."""
    task = asyncio.ensure_future(work)
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if is_stopping:
            os._exit(Exit.INTERRUPTED)
        is_stopping = True
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not is_stopping:
            raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return Exit.OK
