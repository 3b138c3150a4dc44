"""Roles as separate processes, restarted as an init system would."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from reconciler.wiring import Role

REPOSITORY = Path(__file__).parents[2]
READY_SECONDS = 180.0
_READY = "role is running"
_POLL_SECONDS = 0.1


class RoleProcess:
    """One `reconciler run`."""

    def __init__(self, role: Role, url: str, log: Path) -> None:
        self.role = role
        self.starts = 0
        self.is_paused = False
        self._log = log
        self._command = [sys.executable, "-m", "reconciler", "run", role, "--nats-url", url]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while the process is running."""
        assert self._process is not None
        return self._process.poll()

    @property
    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )

    async def until_ready(self) -> None:
        """Wait until this start is reported in the log."""
        deadline = time.monotonic() + READY_SECONDS
        while self.log_text.count(_READY) < self.starts:
            assert self.status is None, f"{self.role} exited: {self.log_text[-2_000:]}"
            assert time.monotonic() < deadline, (
                f"{self.role} is not ready: {self.log_text[-2_000:]}"
            )
            await asyncio.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.is_paused = False

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False

    async def stop(self) -> None:
        """Stop the process cleanly."""
        assert self._process is not None
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, 20)
        self.kill()


class Fleet:
    """Several roles; a process that exits on its own is recorded in ``exits`` and restarted."""

    def __init__(self, processes: Sequence[RoleProcess]) -> None:
        self.processes = processes
        self.exits: list[str] = []

    def of(self, role: Role) -> list[RoleProcess]:
        return [each for each in self.processes if each.role == role]

    @property
    def log_ends(self) -> str:
        """The end of each role's log."""
        return "\n".join(f"{each.role}: ...{each.log_text[-2_000:]}" for each in self.processes)

    def restart(self, process: RoleProcess) -> None:
        """Kill a process and restart it."""
        process.kill()
        process.start()

    async def watch(self) -> None:
        """Restart each process that exited on its own, until canceled."""
        while True:
            for process in self.processes:
                if process.status is not None:
                    last = process.log_text.strip().splitlines()[-1:]
                    self.exits.append(f"{process.role} ({process.status}): {' '.join(last)}")
                    process.start()
            await asyncio.sleep(_POLL_SECONDS)


@asynccontextmanager
async def fleet(url: str, roles: Sequence[Role], folder: Path) -> AsyncGenerator[Fleet]:
    """Run and supervise a process for each given role, with its log in the folder."""
    running = Fleet(
        [
            RoleProcess(role, url, folder / f"{number}-{role}.log")
            for number, role in enumerate(roles)
        ]
    )
    for each in running.processes:
        each.start()
    try:
        await asyncio.gather(*(each.until_ready() for each in running.processes))
        watching = asyncio.create_task(running.watch())
        try:
            yield running
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await asyncio.gather(*(each.stop() for each in running.processes))
    finally:
        for each in running.processes:
            each.kill()
