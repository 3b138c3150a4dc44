"""Real processes of the product that can be killed, paused and inspected.

They are forked from one server process that has imported everything, which saves each case of the
matrix the second that Python needs to start. Each is still a separate process with its own
connection.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reconciler.wiring import ROLES
from tests.crashes.roles import READY, run_process

TIMEOUT_SECONDS = 90.0
ROOT = Path(__file__).parents[2]

_POLL_SECONDS = 0.01
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["__main__", "tests.crashes.roles"])


async def wait_until_fork_server_is_ready() -> None:
    """Wait until the fork server has imported everything, because the first fork blocks until then.

    On a busy machine, that exceeds the request timeout of another lane on the same event loop.
    """
    await asyncio.to_thread(_fork_once)


def _fork_once() -> None:
    process = _context.Process(target=os.getpid)
    process.start()
    process.join()


class RoleProcess:
    """A process that runs roles."""

    def __init__(self, pid: int, poll: Callable[[], int | None], log: Path) -> None:
        self.pid = pid
        self._poll = poll
        self._log = log

    @classmethod
    def fork(
        cls, url: str, log: Path, *, failpoint: str = "", roles: Sequence[str] | str = ROLES
    ) -> RoleProcess:
        """Fork a process; ``failpoint`` has the syntax of ``reconciler.failpoints``."""
        process = _context.Process(
            target=run_process, args=(url, roles, failpoint, log), daemon=True
        )
        process.start()
        assert process.pid is not None
        return cls(process.pid, lambda: process.exitcode, log)

    @classmethod
    def spawn(cls, url: str, log: Path, environment: Mapping[str, str]) -> RoleProcess:
        """Start a new interpreter, for environment variables that take effect only at startup."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.crashes.roles", url],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return cls(process.pid, process.poll, log)

    @property
    def error_output(self) -> str:
        """Everything that the process wrote to standard error."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def exit_code(self) -> int | None:
        """The exit code; negative for a signal, None while the process is running."""
        return self._poll()

    async def wait_until_ready(self) -> None:
        """Wait until the roles are running."""
        await self._wait_until(lambda: READY in self.error_output, "ready")

    async def wait_for_exit(self) -> int:
        """Wait until the process exits, and return its exit code."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (code := self._poll()) is None:
            assert time.monotonic() < deadline, f"still alive:\n{self.error_output}"
            await asyncio.sleep(_POLL_SECONDS)
        return code

    async def wait_until_killed_at(self, point: str) -> None:
        """Wait until the process exits, and assert that it was killed at the failpoint."""
        code = await self.wait_for_exit()
        assert (code, self._reached(point)) == (-signal.SIGKILL, True), self.error_output

    async def wait_until_reached(self, point: str) -> None:
        """Wait until the process has reached the failpoint, which need not kill it."""
        await self._wait_until(lambda: self._reached(point), f"at {point}")

    async def wait_until_paused_at(self, point: str) -> None:
        """Wait until the process has paused itself at the failpoint."""
        await self._wait_until(
            lambda: self._reached(point) and self._is_stopped(), f"paused at {point}"
        )

    def resume(self) -> None:
        """Resume the paused process."""
        os.kill(self.pid, signal.SIGCONT)

    def pause(self) -> None:
        """Pause the process."""
        os.kill(self.pid, signal.SIGSTOP)

    async def kill(self) -> None:
        """Kill the process."""
        if self._poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            await self.wait_for_exit()

    async def stop(self) -> None:
        """Wait until the roles are running, and stop the process with SIGTERM."""
        if self._poll() is None:
            await self.wait_until_ready()
            os.kill(self.pid, signal.SIGTERM)
            assert await self.wait_for_exit() == 0, self.error_output

    async def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            assert self._poll() is None, (
                f"exited with {self._poll()}, not {what}:\n{self.error_output}"
            )
            assert time.monotonic() < deadline, f"not {what}:\n{self.error_output}"
            await asyncio.sleep(_POLL_SECONDS)

    def _reached(self, point: str) -> bool:
        return f"failpoint {point} reached" in self.error_output

    def _is_stopped(self) -> bool:
        status = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return status[0] == "T"
