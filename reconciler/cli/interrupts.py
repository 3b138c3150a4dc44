"""Handle Ctrl-C during a command, and report the interruption."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from reconciler.cli.entry import INTERRUPTED, exit_immediately


class _Process:
    """State of the command that this process runs."""

    has_sent = False


@contextmanager
def interrupting() -> Generator[Callable[[], None]]:
    """Make Ctrl-C end the process immediately until the yielded function is called.

    The task that does the work calls it. From then on, the first Ctrl-C cancels the task, and the
    second one ends the process. A handler that raises ``KeyboardInterrupt`` would stop the event
    loop instead, at any point.

    Raises:
        KeyboardInterrupt: Ctrl-C has canceled the task.
    """
    handlers = (exit_immediately, signal.default_int_handler)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) not in handlers:
        yield lambda: None
        return
    task: asyncio.Task[object] | None = None
    is_interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal is_interrupted
        if task is None or task.done() or is_interrupted:
            os.write(2, f"{interruption_message()}\n".encode())
            os._exit(INTERRUPTED)
        is_interrupted = True
        task.cancel()
        task.get_loop().call_soon_threadsafe(lambda: None)  # wake the event loop

    def begin() -> None:
        nonlocal task
        task = asyncio.current_task()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield begin
    except asyncio.CancelledError:
        if is_interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def record_sending() -> bool:
    """Record that this command sends messages. Return whether it is the first such call."""
    is_first, _Process.has_sent = not _Process.has_sent, True
    return is_first


def reset_sending() -> None:
    """Reset the record before a new command."""
    _Process.has_sent = False


def interruption_message() -> str:
    """Return the error that an interrupted command prints last."""
    suffix = "; requests that were sent may still take effect" if _Process.has_sent else ""
    return f"error: interrupted{suffix}"
