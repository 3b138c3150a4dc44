"""An event loop with virtual time, and with processes that can be killed and paused.

Every callback belongs to the process that scheduled it (by its ``contextvars`` context). Within a
process, callbacks run in order, as asyncio guarantees; the seed decides which process runs next.
A killed process never runs again, not even its ``finally`` blocks, as after SIGKILL; a paused one
continues later with everything that is due by then, as after SIGSTOP and SIGCONT.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import socket
from asyncio import tasks as asyncio_tasks
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple, Unpack

from tests.memory_bus.connections import MakeProtocol, connect_in_memory

_MAX_CLOSE_ATTEMPTS = 10
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Process:
    """One simulated process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.ready: deque[asyncio.Handle] = deque()


_process: ContextVar[Process] = ContextVar("process")


def current_process() -> Process:
    """Return the current process of the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.current_process()


class StuckError(Exception):
    """Nothing is ready and no timer is set: no task can ever continue."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs callbacks one by one; time jumps to the next timer when nothing is ready."""

    def __init__(self, seed: str) -> None:
        # Separate for each loop: leftover callbacks of a closed loop would block the next one.
        self.outside = Process("outside")
        self._random = random.Random(seed).random
        self._now = 1_000.0
        self._timers: list[tuple[float, int, asyncio.Handle, Process]] = []
        self._count = 0
        self._runnable: list[Process] = []
        self._tasks: list[tuple[asyncio.Task[Any], Process]] = []
        self._servers: dict[int, MakeProtocol] = {}
        self._connecting: dict[int, int] = {}
        self._closed = False
        self.steps = 0
        self.failures: list[str] = []
        self.stopped = False

    # --- processes

    def current_process(self) -> Process:
        """Return the process whose code is running; `outside` between two runs, as in a test."""
        return _process.get(self.outside)

    def start(self, process: Process, main: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a coroutine as the main task of a process."""
        context = copy_context()
        context.run(_process.set, process)
        return self.create_task(main, context=context)

    def kill(self, process: Process) -> None:
        """Stop a process forever."""
        process.dead = True
        process.ready.clear()
        self._remove_runnable(process)
        for task, owner in self._tasks:
            if owner is process:  # code that waits for all tasks would hang
                asyncio_tasks._unregister_task(task)  # pyright: ignore[reportPrivateUsage]

    def pause(self, process: Process) -> None:
        """Pause a process."""
        process.paused = True
        self._remove_runnable(process)

    def resume(self, process: Process) -> None:
        """Resume a paused process."""
        if process.paused and not process.dead:
            process.paused = False
            if process.ready:
                self._runnable.append(process)

    def _remove_runnable(self, process: Process) -> None:
        if process in self._runnable:
            self._runnable.remove(process)

    # --- running

    def run_until(self, when: float) -> None:
        """Run everything up to a time, or until ``stopped``."""
        with self._running():
            while not self.stopped:
                if not self._runnable and not self._advance(when):
                    break
                self._run_one()
        if not self.stopped:
            self._now = max(self._now, when)

    def run_until_complete(self, future: Any) -> Any:
        """Run until a coroutine or future is done."""
        task = asyncio.ensure_future(future, loop=self)
        with self._running():
            while not task.done():
                if not self._runnable and not self._advance(float("inf")):
                    raise StuckError
                self._run_one()
        return task.result()

    @contextlib.contextmanager
    def _running(self) -> Generator[None]:
        previous_loop = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(previous_loop)

    def _advance(self, limit: float) -> bool:
        """Advance to the next timers if they are due by the limit; return whether any were."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers or timers[0][0] > limit:
            return False
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, handle, process = heapq.heappop(timers)
            if not handle.cancelled():
                self._enqueue(handle, process)
        return True

    def _enqueue(self, handle: asyncio.Handle, process: Process) -> None:
        if process.dead:
            return
        if not process.ready and not process.paused:
            self._runnable.append(process)
        process.ready.append(handle)

    def _run_one(self) -> None:
        runnable = self._runnable
        if not runnable:
            return
        index = int(self._random() * len(runnable)) if len(runnable) > 1 else 0
        process = runnable[index]
        handle = process.ready.popleft()
        if not process.ready:
            runnable[index] = runnable[-1]
            runnable.pop()
        if handle.cancelled():
            return
        self.steps += 1
        handle._run()  # pyright: ignore

    # --- methods that asyncio calls

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle, context.get(_process, self.outside))
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        entry = (when, self._count, handle, context.get(_process, self.outside))
        heapq.heappush(self._timers, entry)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when they are due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        context = copy_context() if context is None else context
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append((task, context.get(_process, self.outside)))
        return task

    # --- methods that a test runner calls

    def set_debug(self, enabled: bool) -> None:
        """Do nothing: there is no debug mode."""

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: the garbage collector closes them."""

    async def shutdown_default_executor(self, *_args: Any) -> None:
        """Do nothing: there is no executor."""

    # --- threads and connections

    def run_in_executor(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, executor: Any, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """Call a blocking function now; virtual time does not advance."""
        future: asyncio.Future[_T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the caller's
            future.set_exception(error)
        return future

    def listen(self, port: int, make_protocol: MakeProtocol) -> None:
        """Serve connections to a port on any address, until ``stop_listening``."""
        self._servers[port] = make_protocol

    def stop_listening(self, port: int) -> None:
        """Refuse connections to a port from now on."""
        del self._servers[port]

    async def getaddrinfo(self, host: Any, port: Any, **_kwargs: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Record the port of a socket; the socket itself is never used."""
        if address[1] not in self._servers:
            raise ConnectionRefusedError(111, f"nothing listens on port {address[1]}")
        self._connecting[sock.fileno()] = address[1]

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        *_args: Any,
        sock: socket.socket | None = None,
        **_kwargs: Any,
    ) -> Any:
        """Connect to a server in this loop, with a socket that ``sock_connect`` has recorded."""
        assert sock is not None, "only connections over a given socket are supported"
        port = self._connecting.pop(sock.fileno())
        sock.close()
        return connect_in_memory(self, protocol_factory(), self._servers[port]())

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record uncaught exceptions, except those of the dropped tasks of a killed process."""
        if not self._closed:
            error = context.get("exception")
            self.failures.append(f"{context.get('message')}: {error!r}")

    def close(self) -> None:
        """Drop every task."""
        self._closed = True
        for task, _ in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # pyright: ignore
                _close_coroutine(task.get_coro())  # pyright: ignore
        self._tasks.clear()
        self._timers.clear()
        self._runnable.clear()


def _close_coroutine(coroutine: Any) -> None:
    """Close a coroutine, even if its ``finally`` blocks await."""
    for _ in range(_MAX_CLOSE_ATTEMPTS):
        try:
            coroutine.close()
        except (RuntimeError, BaseExceptionGroup):
            continue
        except ValueError:  # it reset a context variable of its task, which has closed it
            return
        return
