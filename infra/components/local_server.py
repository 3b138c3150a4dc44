"""Base class for components: a server in a directory on this machine."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final

from infra.components import ComponentError
from infra.components.child import Child

_POLL_SECONDS: Final = 0.02
_RESPONSE_SECONDS: Final = 2.0
_LOG_CHARACTERS: Final = 20_000
_MAX_SOCKET_BYTES: Final = 107
"""The kernel's limit on the length of a socket path."""


def max_folder_bytes(longest_socket: str) -> int:
    """Return the maximum length of the directory path for a server with this socket in it."""
    return _MAX_SOCKET_BYTES - len(longest_socket)


class LocalServer(ABC):
    """One server, of one or more processes, with its data and log in one directory.

    A subclass names the server, prepares its directory, starts its processes, and reports whether
    it responds.
    """

    name: ClassVar[str]
    """Name of the server for messages."""

    program: ClassVar[str]
    """Name of the process that responds, for messages."""

    log_name: ClassVar[str]
    """Name of the log file in the directory."""

    start_seconds: ClassVar[float] = 30.0
    stop_seconds: ClassVar[float] = 10.0
    """Time allowed for a shutdown before the server is killed."""

    max_folder_bytes: ClassVar[int | None] = None

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._folder = Path()

    @property
    def pid(self) -> int:
        """Process id of the process that responds."""
        return self._children[-1].pid

    @property
    def log(self) -> Path:
        """The log file."""
        return self._folder / self.log_name

    @property
    def is_running(self) -> bool:
        """Whether the server's processes are running."""
        return bool(self._children) and all(each.is_running for each in self._children)

    async def start(self, data: Path) -> None:
        """Start the server with a data directory, and return once it responds.

        Raises:
            ComponentError: the server is not installed, is already running, or does not start.
        """
        if self.is_running:
            raise ComponentError(f"{self.name} is already running in {self._folder}; stop it first")
        self._folder = await asyncio.to_thread(data.resolve)
        await asyncio.to_thread(self._prepare_checked)
        deadline = time.monotonic() + self.start_seconds
        while True:
            log_start = self.log.stat().st_size if self.log.exists() else 0
            self._children = self._spawn()
            try:
                await self._children[-1].wait_until_ready(
                    self._is_ready, self.program, deadline=deadline, seconds=self.start_seconds
                )
            except BaseException as error:
                reason = self._read_exit_reason(log_start)
                await self.kill()
                if not isinstance(error, ComponentError):
                    raise
                if self._is_temporary(reason) and time.monotonic() < deadline:
                    await asyncio.sleep(_POLL_SECONDS)
                    continue
                raise ComponentError(f"{error}: {reason} (its log is {self.log})") from None
            return

    async def stop(self) -> None:
        """Shut the server down, and kill it after a timeout. The directory can be reused."""
        await asyncio.gather(*(each.stop(self.stop_seconds) for each in self._children))

    async def kill(self) -> None:
        """Kill the server immediately with SIGKILL, to simulate a crash."""
        await asyncio.gather(*(each.kill() for each in self._children))

    # --- implemented by subclasses; all except `_spawn` are called in a thread

    @abstractmethod
    def _problem(self) -> str | None:
        """Return the reason the server cannot be started on this machine, or None if it can."""

    @abstractmethod
    def _prepare(self) -> None:
        """Prepare the directory. An ``OSError`` means that it is unusable."""

    @abstractmethod
    def _spawn(self) -> list[Child]:
        """Start the server's processes. The last one must be the process that responds."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return whether the server is ready."""

    def _parse_exit_reason(self, lines: Sequence[str]) -> str:
        """Return the reason for the exit, from the log lines."""
        return lines[-1]

    def _is_temporary(self, reason: str) -> bool:
        """Return whether a start that failed for this reason may soon succeed."""
        del reason
        return False

    # --- for subclasses

    def _wait_for_end(self, find: Callable[[], int | None], seconds: float) -> None:
        """Wait until an earlier server that uses the directory exits. ``find`` returns its pid.

        Raises:
            ComponentError: the server is still running after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while (pid := find()) is not None:
            if time.monotonic() > deadline:
                raise ComponentError(
                    f"{self._folder} is in use by another server (pid {pid}); stop that "
                    "server, or use another directory"
                )
            time.sleep(_POLL_SECONDS)

    # --- called in a thread

    def _prepare_checked(self) -> None:
        if (problem := self._problem()) is not None:
            raise ComponentError(problem)
        max_bytes = self.max_folder_bytes
        if max_bytes is not None and len(bytes(self._folder)) > max_bytes:
            raise ComponentError(
                f"{self._folder}: too long for the path of the server's socket (at most "
                f"{_MAX_SOCKET_BYTES} bytes); use a directory of at most {max_bytes} bytes"
            )
        try:
            self._prepare()
        except OSError as error:
            raise ComponentError(f"{self._folder} is not usable: {error.strerror}") from error

    def _read_exit_reason(self, log_start: int) -> str:
        log_text = self.log.read_bytes()[log_start:].decode(errors="replace")[-_LOG_CHARACTERS:]
        lines = [line.strip() for line in log_text.splitlines() if line.strip()]
        return self._parse_exit_reason(lines) if lines else "no output"


def get_local(address: Path | int, target: str) -> bytes | None:
    """Return the response from a server on a socket or a port on 127.0.0.1, or None.

    It uses the standard library, because requests are sent only during startup.
    """
    port = address if isinstance(address, int) else None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_RESPONSE_SECONDS)
    try:
        if isinstance(address, Path):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(_RESPONSE_SECONDS)
            connection.sock.connect(str(address))
        connection.request("GET", target)
        response = connection.getresponse()
        return response.read() if response.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
