"""The command line as users run it: processes in the test's own folder."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from infra.embedded import EmbeddedServer
from reconciler.cli.main import main
from reconciler.wiring import initialize, open_connection

REPOSITORY = Path(__file__).parents[2]
STOP_SECONDS = 90
PATIENCE_SECONDS = 90
"""Limit for something that takes a second on an idle machine."""
COMMAND = (sys.executable, "-m", "reconciler")


@dataclass(frozen=True)
class CommandResult:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """Return the words of each line after the heading."""
        return [line.split() for line in self.out.splitlines()[1:]]


class Cli:
    """Runs commands in a folder, on the bus of its `up` or at the given address."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if "RECONCILER" not in name}
        bus = {} if self.url is None else {"RECONCILER_NATS_URL": self.url}
        return {**inherited, **bus, "PYTHONPATH": str(REPOSITORY)}

    def run(self, *arguments: str, text: str | None = None, **environment: str) -> CommandResult:
        process = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            input=text,
            capture_output=True,
            text=True,
            timeout=100,
            env={**self.environment(), **environment},
            check=False,
        )
        return CommandResult(process.returncode, process.stdout, process.stderr)

    def ok(self, *arguments: str, text: str | None = None) -> CommandResult:
        result = self.run(*arguments, text=text)
        assert result.status == 0, f"{arguments}: {result}"
        return result

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name


class InProcessCli(Cli):
    """Runs commands in this process to save a second per command; restores the log settings."""

    def run(self, *arguments: str, text: str | None = None, **environment: str) -> CommandResult:
        out, err = io.StringIO(), io.StringIO()
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        with (
            pytest.MonkeyPatch.context() as patch,
            chdir(self.folder),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            patch.delenv("RECONCILER_NATS_URL", raising=False)
            if self.url is not None:
                patch.setenv("RECONCILER_NATS_URL", self.url)
            stdin = io.BytesIO((text or "").encode())
            patch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
            for name, value in environment.items():
                patch.setenv(name, value)
            # Concurrent log lines of roles in this process are not the command's output.
            structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))
            try:
                status = main(arguments)
            finally:
                structlog.reset_defaults()
                root.handlers[:] = handlers
                root.setLevel(level)
        return CommandResult(int(status), out.getvalue(), err.getvalue())


@dataclass
class Up:
    """A running `reconciler up`."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Stop it. Return its exit status and what it logged, except information.

        On a busy machine, a role may lose its lease for a moment and log that.
        """
        self.process.send_signal(number)
        _out, err = self.process.communicate(timeout=STOP_SECONDS)
        lines = err.splitlines(keepends=True)
        return self.process.returncode, "".join(x for x in lines if '"level": "info"' not in x)


@contextmanager
def up(cli: Cli, *arguments: str) -> Generator[Up]:
    """Run `up` on free ports; yield it when it is ready."""
    process = cli.start("up", "--port", "0", "--api-port", "0", "--output", "json", *arguments)
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        if not line:
            raise AssertionError(f"up exited: {process.communicate(timeout=STOP_SECONDS)[1]}")
        yield Up(process, json.loads(line))
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=STOP_SECONDS)


@contextmanager
def empty_bus(folder: Path) -> Generator[str]:
    """Run a server without our streams; yield its URL."""
    server = EmbeddedServer()
    asyncio.run(server.start(folder))
    try:
        yield server.url
    finally:
        asyncio.run(server.stop())


@contextmanager
def idle_bus(folder: Path) -> Generator[str]:
    """Run a bus without roles, outside of any `up`; yield its URL."""
    with empty_bus(folder) as url:
        asyncio.run(_initialize(url))
        yield url


async def _initialize(url: str) -> None:
    async with open_connection(url) as nc:
        await initialize(nc)


def shape(name: str, color: str = "Red", **metadata: str) -> str:
    """Return the manifest of a shape."""
    more = "".join(f", {key}: {value}" for key, value in metadata.items())
    return (
        f"apiVersion: shapes/v1\nkind: Shape\nmetadata: {{name: {name}{more}}}\n"
        f"spec: {{type: Square, color: {color}}}\n"
    )


def wait_until(live: Cli, arguments: tuple[str, ...], accepts: Callable[[Any], bool]) -> Any:
    """Run a command that prints JSON until its output is accepted; return the output."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        result = live.run(*arguments, "-o", "json")
        rows: Any = json.loads(result.out or "[]")
        if accepts(rows):
            return rows
        assert time.monotonic() < deadline, f"{arguments}: {result}"
