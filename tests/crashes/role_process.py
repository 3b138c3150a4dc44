"""Processes of the product, real ones, that can be killed, paused and looked at.

They are forked from one server process that has imported everything once, so that a case of the
matrix does not pay the second that Python needs to start; each is a process of its own all the
same, with its own connection, and dies its own death.
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

PATIENCE_SECONDS = 90.0
ROOT = Path(__file__).parents[2]

_LOOK_SECONDS = 0.01
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["__main__", "tests.crashes.roles"])


async def ready_to_fork() -> None:
    """Wait until the server that forks has imported everything: the first fork waits for that.

    On a busy machine it is longer than a request of another lane may take, on the same event loop.
    """
    await asyncio.to_thread(_fork_once)


def _fork_once() -> None:
    process = _context.Process(target=os.getpid)
    process.start()
    process.join()


class RoleProcess:
    """One process that runs roles."""

    def __init__(self, pid: int, poll: Callable[[], int | None], log: Path) -> None:
        self.pid = pid
        self._poll = poll
        self._log = log

    @classmethod
    def fork(
        cls, url: str, log: Path, *, failpoint: str = "", roles: Sequence[str] | str = ROLES
    ) -> RoleProcess:
        """Start one quickly; ``failpoint`` as in ``reconciler.failpoints``."""
        process = _context.Process(
            target=run_process, args=(url, roles, failpoint, log), daemon=True
        )
        process.start()
        assert process.pid is not None
        return cls(process.pid, lambda: process.exitcode, log)

    @classmethod
    def spawn(cls, url: str, log: Path, environment: Mapping[str, str]) -> RoleProcess:
        """Start one afresh, with an environment that works only from the beginning."""
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
        """What it wrote on standard error."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def exit_code(self) -> int | None:
        """How it ended: below 0 by that signal; None while it lives."""
        return self._poll()

    async def ready(self) -> None:
        """Wait until its roles run."""
        await self._until(lambda: READY in self.error_output, "ready")

    async def ended(self) -> int:
        """Wait until it has ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (code := self._poll()) is None:
            assert time.monotonic() < deadline, f"still alive:\n{self.error_output}"
            await asyncio.sleep(_LOOK_SECONDS)
        return code

    async def killed_at(self, point: str) -> None:
        """Wait for its death, and see that it was by SIGKILL, at the failpoint."""
        code = await self.ended()
        assert (code, self._reached(point)) == (-signal.SIGKILL, True), self.error_output

    async def reached(self, point: str) -> None:
        """Wait until it has come to the failpoint, which may do without its death."""
        await self._until(lambda: self._reached(point), f"at {point}")

    async def paused_at(self, point: str) -> None:
        """Wait until it has stopped itself at the failpoint."""
        await self._until(lambda: self._reached(point) and self._is_stopped(), f"paused at {point}")

    def resume(self) -> None:
        """Let a paused process go on, as if nothing had happened."""
        os.kill(self.pid, signal.SIGCONT)

    def pause(self) -> None:
        """Pause it wherever it is."""
        os.kill(self.pid, signal.SIGSTOP)

    async def kill(self) -> None:
        """End it at once."""
        if self._poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            await self.ended()

    async def stop(self) -> None:
        """End it in order, once it runs."""
        if self._poll() is None:
            await self.ready()
            os.kill(self.pid, signal.SIGTERM)
            assert await self.ended() == 0, self.error_output

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self._poll() is None, (
                f"ended with {self._poll()}, not {what}:\n{self.error_output}"
            )
            assert time.monotonic() < deadline, f"not {what}:\n{self.error_output}"
            await asyncio.sleep(_LOOK_SECONDS)

    def _reached(self, point: str) -> bool:
        return f"failpoint {point} reached" in self.error_output

    def _is_stopped(self) -> bool:
        status = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return status[0] == "T"
