"""What people read: lines about events, tables, durations, errors, the first page of help."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import get_args

import msgspec
import pytest

from events.external import ExternalObject
from events.intake import ActionError, TargetState
from events.kind_definition import DefinitionRef
from events.log import (
    AbsenceDoubted,
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionDoubted,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionRetried,
    ActionSucceeded,
    ApiThrottled,
    ApprovalAsked,
    ApprovalRefused,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    DeclarationSuperseded,
    DefinitionObserved,
    DriftDetected,
    DueScheduled,
    ExternalObserved,
    FieldDifference,
    FinalizerAdded,
    FinalizerRemoved,
    GenerationSuperseded,
    HoldApproved,
    LogEvent,
    LookAsked,
    LookupDecided,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ProgressNoted,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    ResourceEvent,
    RetryScheduled,
    SecretObserved,
    SpecDeclared,
    SpecResolved,
    SpecWithdrawn,
    TargetObserved,
)
from events.manifest import Policy
from infra.jetstream.errors import BusUnavailableError
from reconciler.cli.commands import COMMANDS, first_page
from reconciler.cli.console import coloured, console, print_table
from reconciler.cli.errors import UsageError, one_line, report
from reconciler.cli.exits import Exit
from reconciler.cli.main import main
from reconciler.cli.options import parse_duration
from reconciler.cli.output import as_yaml
from reconciler.cli.results import Result, exit_status
from reconciler.cli.summaries import summary, tell_all
from reconciler.errors import WaitTimeoutError
from reconciler.ports import StoredEvent
from reconciler.resource.owner_label import OWNER_LABEL

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RED = {"type": "Square", "color": "Red"}
ACTION = Action("a@2", "key", "Create", 1, "default", "foo", ("m1",), fields=RED)
DECLARED = SpecDeclared(1, "shapes/v1", "default", "foo", RED)
COLUMNS = 80
SUBCOMMANDS = (
    "config view",
    "deadletters list",
    "deadletters show",
    "deadletters retry",
    "deadletters dismiss",
)


TOLD: list[tuple[ResourceEvent, str]] = [
    (DECLARED, "generation 1: type: Square, color: Red"),
    (SpecWithdrawn(2), "generation 2"),
    (GenerationSuperseded(1, by=2), "generation 1, by 2"),
    (DeclarationSuperseded(by=2), "a declaration came late: generation 2 is newer"),
    (
        ExternalObserved("default", "foo", None, "CompleteListing", 7),
        "foo is not there (a complete listing)",
    ),
    (
        ExternalObserved("default", "foo", ExternalObject("foo", {"color": "Red"}), "Read", 7),
        "foo {color: Red} (a read)",
    ),
    (
        AbsenceDoubted("default", "foo", 12, 14),
        "foo is missing, with 12 of our 14 objects: not believed",
    ),
    (FinalizerAdded("billing/invoice", "billing"), "billing/invoice, of billing"),
    (FinalizerRemoved("billing/invoice"), "billing/invoice"),
    (FinalizerRemoved("billing/invoice", True, "gone"), "billing/invoice, by force: gone"),
    (
        ReleaseForced("shut\ndown", True, ("billing/invoice",), ("shop/ShapeRef/a",)),
        "billing/invoice, shop/ShapeRef/a; its object, if there is one, stays: shut down",
    ),
    (SpecWithdrawn(3, "moved"), "generation 3: moved"),
    (HoldApproved("LossGuard", reason="really"), "LossGuard: proceed: really"),
    (
        HoldApproved("Approval", reason="agreed", plan="41162a45fb694374"),
        "Approval: proceed with plan 41162a45fb69: agreed",
    ),
    (
        ApprovalAsked(
            "41162a45fb694374",
            "Update",
            3,
            "default",
            "foo",
            changes=(FieldDifference("color", "Blue", "Red"),),
        ),
        "plan 41162a45fb69: Update 'foo', color: 'Red' → 'Blue'",
    ),
    (LookAsked(True, "the API is back"), "looked at now: the API is back"),
    (ApprovalRefused("41162a45fb694374", "not now"), "plan 41162a45fb69: not now"),
    (
        ReferenceAdded("shop/ShapeRef/a", "Keep"),
        "shop/ShapeRef/a refers to it; when it is withdrawn: keep",
    ),
    (ReferenceRemoved("shop/ShapeRef/a"), "shop/ShapeRef/a does not refer to it any more"),
    (
        TargetObserved("default/Shape/foo", TargetState(False)),
        "default/Shape/foo is not declared",
    ),
    (
        TargetObserved("default/Shape/foo", TargetState(True, True, {"outputs.port": 5432})),
        "default/Shape/foo is declared {outputs.port: 5432}",
    ),
    (SecretObserved("files/db", "abc"), "files/db: digest abc"),
    (SecretObserved("files/db", ""), "files/db: it is not there"),
    (
        DefinitionObserved(DefinitionRef(2, "abc", 3, 10)),
        "its kind is defined otherwise: generation 2, which concerns 3 of 10",
    ),
    (SpecResolved(2, {"port": 5432}), "wants {port: 5432}"),
    (LookupDecided(ACTION, 3), "what came of Create foo? A look, no call"),
    (ActionHeld("a@2", "nobody can tell"), "nobody can tell"),
    (
        ActionNotDone("a@2", "Create", 3),  # it may have been made, and deleted by somebody since
        "Create: a look shows none: it is called again",
    ),
    (ActionNotDone("a@2", "Delete", 3), "Delete: a look shows that it was not done"),
    (
        ActionDoubted("a@2", "Delete", 3, "no answer\nin time"),
        "Delete, attempt 3: another call of it may have been done: no answer in time",
    ),
    (
        ActionSucceeded("a@2", "Create", 3, found_by="Label", late=True),
        "Create, attempt 3, found by its label, told late",
    ),
    (
        ActionSucceeded("a@2", "Delete", 1, found_by="Absence"),
        "Delete, attempt 1, found by its absence",
    ),
    (DriftDetected(1, missing=True), "the object is gone"),
    (
        DriftDetected(
            1,
            differences=(
                FieldDifference("color", "Purple", "Green"),
                FieldDifference("labels.team", "a", None),
            ),
        ),
        "color: Green (declared Purple), labels.team: not there (declared a)",
    ),
    (OwnershipClaimed("foo", None, "Adopted"), "foo is ours now: Adopted"),
    (OwnershipReleased("foo", None, "Orphaned"), "foo is not ours any more: Orphaned"),
    (ActionDecided(ACTION), "Create foo {type: Square, color: Red}"),
    (ActionRetried(ACTION, 3), "Create foo, attempt 3, same key"),
    (
        ActionSucceeded("a@2", "Create", 2, replayed=True),
        "Create, attempt 2, the kept answer to an earlier call",
    ),
    (
        ActionFailed("a@2", "Create", 1, ActionError("Throttled", "slow\ndown", 429)),
        "Create, attempt 1: Throttled 429: slow down",
    ),
    (ActionAbandoned("a@2", "Create", "Withdrawn"), "Create: Withdrawn"),
    (
        DueScheduled(AT, AT, 3.0),
        "due at 2026-01-02T03:04:05Z, written again at 2026-01-02T03:04:05Z",
    ),
    (
        ProgressNoted("a1", AT, AT, 3.0),
        "it has moved, and should again before 2026-01-02T03:04:05Z",
    ),
    (ProgressNoted("a1", AT), "nothing has moved since 2026-01-02T03:04:05Z"),
    (ProgressNoted("", AT), "nothing is waited for any more"),
    (
        RetryScheduled(AT, 2.5, "Transient"),
        "in 2.5 s, at 2026-01-02T03:04:05Z: Transient",
    ),
    (ApiThrottled(AT, 7.0, "slow\ndown"), "no call before 2026-01-02T03:04:05Z: slow down"),
    (
        BreakerOpened(AT, 2.0, 5, "refused"),
        "until 2026-01-02T03:04:05Z, after 5 failures in a row: refused",
    ),
    (BreakerProbed(AT, 20.0, "w1"), "one call by w1"),
    (BreakerClosed(), "the API answers again"),
    (OutcomeRecorded("Converged", 2, "AsDeclared"), "Converged (AsDeclared), generation 2"),
    (OutcomeRecorded("Failed", 2, "Failed", "no"), "Failed, generation 2: no"),
]


@pytest.mark.parametrize(("event", "told"), TOLD)
def test_every_event_is_told_in_one_line(event: ResourceEvent, told: str) -> None:
    assert summary(event) == told


def test_no_event_is_forgotten() -> None:
    assert {type(event) for event, _told in TOLD} == set(get_args(ResourceEvent))


def test_a_declaration_is_told_by_what_it_changes() -> None:
    purple = msgspec.structs.replace(
        DECLARED,
        generation=2,
        fields={**RED, "color": "Purple"},
        labels={"team": "a"},
        annotations={"ticket": "7"},
        policy=Policy(mode="ObserveOnly"),
        reason="the new\ncolour",
    )
    assert summary(purple, DECLARED) == (
        "generation 2: color: Red -> Purple; labels team: a; annotations ticket: 7; "
        "policy mode: ObserveOnly (the new colour)"
    )


def test_what_is_declared_after_a_withdrawal_is_told_whole() -> None:
    data: list[ResourceEvent] = [DECLARED, SpecWithdrawn(2), DECLARED]
    lines = tell_all([StoredEvent(at, _event(at, one)) for at, one in enumerate(data, 1)])
    assert lines[2].what == lines[0].what
    assert lines[0].time == "2026-01-02T03:04:05.000Z"


def test_the_update_that_lets_an_orphan_go_says_that_it_takes_our_label_off() -> None:
    action = Action("a@3", "key", "Update", 2, "default", "foo", ("m2",), fields=RED, uid="u1")
    labelled = msgspec.structs.replace(action, labels={OWNER_LABEL: "log1/default/Shape/foo"})
    data: list[ResourceEvent] = [
        DECLARED,
        ActionDecided(action),  # of an API without labels
        SpecWithdrawn(2),
        ActionDecided(action),
        ActionDecided(labelled),
    ]
    lines = tell_all([StoredEvent(at, _event(at, one)) for at, one in enumerate(data, 1)])
    assert lines[1].what == lines[4].what == "Update foo {type: Square, color: Red}"
    assert lines[3].what == (
        "Update foo: takes our owner label off and changes nothing else: the object stays in the "
        "API, and is let go"
    )


def _event(version: int, data: ResourceEvent) -> LogEvent:
    return LogEvent(f"e{version}", "r", "t", "default/Shape/foo", AT, version, data)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("2m", 120), ("1.5h", 5400), ("7", 7)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5x", "-1s", "s", "1 s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration(text)


def test_a_table_in_a_pipe_is_fit_for_awk(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "MESSAGE"), [("a", coloured("Failed")), ("longer", "x" * 300)])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["NAME    MESSAGE", "a       Failed", f"longer  {'x' * 300}"]


def test_no_colour_where_nobody_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("ready", style="bold green")
    assert capsys.readouterr().out == "ready\n"


def test_yaml_keeps_the_order() -> None:
    assert as_yaml({"b": 1, "a": ["x"]}) == "b: 1\na:\n- x\n"


def test_errors_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    group = ExceptionGroup(
        "many", [BusUnavailableError("away\nfrom here"), ExceptionGroup("in", [KeyError("x")])]
    )
    assert report(group) == Exit.FAILED
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "error: away from here"
    assert told[1].startswith("error: unexpected KeyError: 'x'; this is a defect: --debug")


def test_a_timeout_has_a_status_of_its_own() -> None:
    assert report(WaitTimeoutError("late")) == Exit.TIMEOUT
    assert one_line(WaitTimeoutError("late")) == "late"


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([Result("a", True, "", outcome="Converged")], Exit.OK),
        ([Result("a", True, "", outcome="Failed")], Exit.FAILED),
        ([Result("a", False, "Invalid")], Exit.FAILED),
        ([Result("a", True, "", timed_out=True)], Exit.TIMEOUT),
        ([Result("a", True, "", timed_out=True), Result("b", True, "", outcome="Failed")], 1),
    ],
)
def test_the_worst_result_is_the_status(results: list[Result], status: int) -> None:
    assert exit_status(results, ("Converged",)) == status


def test_the_first_page_names_every_command_and_imports_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name, *_ in COMMANDS)
    assert max(map(len, first_page().splitlines())) <= COLUMNS


def test_help_is_fast() -> None:
    code = (
        "import sys; from reconciler.cli.main import main; main(['--help']);"
        "print([m for m in ('cyclopts', 'rich', 'nats', 'msgspec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", [*(name for name, *_ in COMMANDS), *SUBCOMMANDS])
def test_every_command_has_help_with_examples_that_fits_a_terminal(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(2 * COLUMNS))
    assert main([*command.split(), "--help"]) == 0
    told = capsys.readouterr().out
    description = told.partition("╭")[0]
    assert max(map(len, description.splitlines())) <= COLUMNS
    assert told.startswith(f"Usage: reconciler {command}")
    assert f"    reconciler {command}" in told
    assert "For example:" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["aply"], "there is no command 'aply': did you mean apply?"),
        (["xyzzy"], "there is no command 'xyzzy': the commands are up, init"),
        (["get", "--outputt", "json"], "--outputt"),
        (["get", "-o", "xml"], 'Invalid value "xml"'),
        (["run", "cook"], 'Invalid value "cook"'),
        (["apply"], "reconciler apply --help"),
        (["apply", "-f", "x", "--timeout", "5x"], "'5x' is not a duration"),
        (["init", "--replicas", "9"], "a stream has 1 to 5 copies"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == Exit.USAGE
    told = capsys.readouterr().err
    assert said in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip()[0].isdigit()
