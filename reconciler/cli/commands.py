"""The commands' names and the first page of help, without imports, so that it responds quickly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RUN: Final = "Run and configure"
USE: Final = "Manage resources"
LOOK: Final = "Inspect and diagnose"
KEEP: Final = "Back up and restore"

COMMANDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("up", RUN, "Start everything in one process: server, example API, roles."),
    ("init", RUN, "Create or upgrade the streams on a NATS server."),
    ("init-example", RUN, "Write example manifests for the first steps."),
    ("run", RUN, "Run one role in its own process."),
    ("plan", USE, "Show what `apply` would do, and change nothing."),
    ("apply", USE, "Declare the resources in files."),
    ("get", USE, "List resources with their status."),
    ("wait", USE, "Wait until resources reach a state, such as Ready."),
    ("describe", USE, "Show everything about one resource."),
    ("delete", USE, "Withdraw declarations, and delete or release the objects."),
    ("rollback", USE, "Declare an older generation again."),
    ("reconcile", USE, "Reconcile resources immediately, without a back-off."),
    ("pause", USE, "Stop all actions on resources until `resume`."),
    ("resume", USE, "Resume paused resources, and correct drift."),
    ("approve", USE, "Approve the actions of held resources."),
    ("reject", USE, "Reject plans that wait for approval."),
    ("finalizer", USE, "Add a finalizer to a resource, or remove it."),
    ("release", USE, "Remove finalizers and references by force."),
    ("kinds", USE, "List the kinds that you can declare."),
    ("explain", USE, "Show the fields of a kind."),
    ("watch", USE, "Show outcomes and drift as they occur."),
    ("why", LOOK, "Explain the status of a resource, or the value of a field."),
    ("history", LOOK, "Show the events of one resource, as sentences."),
    ("events", LOOK, "Show the newest events of all resources."),
    ("diff", LOOK, "Show what changed in one resource between two points in time."),
    ("logs", LOOK, "Show the logs of an external object, such as a container."),
    ("replay", LOOK, "Rebuild all read models from the log, and check the log."),
    ("deadletters", LOOK, "List, retry and dismiss messages that were not processed."),
    ("doctor", LOOK, "Check the whole system, and show how to fix each problem."),
    ("backup", KEEP, "Save the whole log to one file."),
    ("restore", KEEP, "Restore the log from a backup."),
    ("config", RUN, "Show the effective settings and the source of each."),
    ("secrets", RUN, "Store, list, grant and remove the secrets that specs name."),
    ("webhook", RUN, "Receive webhooks from a Git host, to detect pushes immediately."),
    ("completion", RUN, "Print a completion script for a shell."),
    ("permissions", RUN, "Print the minimal NATS permissions of each principal."),
    ("schema", LOOK, "Print the JSON Schema of all messages, or AsyncAPI."),
)

_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "past.describe": ("describe",),
    "past.diff": ("diff",),
    "past.history": ("events", "history"),
    "past.why": ("why",),
    "requests.approvals": ("approve", "reject"),
    "requests.declarations": ("delete", "pause", "reconcile", "resume", "rollback"),
    "requests.finalizers": ("finalizer", "release"),
}
"""Modules below ``reconciler.cli`` of the commands that are not in a module of their name."""

COMPLETE: Final = "__complete"
"""Subcommand that shells call to complete the last word."""

WITH_COMMANDS: Final = frozenset({"config", "deadletters", "secrets"})
"""Commands with subcommands."""

HELP: Final = """\
Reconciler keeps external systems in the state you declare, and records every
declaration, decision, API call and result in one event log.

The first commands:

    reconciler up                            in one terminal
    reconciler init-example                  in another, in the same directory
    reconciler apply -f example/file.yaml --wait
    reconciler get

Commands find the NATS server in this order: --nats-url, $RECONCILER_NATS_URL,
a `reconciler up` that is running in this directory (./reconciler-data/up.json),
and the settings file (see `reconciler config --help`). If none of
these names a server, the command fails.

Exit status: 0 success, 1 refused or failed, 2 usage error, 3 timeout.
`plan`, `diff` and --dry-run: 0 no changes, 1 an error (including a usage
error), 2 changes: the same as `terraform plan -detailed-exitcode`.
"""

_OPTIONS: Final = (
    ("--help, -h", "Show this help, or that of a command: `reconciler up --help`."),
    ("--version", "Show the version."),
)


def names() -> list[str]:
    """Return the names of all commands."""
    return [name for name, _group, _summary in COMMANDS]


def import_path(command: str) -> str:
    """Return the path of a command's function, as ``module:name``."""
    module = next((module for module, has in _MODULES.items() if command in has), command)
    return f"reconciler.cli.{module}:{command}".replace("-", "_")


def first_page() -> str:
    """Return the help that `reconciler --help` shows."""
    parts = ["Usage: reconciler COMMAND [OPTIONS]\n", HELP]
    for group in (RUN, USE, LOOK, KEEP):
        lines = [f"  {name:<15}{text}" for name, place, text in COMMANDS if place == group]
        parts.append("\n".join([f"{group}:", *lines]) + "\n")
    options = [f"  {name:<15}{text}" for name, text in _OPTIONS]
    parts.append("\n".join(["Options:", *options]))
    return "\n".join(parts)
