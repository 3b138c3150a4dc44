"""The processes under test: nats-server, the shapes API, and `reconciler up` with its roles."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from infra.embedded import EmbeddedServer
from tests.faulty_api import FaultyApi

ALL_IN_ONE = ("decider,worker,observer,projector",)
WORKER_APART = ("decider,observer,projector", "worker")

_READY_SECONDS = 60.0
_STOP_SECONDS = 30.0


class ReconcilerFailedError(Exception):
    """`reconciler up` did not become ready; the message contains the end of its log."""


class ReconcilerProcess:
    """One `reconciler up` on a running bus."""

    def __init__(
        self,
        roles: str,
        nats_url: str,
        folder: Path,
        *,
        python: str = sys.executable,
        options: Sequence[str] = (),
    ) -> None:
        self.roles = roles
        self._command = [python, "-m", "reconciler", "up", "--no-api", "--output", "json"]
        self._command += ["--nats-url", nats_url, "--data", str(folder), "--roles", roles, *options]
        self._log = folder / "up.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start the process, and wait for its ready message."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._log.parent,  # elsewhere, Python could import the modules of this checkout
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(_READY_SECONDS):
            line = await self._process.stdout.readline()
        if not line:
            log_end = self._log.read_text(errors="replace")[-2_000:]
            raise ReconcilerFailedError(f"reconciler up --roles {self.roles}: {log_end}")

    async def stop(self) -> None:
        """Stop the process with SIGTERM, or kill it after a timeout."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def kill(self) -> None:
        """Kill the process, to simulate a crash."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()


class Stack:
    """All processes of one case; ``reconcilers`` can be restarted."""

    def __init__(
        self,
        servers: Sequence[EmbeddedServer],
        api: FaultyApi,
        reconcilers: Sequence[ReconcilerProcess],
    ) -> None:
        self.servers = servers
        self.api = api
        self.reconcilers = reconcilers

    @property
    def reconciler_pids(self) -> dict[str, int]:
        """Process IDs of the running reconcilers by name."""
        pids = dict[str, int]()
        for number, each in enumerate(self.reconcilers, 1):
            name = f"reconciler ({each.roles})" if pids else "reconciler"
            pids[f"{name} {number}" if name in pids else name] = each.pid
        return pids

    @property
    def pids(self) -> dict[str, int]:
        """Process IDs by name; the client is this process."""
        servers = {f"nats-server {number}": each.pid for number, each in enumerate(self.servers, 1)}
        return {
            **({"nats-server": self.servers[0].pid} if len(self.servers) == 1 else servers),
            "example-api": self.api.pid,
            **self.reconciler_pids,
            "client": os.getpid(),
        }

    async def start_reconcilers(self) -> float:
        """Start the reconcilers one after another, and return the seconds until all are ready."""
        began = time.perf_counter()
        for each in self.reconcilers:
            await each.start()
        return time.perf_counter() - began

    async def stop_reconcilers(self) -> float:
        """Stop all reconcilers, and return the seconds taken."""
        began = time.perf_counter()
        await asyncio.gather(*(each.stop() for each in self.reconcilers))
        return time.perf_counter() - began


@asynccontextmanager
async def running_stack(
    folder: Path, *, latency_ms: float, layout: Sequence[str], python: str = sys.executable
) -> AsyncGenerator[Stack]:
    """Start all processes in an empty folder.

    ``layout``: the roles of each reconciler process. ``python``: their interpreter.
    """
    server, api = EmbeddedServer(), FaultyApi()
    reconcilers: list[ReconcilerProcess] = []
    try:
        url = await server.start(folder / "nats")
        await api.start(folder / "example-api", latency_ms=latency_ms)
        reconcilers += [
            ReconcilerProcess(roles, url, folder / f"up-{number}", python=python)
            for number, roles in enumerate(layout)
        ]
        stack = Stack([server], api, reconcilers)
        await stack.start_reconcilers()
        yield stack
    finally:
        await asyncio.gather(*(each.stop() for each in reconcilers))
        await api.stop()
        await server.stop()
