"""Ctrl-C, whenever it comes, and what a command reports then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.cli.runner import STOP_SECONDS, Cli, Inside

AT_AN_IMPORT = """
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
    ["reconciler.cli.main", "difflib", "cyclopts", "reconciler.cli.get", "infra.jetstream.access"],
)
def test_a_command_that_is_interrupted_while_it_starts_ends_in_one_line(
    cli: Cli, module: str
) -> None:
    process = subprocess.run(
        [sys.executable, "-c", AT_AN_IMPORT.format(module=module)],
        cwd=cli.folder,
        capture_output=True,
        text=True,
        timeout=STOP_SECONDS,
        env=cli.environment(),
        check=False,
    )
    assert (process.returncode, process.stderr) == (130, "error: interrupted\n")


def test_a_command_that_sends_nothing_leaves_nothing_to_be_done(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_an_interrupted_question_is_reported_as_interrupted` has one that sends."""

    def interrupted(work: Coroutine[Any, Any, Any]) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("reconciler.cli.get.run_async", interrupted)
    ran = inside.run("get", RECONCILER_NATS_URL="nats://127.0.0.1:1")
    assert (ran.status, ran.err) == (130, "error: interrupted\n")
