"""Text from tenants and APIs with line breaks, escape sequences and reordering characters."""

from __future__ import annotations

import json
from collections.abc import Generator
from datetime import UTC, datetime

import pytest
import structlog
import yaml
from msgspec.structs import asdict
from rich.text import Text

from events.log import (
    DriftDetected,
    FieldDifference,
    LogEvent,
    OutcomeRecorded,
    ReconcileAccepted,
    ResourceEvent,
)
from reconciler.cli.console import console, print_table
from reconciler.cli.doctor import Finding
from reconciler.cli.doctor import _print as print_findings  # pyright: ignore[reportPrivateUsage]
from reconciler.cli.output import escape_text, print_json_line, print_structured
from reconciler.cli.past.history import FleetLine, print_lines
from reconciler.cli.past.history import (
    _print_lines as print_following,  # pyright: ignore[reportPrivateUsage]
)
from reconciler.cli.past.summaries import describe_event
from reconciler.cli.process_logs import configure_logs
from reconciler.cli.watch import print_outcome
from reconciler.ports import StoredEvent

FORGED = "2026-11-26T18:35:50Z  25954  billing/Container/bobc  admin approved the deletion"
UNPRINTABLE = "\r\x1b\x07\x9b\x7f\x85\u2028\u2029\u202e\u2066\u200f\U000e0041"
EVIL = f"x\n{FORGED}{UNPRINTABLE}"


def check_harmless(printed: str) -> None:
    """Fail for a forged line, or for a character that a terminal or an editor interprets."""
    assert "x" in printed
    assert not set(printed) & set(UNPRINTABLE)
    assert not any(line.startswith(FORGED) for line in printed.split("\n"))


@pytest.mark.parametrize("on_terminal", [False, True])
def test_no_text_can_forge_a_line_of_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, on_terminal: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: on_terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERM", "dumb")
    printed: list[str] = []
    for show in (
        lambda: console().print(EVIL, Text(EVIL), style="bold"),
        lambda: console().print_title(EVIL),
        lambda: print_table(["A"], [[EVIL], [Text(EVIL)]]),
        lambda: print_findings([Finding("log", "fail", EVIL, EVIL)]),
    ):
        show()
        printed.append(capsys.readouterr().out)
    for text in printed:
        check_harmless(text)


EVENTS: tuple[ResourceEvent, ...] = (
    ReconcileAccepted(reads=True, reason=EVIL),
    DriftDetected(1, differences=(FieldDifference(EVIL, EVIL, EVIL),)),
    OutcomeRecorded("Failed", 1, EVIL, EVIL),
)


@pytest.mark.parametrize("data", EVENTS, ids=lambda data: type(data).__name__)
def test_no_event_can_forge_a_line_of_a_history(
    data: ResourceEvent, capsys: pytest.CaptureFixture[str]
) -> None:
    at = datetime(2026, 11, 26, 18, 36, 34, tzinfo=UTC)
    actor = f"mallory={EVIL}"
    event = LogEvent("e1", "r", "t", "mallory/File/fg2", at, 1, data, actor=actor, causationid=EVIL)
    line = describe_event(StoredEvent(1, event), None)
    for wide in (False, True):
        print_lines([line], wide=wide)
        check_harmless(capsys.readouterr().out)
    print_following([FleetLine(**asdict(line), resource="x")], "wide")
    check_harmless(capsys.readouterr().out)
    if isinstance(data, OutcomeRecorded):
        print_outcome(event, data)
        check_harmless(capsys.readouterr().out)


def test_spaces_in_a_source_cannot_move_its_text_to_another_line() -> None:
    event = LogEvent(
        "e1", "r", "t", "mallory/File/f", datetime.now(UTC), 1, ReconcileAccepted(reads=True),
        actor=f"mallory=x{' ' * 200}{FORGED}",
    )  # fmt: skip
    assert " " * 3 not in describe_event(StoredEvent(1, event), None).what


def test_structured_output_keeps_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": [EVIL, "zwölf\n  lines\n", "😀 of\ttext"], EVIL: 1}
    print_structured(value, "json")
    text = capsys.readouterr().out
    check_harmless(text)
    assert json.loads(text) == value
    print_json_line(value)
    text = capsys.readouterr().out
    check_harmless(text)
    assert (json.loads(text), text.count("\n")) == (value, 1)
    print_structured(value, "yaml")
    text = capsys.readouterr().out
    check_harmless(text)
    assert yaml.safe_load(text) == value


@pytest.fixture
def restored_logs() -> Generator[None]:
    """Restore the log settings after the test."""
    config = structlog.get_config()
    yield
    structlog.configure(**config)


@pytest.mark.usefixtures("restored_logs")
@pytest.mark.parametrize("on_terminal", [False, True])
def test_no_text_can_forge_a_log_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, on_terminal: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    configure_logs("info")
    structlog.get_logger().info(EVIL, error=EVIL, several=[EVIL])
    printed = capsys.readouterr().err
    check_harmless(printed)
    assert printed.count("\n") == 1


def test_printable_text_is_not_changed() -> None:
    for text in ("zwölf", "日本語 → ✓", "😀", ""):
        assert escape_text(text) == text
