"""The commands' names and the first page of help, without imports, so that help is fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RUN_GROUP: Final = "Run and configure"
MANAGE_GROUP: Final = "Manage resources"
INSPECT_GROUP: Final = "Inspect and diagnose"
BACKUP_GROUP: Final = "Back up and restore"

COMMANDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("up", RUN_GROUP, "Start everything in one process: server, example API, roles."),
    ("init", RUN_GROUP, "Create or upgrade the streams on a NATS server."),
    ("init-example", RUN_GROUP, "Write example manifests for getting started."),
    ("run", RUN_GROUP, "Run one role in its own process."),
    ("plan", MANAGE_GROUP, "Show what `apply` would do, and change nothing."),
    ("apply", MANAGE_GROUP, "Declare the resources in files."),
    ("get", MANAGE_GROUP, "List resources with their status."),
    ("wait", MANAGE_GROUP, "Wait until resources reach a state, such as Ready."),
    ("describe", MANAGE_GROUP, "Show everything about one resource."),
    ("delete", MANAGE_GROUP, "Withdraw declarations, and delete or release the objects."),
    ("rollback", MANAGE_GROUP, "Declare an older generation again."),
    ("reconcile", MANAGE_GROUP, "Reconcile resources immediately, without a backoff."),
    ("pause", MANAGE_GROUP, "Stop all actions on resources until `resume`."),
    ("resume", MANAGE_GROUP, "Resume paused resources, and correct drift."),
    ("approve", MANAGE_GROUP, "Approve the actions of held resources."),
    ("reject", MANAGE_GROUP, "Reject plans that are waiting for approval."),
    ("finalizer", MANAGE_GROUP, "Add a finalizer to a resource, or remove one from it."),
    ("release", MANAGE_GROUP, "Forcibly remove finalizers and references."),
    ("kinds", MANAGE_GROUP, "List the kinds that you can declare."),
    ("explain", MANAGE_GROUP, "Show the fields of a kind."),
    ("watch", MANAGE_GROUP, "Show outcomes and drift as they occur."),
    ("why", INSPECT_GROUP, "Explain the status of a resource, or the value of a field."),
    ("history", INSPECT_GROUP, "Show the events of one resource, as sentences."),
    ("events", INSPECT_GROUP, "Show the newest events of all resources."),
    ("diff", INSPECT_GROUP, "Show what changed in one resource between two points in time."),
    ("logs", INSPECT_GROUP, "Show the logs of an external object, such as a container."),
    ("replay", INSPECT_GROUP, "Rebuild all read models from the log, and check the log."),
    ("deadletters", INSPECT_GROUP, "List, retry and dismiss messages that were not processed."),
    ("doctor", INSPECT_GROUP, "Check the whole system, and show how to fix each problem."),
    ("backup", BACKUP_GROUP, "Save the whole log to one file."),
    ("restore", BACKUP_GROUP, "Restore the log from a backup."),
    ("config", RUN_GROUP, "Show the effective settings and the source of each."),
    ("secrets", RUN_GROUP, "Store, list, grant and remove the secrets that specs name."),
    ("webhook", RUN_GROUP, "Receive webhooks from a Git host, to detect pushes immediately."),
    ("completion", RUN_GROUP, "Print a completion script for a shell."),
    ("permissions", RUN_GROUP, "Print the minimal NATS permissions of each principal."),
    ("schema", INSPECT_GROUP, "Print the JSON Schema of all messages, or AsyncAPI."),
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
"""The commands of each module in ``reconciler.cli`` that is not named after its command."""

COMPLETE_COMMAND: Final = "__complete"
"""Subcommand that shells call to complete the last word."""

COMMAND_GROUPS: Final = frozenset({"config", "deadletters", "secrets"})
"""Commands with subcommands."""

HELP: Final = """\
Reconciler keeps external systems in the state you declare, and records every
declaration, decision, API call and result in one event log.

To get started:

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
    ("--help, -h", "Show this help, or a command's help: `reconciler up --help`."),
    ("--version", "Show the version."),
)


def names() -> list[str]:
    """Return the names of all commands."""
    return [name for name, _group, _summary in COMMANDS]


def import_path(command: str) -> str:
    """Return the path of a command's function, as ``module:name``."""
    module = next((module for module, commands in _MODULES.items() if command in commands), command)
    return f"reconciler.cli.{module}:{command}".replace("-", "_")


def first_page() -> str:
    """Return the text that `reconciler --help` prints."""
    parts = ["Usage: reconciler COMMAND [OPTIONS]\n", HELP]
    for group in (RUN_GROUP, MANAGE_GROUP, INSPECT_GROUP, BACKUP_GROUP):
        lines = [
            f"  {name:<15}{text}"
            for name, command_group, text in COMMANDS
            if command_group == group
        ]
        parts.append("\n".join([f"{group}:", *lines]) + "\n")
    options = [f"  {name:<15}{text}" for name, text in _OPTIONS]
    parts.append("\n".join(["Options:", *options]))
    return "\n".join(parts)
