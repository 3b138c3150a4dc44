"""A connection to the bus that synchronous code can use."""

import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

from nats.aio.client import Client

from infra.eventstore.errors import library_errors
from infra.eventstore.loop_thread import LoopThread
from infra.jetstream.access import Access
from infra.jetstream.connection import connect

T = TypeVar("T")
DEFAULT_TIMEOUT_SECONDS: Final = 20.0  # a cluster needs 8 s to elect a leader


class Bus:
    """One NATS connection on a background event loop, shared by the recorders of a factory.

    A bus that is forgotten instead of closed ends its thread when it is collected.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        credentials: Path | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self.timeout = timeout
        self._thread = LoopThread(f"eventstore {name}")
        try:
            self._nc = self.call(
                connect(
                    url,
                    name=name,
                    patience_seconds=timeout,
                    access=Access(credentials=credentials),
                )
            )
        except BaseException:
            self._thread.close()
            raise
        self._thread.at_close(self._nc.close)
        self._finalizer = weakref.finalize(self, LoopThread.request_close, self._thread)

    @property
    def nc(self) -> Client:
        """The client, for coroutines that `call` runs."""
        return self._nc

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop: cross over once a recorder call, never once an event.

        Raises the library's errors, as `library_errors` lists them.
        """
        with library_errors():
            return self._thread.call(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop without waiting for it."""
        return self._thread.submit(coroutine)

    def close(self) -> None:
        """Close the connection and end the thread; may be called again."""
        self._thread.close()
