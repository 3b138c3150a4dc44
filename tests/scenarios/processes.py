"""Roles in separate processes, as operators run them; their logs are kept in files."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from reconciler.wiring import Role
from tests.scenarios.harness import World


class RoleProcess:
    """One ``reconciler run``."""

    def __init__(self, role: Role, url: str, log: Path, **environment: str) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "reconciler", "run", role, "--nats-url", url]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env={**os.environ, "NO_COLOR": "1", **environment},
            )

    def count_lines(self, words: str) -> int:
        """Return the number of logged lines that contain the given words."""
        return sum(words in line for line in self._log.read_text(errors="replace").splitlines())

    def kill(self) -> None:
        """Kill the process, and wait for its exit."""
        self._process.kill()
        self._process.wait()

    def has_exited(self) -> bool:
        return self._process.poll() is not None


async def wait_for_log_line(world: World, processes: list[RoleProcess], words: str) -> None:
    """Wait until every process has logged a line with these words."""

    async def have_logged() -> bool:
        assert not any(each.has_exited() for each in processes), "a process exited on its own"
        return all(each.count_lines(words) for each in processes)

    await world.until(have_logged, f"{words!r} in every process's log", seconds=30)


@asynccontextmanager
async def workers(world: World, folder: Path, count: int) -> AsyncGenerator[list[RoleProcess]]:
    """Run workers, each in a separate process, until the context ends."""
    running = [
        RoleProcess("worker", world.url, folder / f"worker-{number}.log") for number in range(count)
    ]
    try:
        await wait_for_log_line(world, running, "role is running")
        yield running
    finally:
        for each in running:
            await asyncio.to_thread(each.kill)
