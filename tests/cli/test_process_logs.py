"""Logs and errors of a process: in none of them is a secret that it has read."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Generator

import pytest
import structlog

from reconciler.cli import errors, process_logs
from reconciler.cli.process_logs import configure_logs
from reconciler.secrecy import HIDDEN, Secrecy
from tests.security.encodings import every_way

TOKEN = "planted&token<7f3a91c2>"


@pytest.fixture(autouse=True)
def secrecy(monkeypatch: pytest.MonkeyPatch) -> Generator[Secrecy]:
    """Remember a secret, and put the logs back as they were."""
    remembered = Secrecy(TOKEN)
    for module in (errors, process_logs):
        monkeypatch.setattr(module, "PROCESS_SECRETS", remembered)
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    yield remembered
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**config)


@pytest.mark.parametrize("way", every_way(TOKEN).values(), ids=every_way(TOKEN))
def test_a_line_of_the_log_contains_no_secret(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info")
    structlog.get_logger().info(f"got {way}", error=KeyError(way), several=[way], count=7)
    logging.getLogger("a.library").warning("sent %s", way)
    log_lines, librarys = map(json.loads, capsys.readouterr().err.splitlines())
    assert HIDDEN in log_lines["event"]
    assert (log_lines["level"], log_lines["count"]) == ("info", 7)
    assert (librarys["event"].startswith("sent "), librarys["logger"]) == (True, "a.library")
    assert way not in str(log_lines) + str(librarys)


def _fail() -> None:
    try:
        {}[TOKEN]
    except KeyError as error:
        raise ValueError("a provider failed") from error


def test_a_traceback_contains_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info")
    with pytest.raises(ValueError, match="a provider failed") as failed:
        _fail()
    structlog.get_logger().error("failed", exc_info=failed.value)
    assert errors.report(failed.value, with_traceback=True) == 1
    line, _, traceback = capsys.readouterr().err.partition("\n")
    for text in (json.loads(line)["exception"], traceback):
        assert f"KeyError: '{HIDDEN}'" in text
        assert "ValueError: a provider failed" in text
    assert "planted" not in line + traceback


def test_the_line_of_an_error_contains_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    errors.report(errors.CommandError(f"the API said {TOKEN}"))
    assert capsys.readouterr().err == f"error: the API said {HIDDEN}\n"


@pytest.mark.parametrize("target", ["/dev/full", "a pipe without a reader"])
def test_a_log_line_that_cannot_be_written_is_no_error(target: str) -> None:
    script = (
        "import structlog, logging, sys\n"
        "from reconciler.cli.process_logs import configure_logs\n"
        "from reconciler.cli.standard_streams import tolerate_stderr_failures\n"
        "tolerate_stderr_failures()\n"
        "configure_logs('info')\n"
        "structlog.get_logger().warning('of ours')\n"
        "logging.getLogger('a.library').warning('of others')\n"
        "print('goes on')\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    if target == "/dev/full":
        os.dup2(os.open(target, os.O_WRONLY), writer)
    ran = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (ran.returncode, ran.stdout) == (0, "goes on\n")
