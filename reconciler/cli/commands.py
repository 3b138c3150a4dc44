"""The commands' names and the first page of help: no imports, so that it answers at once."""

from __future__ import annotations

from typing import Final

RUN: Final = "Run it"
USE: Final = "Use it"
LOOK: Final = "Look into it"
KEEP: Final = "Keep it safe"

COMMANDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("up", RUN, "Start everything on this machine: server, example API, all roles."),
    ("init", RUN, "Make or upgrade the streams on a NATS server."),
    ("run", RUN, "Run one role in a process of its own."),
    ("plan", USE, "Show what would be done if files were applied."),
    ("apply", USE, "Declare what files say."),
    ("get", USE, "List resources and how they stand."),
    ("wait", USE, "Wait until resources stand as they should."),
    ("describe", USE, "Tell everything about one resource."),
    ("delete", USE, "Withdraw declarations."),
    ("rollback", USE, "Declare again what an older generation declared."),
    ("reconcile", USE, "Look at resources now, and wait for no back-off."),
    ("pause", USE, "Leave resources as they are until they are resumed."),
    ("resume", USE, "Take care of paused resources again."),
    ("approve", USE, "Decide about resources that are held."),
    ("reject", USE, "Refuse what waits for approval."),
    ("finalizer", USE, "Hold a resource until a service has finished with it."),
    ("release", USE, "Take off by force what keeps withdrawn resources."),
    ("kinds", USE, "List the kinds that can be declared."),
    ("explain", USE, "Show what can be declared of a kind."),
    ("watch", USE, "Show outcomes and drift as they come."),
    ("why", LOOK, "Tell why a resource stands as it does, or a field has its value."),
    ("history", LOOK, "Tell what happened to one resource, and why."),
    ("events", LOOK, "Tell what happened in the whole fleet."),
    ("diff", LOOK, "Show what changed of one resource between two moments."),
    ("logs", LOOK, "Show what an external object has written."),
    ("replay", LOOK, "Rebuild all ownership state from the log, and compare."),
    ("deadletters", LOOK, "Look at what could not be used, and try it again."),
    ("doctor", LOOK, "Check everything, and say what to do."),
    ("backup", KEEP, "Save the whole log to one file, while everything runs."),
    ("restore", KEEP, "Make a log again from a backup."),
    ("config", RUN, "Show which settings hold, and what each comes from."),
    ("webhook", RUN, "Answer a Git host's webhooks: look at what was pushed at once."),
    ("completion", RUN, "Print what makes a shell complete commands and names."),
    ("permissions", RUN, "Print what each role may do on the bus, for the server."),
    ("schema", LOOK, "Print the messages' JSON Schema, or the bus as AsyncAPI."),
)

COMPLETE: Final = "__complete"
"""The first word by which a shell asks what may stand in the place of the last one."""

WITH_COMMANDS: Final = frozenset({"config", "deadletters"})
"""Commands that have commands of their own."""

HELP: Final = """\
Keeps what was declared and what exists the same, with the truth in one event log.

The first three commands:

    reconciler up                            in one terminal
    reconciler apply -f shape.yaml --wait    in another, same folder
    reconciler get

The bus is found by --nats-url, else $RECONCILER_NATS_URL, else by the file
./reconciler-data/up.json (which `reconciler up` writes), else by a settings
file (see `reconciler config --help`), else it is nats://127.0.0.1:4222.

Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 not in time.
"""

_OPTIONS: Final = (
    ("--help, -h", "Show this, or the help of a command: `reconciler up --help`."),
    ("--version", "Show the version."),
)


def names() -> list[str]:
    """Name all commands."""
    return [name for name, _group, _summary in COMMANDS]


def first_page() -> str:
    """Return the help that `reconciler --help` shows."""
    parts = ["Usage: reconciler COMMAND [OPTIONS]\n", HELP]
    for group in (RUN, USE, LOOK, KEEP):
        lines = [f"  {name:<22}{text}" for name, place, text in COMMANDS if place == group]
        parts.append("\n".join([f"{group}:", *lines]) + "\n")
    options = [f"  {name:<22}{text}" for name, text in _OPTIONS]
    parts.append("\n".join(["Options:", *options]))
    return "\n".join(parts)
