"""Run until Ctrl-C or SIGTERM: the first stops in order, the second immediately."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine

from reconciler.cli.exits import Exit

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def until_stopped(work: Coroutine[None, None, None]) -> Exit:
    """Run ``work`` until it ends or a signal comes; waits for its cleanup."""
    task = asyncio.ensure_future(work)
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if stopping:
            os._exit(Exit.INTERRUPTED)
        stopping = True
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopping:
            raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return Exit.OK
