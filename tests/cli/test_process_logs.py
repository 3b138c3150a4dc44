"""A process's logs and errors contain no secret that it has read."""

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
from tests.security.encodings import encode_in_every_way

TOKEN = "planted&token<7f3a91c2>"


@pytest.fixture(autouse=True)
def secrecy(monkeypatch: pytest.MonkeyPatch) -> Generator[Secrecy]:
    """Register a secret, and restore the log settings after the test."""
    registered = Secrecy(TOKEN)
    for module in (errors, process_logs):
        monkeypatch.setattr(module, "PROCESS_SECRETS", registered)
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    yield registered
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**config)


@pytest.mark.parametrize(
    "encoding", encode_in_every_way(TOKEN).values(), ids=encode_in_every_way(TOKEN)
)
def test_a_log_line_contains_no_secret(encoding: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info")
    structlog.get_logger().info(
        f"got {encoding}", error=KeyError(encoding), several=[encoding], count=7
    )
    logging.getLogger("a.library").warning("sent %s", encoding)
    log_lines, library_line = map(json.loads, capsys.readouterr().err.splitlines())
    assert HIDDEN in log_lines["event"]
    assert (log_lines["level"], log_lines["count"]) == ("info", 7)
    assert (library_line["event"].startswith("sent "), library_line["logger"]) == (
        True,
        "a.library",
    )
    assert encoding not in str(log_lines) + str(library_line)


def _fail() -> None:
    try:
        {}[TOKEN]
    except KeyError as error:
        raise ValueError("a provider failed") from error


def test_a_traceback_contains_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info")
    with pytest.raises(ValueError, match="a provider failed") as raised:
        _fail()
    structlog.get_logger().error("failed", exc_info=raised.value)
    assert errors.report(raised.value, with_traceback=True) == 1
    line, _, traceback = capsys.readouterr().err.partition("\n")
    for text in (json.loads(line)["exception"], traceback):
        assert f"KeyError: '{HIDDEN}'" in text
        assert "ValueError: a provider failed" in text
    assert "planted" not in line + traceback


def test_an_error_line_contains_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    errors.report(errors.CommandError(f"the API said {TOKEN}"))
    assert capsys.readouterr().err == f"error: the API said {HIDDEN}\n"


@pytest.mark.parametrize("target", ["/dev/full", "a pipe without a reader"])
def test_a_log_line_that_cannot_be_written_is_not_an_error(target: str) -> None:
    script = (
        "import structlog, logging, sys\n"
        "from reconciler.cli.process_logs import configure_logs\n"
        "from reconciler.cli.standard_streams import tolerate_stderr_failures\n"
        "tolerate_stderr_failures()\n"
        "configure_logs('info')\n"
        "structlog.get_logger().warning('our own')\n"
        "logging.getLogger('a.library').warning('from a library')\n"
        "print('continues')\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    if target == "/dev/full":
        os.dup2(os.open(target, os.O_WRONLY), writer)
    result = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (result.returncode, result.stdout) == (0, "continues\n")
