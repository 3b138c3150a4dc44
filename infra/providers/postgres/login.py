"""Logins to a server, computed in separate threads.

For a SCRAM login, libpq computes as many iterations as the server requests, in C, and nothing can
interrupt it: two billion take an hour or more. The same applies to a TLS handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import msgspec
import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg.waiting import Ready, Wait

from infra.providers.postgres.limits import LimitedConnection

SLOW_STEP_SECONDS: Final = 0.5
"""A login step usually takes 3 ms. A slower one continues at the lowest priority."""

_LOWEST_PRIORITY: Final = 19
_T = TypeVar("_T")


class TextLoader(Loader):
    """Decodes text. A database without an encoding may contain any bytes."""

    def load(self, data: Buffer) -> str:
        """Return text with U+FFFD instead of invalid bytes."""
        return bytes(data).decode(errors="replace")


class JsonLoader(Loader):
    """Decodes JSON, which may contain names with any bytes."""

    def load(self, data: Buffer) -> Any:
        """Return the value, with U+FFFD instead of invalid bytes."""
        return msgspec.json.decode(bytes(data).decode(errors="replace"))


class LoginBusyError(Exception):
    """No login can start, because the process is still computing an earlier one."""


class Logins:
    """The logins to one server, computed one at a time.

    A login that times out is abandoned: its thread ends when its computation or the process ends.
    Until then, no other login starts.
    """

    def __init__(self) -> None:
        self._step: Future[Any] = Future()
        self._step.set_result(None)
        self._step_started_at = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether the current step is taking unusually long."""
        is_running = not self._step.done()
        return is_running and time.monotonic() - self._step_started_at >= SLOW_STEP_SECONDS

    async def connect(self, settings: Mapping[str, Any]) -> LimitedConnection:
        """Connect with libpq's settings.

        Raises ``LoginBusyError``, ``ResultTooLargeError`` or ``psycopg.Error``.
        """
        error: psycopg.Error | None = None
        for address in await _resolve_addresses(settings):
            steps = LimitedConnection.connecting(make_conninfo(**{**settings, **address}))
            try:
                connection = await self._drive_login(steps)
            except psycopg.Error as attempt_error:
                error = attempt_error
            else:
                connection.row_factory = dict_row
                for name in ("text", "name"):
                    connection.adapters.register_loader(name, TextLoader)
                connection.adapters.register_loader("jsonb", JsonLoader)
                connection.prepare_threshold = None
                await connection.set_autocommit(True)
                return connection
        raise error or psycopg.OperationalError("the host has no address")

    async def _drive_login(
        self, steps: Generator[Any, Any, LimitedConnection]
    ) -> LimitedConnection:
        ready: int | None = None
        while True:
            waits = await self._compute_in_thread(lambda ready=ready: _next(steps, ready))
            if isinstance(waits, LimitedConnection):
                return waits
            ready = await _wait_until_ready(*waits)

    async def _compute_in_thread(self, step: Callable[[], _T]) -> _T:
        """Compute a step in a thread, after all earlier steps, and return its result."""
        while not self._step.done():
            if self.is_slow:
                raise LoginBusyError(
                    "the login of an earlier attempt is still being computed, and no other login "
                    "starts until it ends; check how many SCRAM iterations the server requests"
                )
            previous = asyncio.wrap_future(self._step)
            await asyncio.wait((previous,), timeout=SLOW_STEP_SECONDS)
        result = self._step = Future[_T]()
        result.set_running_or_notify_cancel()  # it keeps running if it is abandoned
        self._step_started_at = time.monotonic()
        # Not an executor, because the process would wait for its threads on exit.
        thread = threading.Thread(target=_run, args=(step, result), daemon=True, name="login")
        thread.start()
        asyncio.get_running_loop().call_later(SLOW_STEP_SECONDS, _demote, thread, result)
        try:
            return await asyncio.wrap_future(result)
        except asyncio.CancelledError:
            _demote(thread, result)
            raise


_logins: WeakValueDictionary[tuple[str, int], Logins] = WeakValueDictionary()


def logins_to(host: str, port: int) -> Logins:
    """Return the logins to a server, which all clients in this process share."""
    return _logins.setdefault((host, port), Logins())


async def _resolve_addresses(settings: Mapping[str, Any]) -> list[dict[str, str]]:
    """Resolve the host, because libpq would block. A local socket does not need an address."""
    host: str = settings["host"]
    if host.startswith(("/", "@")):
        return [{}]
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(
            host, settings["port"], proto=socket.IPPROTO_TCP, type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise psycopg.OperationalError(f"failed to resolve host {host!r}: {error}") from None
    return [{"hostaddr": str(address[0])} for *_, address in addresses]


def _run(step: Callable[[], _T], result: Future[_T]) -> None:
    try:
        result.set_result(step())
    except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
        result.set_exception(error)


def _next(
    steps: Generator[Any, Any, LimitedConnection], ready: int | None
) -> tuple[int, int] | LimitedConnection:
    """Run the next step of a login. Return the file and events it waits for, or its connection."""
    try:
        return steps.send(ready)
    except StopIteration as end:
        return end.value


def _demote(thread: threading.Thread, result: Future[Any]) -> None:
    """Give a slow step the lowest priority, and let the process exit while it runs."""
    if result.done() or thread.native_id is None or not hasattr(os, "setpriority"):
        return
    with contextlib.suppress(OSError):  # it has just ended
        os.setpriority(os.PRIO_PROCESS, thread.native_id, _LOWEST_PRIORITY)
    _end_without_cleanup()


@functools.cache
def _end_without_cleanup() -> None:
    """Skip the exit handlers of C libraries: they free OpenSSL's memory, which the step uses."""
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # not glibc
        libc.on_exit(getattr(libc, "_exit"), None)  # noqa: B009 - a C name


async def _wait_until_ready(file: int, events: int) -> int:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[int] = loop.create_future()

    def set_ready(state: int) -> None:
        if not ready.done():
            ready.set_result(state)

    if events & Wait.R:
        loop.add_reader(file, set_ready, Ready.R)
    if events & Wait.W:
        loop.add_writer(file, set_ready, Ready.W)
    try:
        return await ready
    finally:
        loop.remove_reader(file)
        loop.remove_writer(file)
