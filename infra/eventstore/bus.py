"""A connection to the bus for synchronous code."""

import asyncio
import weakref
from collections.abc import Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from eventsourcing.persistence import (
    DataError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
)
from nats.aio.client import Client

from infra.eventstore.loop_thread import LoopThread
from infra.jetstream.access import Access
from infra.jetstream.connection import connect
from infra.jetstream.errors import (
    BusError,
    BusUnavailableError,
    MessageTooLargeError,
    NotFoundOnBusError,
)

T = TypeVar("T")
DEFAULT_TIMEOUT_SECONDS: Final = 20.0  # a cluster can take 8 s to elect a leader


class Loop(Protocol):
    """An event loop on which other threads run coroutines."""

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and return its result."""
        ...

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine."""
        ...

    def close(self) -> None:
        """Release the resources of this object."""
        ...


class RunningLoop:
    """The loop of an asynchronous program, called from its other threads.

    For example, functions in `asyncio.to_thread` run in such threads.
    """

    def __init__(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; raises `InterfaceError` in the loop's own thread."""
        try:
            is_own_thread = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_own_thread = False
        if is_own_thread:  # the call would wait for itself
            coroutine.close()
            raise InterfaceError(
                "the event store blocks; call it in another thread with asyncio.to_thread"
            )
        return self.submit(coroutine).result()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Do nothing: the loop belongs to the program."""


class Bus:
    """One NATS connection, shared by the recorders of a factory or a program."""

    def __init__(self, nc: Client, loop: Loop, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Use a connection and the loop to which it belongs."""
        self.timeout = timeout
        self._nc = nc
        self._loop = loop

    @classmethod
    def connect(cls, url: str, *, name: str, credentials: Path | None, timeout: float) -> "Bus":
        """Connect, with an event loop in a separate thread.

        If the object is garbage-collected without `close`, the thread ends. Raises the library's
        errors.
        """
        thread = LoopThread(f"eventstore {name}")
        access = Access(credentials=credentials)
        try:
            with library_errors():
                nc = thread.call(connect(url, name=name, timeout_seconds=timeout, access=access))
        except BaseException:
            thread.close()
            raise
        thread.on_close(nc.close)
        bus = cls(nc, thread, timeout)
        weakref.finalize(bus, LoopThread.request_close, thread)
        return bus

    @property
    def nc(self) -> Client:
        """The client, for coroutines that `call` runs."""
        return self._nc

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, once per recorder call rather than once per event.

        Raises the library's errors, as listed in `library_errors`.
        """
        with library_errors():
            return self._loop.call(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop without waiting for it."""
        return self._loop.submit(coroutine)

    def close(self) -> None:
        """Close what `connect` opened. Repeated calls are allowed."""
        self._loop.close()


@contextmanager
def library_errors() -> Generator[None]:
    """Convert bus errors to the library's errors.

    Raises:
        OperationalError: the bus did not respond (the result is unknown), rejected the request, or
            is full.
        ProgrammingError: the stream does not exist.
        DataError: a message exceeds the server's limit.
    """
    try:
        yield
    except BusUnavailableError as error:
        raise OperationalError(
            "the bus did not respond, so the result is unknown and the events may have been "
            f"stored; read before you write them again ({error})"
        ) from error
    except NotFoundOnBusError as error:
        raise ProgrammingError(
            f"{error}; create the stream, or set CREATE_TABLE=yes to create it"
        ) from error
    except MessageTooLargeError as error:
        raise DataError(str(error)) from error
    except BusError as error:
        raise OperationalError(str(error)) from error
