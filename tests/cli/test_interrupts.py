"""Ctrl-C at any time, and the message that the command prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.cli.runner import STOP_SECONDS, Cli, InProcessCli

INTERRUPT_AT_IMPORT = """
import os, signal, sys
from reconciler.cli.entry import main

class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
sys.argv[1:] = ["get"]
sys.exit(main())
"""


@pytest.mark.parametrize(
    "module",
    [
        "reconciler.cli.main",
        "difflib",
        "cyclopts",
        "reconciler.cli.get",
        "infra.jetstream.access",
        "uvloop",
    ],
)
def test_an_interrupt_during_startup_is_reported_in_one_line(cli: Cli, module: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPT_AT_IMPORT.format(module=module)],
        cwd=cli.folder,
        capture_output=True,
        text=True,
        timeout=STOP_SECONDS,
        env=cli.environment(),
        check=False,
    )
    assert (process.returncode, process.stderr) == (130, "error: interrupted\n")


INTERRUPT_AT_WORK = """
import asyncio, os, signal, sys, threading
from reconciler.cli import get
from reconciler.cli.entry import main

def interrupt_soon():
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

async def work(interrupt_again):
    try:
        await asyncio.sleep(60)
    finally:
        if interrupt_again:
            interrupt_soon()
            await asyncio.sleep(60)

async def get_interrupted(*_):
    interrupt_soon()
    background = asyncio.create_task(work("{second}" == "shutdown"))
    await work("{second}" == "cleanup")

get._get = get_interrupted
sys.argv[1:] = ["get"]
sys.exit(main())
"""


@pytest.mark.parametrize("second", ["", "cleanup", "shutdown"])
def test_interrupts_of_a_running_command_are_reported_in_one_line(cli: Cli, second: str) -> None:
    """A second interrupt may arrive while the command cleans up or the event loop shuts down."""
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPT_AT_WORK.format(second=second)],
        cwd=cli.folder,
        capture_output=True,
        text=True,
        timeout=STOP_SECONDS,
        env=cli.environment(),
        check=False,
    )
    assert (process.returncode, process.stderr) == (130, "error: interrupted\n")


def test_an_interrupted_read_command_does_not_mention_pending_requests(
    local_cli: InProcessCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_an_interrupted_request_is_reported_as_interrupted` covers a command that sends."""

    def interrupt(work: Coroutine[Any, Any, Any]) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("reconciler.cli.get.run_async", interrupt)
    result = local_cli.run("get", RECONCILER_NATS_URL="nats://127.0.0.1:1")
    assert (result.status, result.err) == (130, "error: interrupted\n")
