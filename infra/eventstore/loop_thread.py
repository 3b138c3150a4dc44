"""An event loop in a separate thread, for a synchronous library with an asyncio client."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar

from eventsourcing.persistence import InterfaceError

T = TypeVar("T")
Cleanup = Callable[[], Awaitable[object]]


class LoopThread:
    """An event loop that runs in a daemon thread until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = _new_event_loop()
        self._cleanups: list[Cleanup] = []
        self._lock = Lock()
        self._closed = False
        # The thread must not refer to this object, so that an unreferenced owner can be collected.
        self._thread = Thread(
            target=_run, args=(self._loop, self._cleanups), name=name, daemon=True
        )
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and return its result.

        Raises:
            InterfaceError: the loop was closed, before or during the call.
        """
        future = self.submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise InterfaceError("the event store was closed during this call") from None
        except BaseException:
            future.cancel()  # KeyboardInterrupt: the result is no longer needed
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop; raises `InterfaceError` if the loop is closed."""
        with self._lock:  # after close(), the coroutine would never run, and its caller would hang
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise InterfaceError("the event store is closed; create a new one")

    def on_close(self, cleanup: Cleanup) -> None:
        """Register a coroutine function to await when the loop ends."""
        self._cleanups.append(cleanup)

    def request_close(self) -> None:
        """Stop the loop without waiting. Can be called repeatedly, and from any thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)

    def close(self) -> None:
        """Stop the loop, cancel its tasks, and wait for the thread to end."""
        self.request_close()
        if current_thread() is not self._thread:
            self._thread.join()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _run(loop: asyncio.AbstractEventLoop, cleanups: list[Cleanup]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_shut_down(cleanups))
        loop.close()


async def _shut_down(cleanups: list[Cleanup]) -> None:
    for cleanup in cleanups:
        # The server may be unreachable, and nothing needs to be saved.
        with contextlib.suppress(Exception):
            await cleanup()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
