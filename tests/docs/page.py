"""Pages whose commands are run as written, and whose output is compared.

The code blocks on a page:

- ``sh``: commands, one a line. A comment ``# exit status N`` states a status other than 0.
- ``text`` after them: lines of their output, in order. ``…`` stands for any text.
- ``yaml`` after "Save this as `PATH`:": the content of that file.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from tests.cli.runner import COMMAND, PATIENCE_SECONDS, REPOSITORY, Cli
from tests.ports import free_port

UP = "./run up"
ENDLESS = "./run reconciler watch"

_BLOCK = re.compile(r"^```(sh|text|yaml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SAVE = re.compile(r"Save this as `([^`]+)`:\n\n$")
_STATUS = re.compile(r"#.*exit status (\d)")
_RUN = f"""#!/bin/sh
case "$1" in reconciler) shift ;; esac
exec {shlex.join(COMMAND)} "$@"
"""
"""The `run` script in the page's folder: the command line of this environment."""


@dataclass(frozen=True)
class Block:
    """A code block, and the path of the file to save it as."""

    language: Literal["sh", "text", "yaml"]
    text: str
    path: str | None = None


def blocks(markdown: str) -> list[Block]:
    """Return the blocks of a page that are run or compared, in order."""
    page_blocks: list[Block] = []
    for block in _BLOCK.finditer(markdown):
        saved = _SAVE.search(markdown, 0, block.start())
        path = saved[1] if saved else None
        if block[1] != "yaml" or path:
            page_blocks.append(Block(block[1], block[2], path))  # pyright: ignore[reportArgumentType]
    return page_blocks


def mismatch(expected: str, output: str) -> str | None:
    """Return the first line of ``expected`` that ``output`` lacks, in order; else ``None``."""
    lines = iter(output.splitlines())
    for line in expected.splitlines():
        if not any(is_shown(line, each) for each in lines):
            return line
    return None


def is_shown(line: str, output: str) -> bool:
    """Return whether a line of a page stands for a line of output; gaps may differ in width."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in line.split("…")]
    return re.fullmatch(r"\s*" + r"\s*.*\s*".join(parts) + r"\s*", output) is not None


@dataclass
class Terminal:
    """A folder in which the commands of a page run, with the test's own ports and folders."""

    folder: Path
    page_folders: tuple[str, ...] = ()
    """Folders named on the page that are in ``folder`` here, such as ``/tmp/orders``."""
    run_commands: list[str] = field(default_factory=list[str])
    """The ``reconciler`` commands that were run, in order."""

    def __post_init__(self) -> None:
        self._nats_port, self._api_port = free_port(), free_port()
        self._up: subprocess.Popen[str] | None = None
        shutil.copytree(REPOSITORY / "examples", self.folder / "examples")
        run = self.folder / "run"
        run.write_text(_RUN)
        run.chmod(0o755)
        for path in (self.folder / "examples").rglob("*.yaml"):
            path.write_text(self.localize(path.read_text()))

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self._api_port}"

    def localize(self, text: str) -> str:
        """Return text from the page with the ports and folders of this test."""
        text = text.replace(":8080", f":{self._api_port}").replace(":4222", f":{self._nats_port}")
        for path in self.page_folders:
            text = text.replace(path, str(self.folder / Path(path).name))
        return text

    def follow(self, page: list[Block]) -> None:
        """Run a page's commands; an ``AssertionError`` names a command whose output differs."""
        for number, block in enumerate(page):
            if block.path is not None:
                Path(self.localize(block.path)).write_text(self.localize(block.text))
            if block.language != "sh":
                continue
            next_block = page[number + 1] if number + 1 < len(page) else None
            expected_output = next_block.text if next_block and next_block.language == "text" else ""
            self._run_all(block.text.splitlines(), expected_output)

    def start(self, *options: str) -> None:
        """Start ``up``, or restart it as after Ctrl-C."""
        self.stop()
        ports = ("--port", str(self._nats_port), "--api-port", str(self._api_port))
        self._up = subprocess.Popen(
            [*COMMAND, "up", *options, *ports, "--output", "json"],
            cwd=self.folder,
            env=Cli(self.folder).environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._up.stdout is not None
        ready: dict[str, Any] = json.loads(self._up.stdout.readline())
        assert ready["apiUrl"] == self.api_url

    def stop(self) -> None:
        """Stop ``up`` as Ctrl-C does."""
        if self._up is not None:
            self._up.send_signal(signal.SIGINT)
            assert self._up.wait(PATIENCE_SECONDS) == 0
            self._up = None

    def _run_all(self, lines: list[str], expected: str) -> None:
        output = ""
        for line in lines:
            if line.startswith(ENDLESS):
                self._watch(line, expected)
                continue
            status, output = self._run(line)
            stated = _STATUS.search(line)
            assert status == (int(stated[1]) if stated else 0), (line, output)
        if expected and not lines[-1].startswith(ENDLESS):
            missing = mismatch(self.localize(expected), output)
            assert missing is None, f"{lines[-1]}: no line {missing!r} in\n{output}"

    def _run(self, line: str) -> tuple[int, str]:
        if line.startswith(UP):
            self.start(*shlex.split(line.removeprefix(UP)))
            return 0, ""
        if line.startswith("curl "):
            return self._call(shlex.split(line))
        self.run_commands += re.findall(r"\./run reconciler (\S+)", line)
        process = subprocess.run(
            ["sh", "-c", self.localize(line)],
            cwd=self.folder,
            env=Cli(self.folder).environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return process.returncode, process.stdout

    def _call(self, words: list[str]) -> tuple[int, str]:
        """Call the example API; the status is 0 for a successful response."""
        method = words[words.index("-X") + 1] if "-X" in words else "GET"
        response = httpx.request(method, self.localize(words[-1]))
        return (0 if response.is_success else response.status_code), response.text

    def _watch(self, line: str, text: str) -> None:
        """Watch until as many lines are printed as the page shows, and compare them."""
        self.run_commands.append("watch")
        expected_lines = text.splitlines()
        assert expected_lines, f"{line}: runs until Ctrl-C, so the page must show its output"
        process = subprocess.Popen(
            [sys.executable, "-u", *COMMAND[1:], *shlex.split(line)[2:]],
            cwd=self.folder,
            env=Cli(self.folder).environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process:
            output_lines = [process.stdout.readline().rstrip("\n") for _ in expected_lines]
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 0
        for expected, actual in zip(expected_lines, output_lines, strict=True):
            assert is_shown(expected, actual), (line, output_lines)


@contextmanager
def terminal(folder: Path, *page_folders: str) -> Generator[Terminal]:
    """Open a terminal whose ``up`` is stopped at the end."""
    opened = Terminal(folder, page_folders)
    try:
        yield opened
    finally:
        opened.stop()
