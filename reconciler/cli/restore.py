"""`reconciler restore`: restore the log from a backup."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
from nats.aio.client import Client

from events.integrity import LogDamage
from events.wording import plural
from infra.backup.file import Backup
from infra.backup.inspection import LogSummary, inspect
from infra.backup.restoration import (
    Plan,
    RestoredLog,
    RestoreRefusedError,
    plan_restoration,
    rename_saved_files,
    restore_log,
)
from infra.bus.event_log import JetStreamLog
from infra.bus.rows import JetStreamRows
from infra.bus.streams import LogIdentity
from infra.jetstream.errors import BusDeniedError, NotFoundOnBusError
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.console import console
from reconciler.cli.exits import Exit
from reconciler.cli.options import Integer, NamedPath, Output, check_replicas
from reconciler.cli.output import print_structured
from reconciler.cli.progress import progress_bar
from reconciler.cli.standard_streams import tolerating_closed_output
from reconciler.roles.projector.lost_events import find_truncation

_MAX_SHOWN = 20


def restore(
    file: NamedPath,
    /,
    *,
    replace: str | None = None,
    replicas: Integer = 1,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Restore the log from a backup. Stop all roles first.

    The command checks the whole file before it writes anything. The server
    must have no log, or the beginning of the same log.

    With --replace, the command first saves the damaged log to a file next
    to the backup, and then replaces it. It keeps the newer events of the
    damaged log if their digests prove that they continue the backup without
    a gap.

    The command does not call any external API. Start only the decider
    afterwards, and read "Back up and restore the log" in
    docs/how-to/back-up-and-restore.md before you start the other roles.

    For example:

        reconciler restore monday.backup
        reconciler restore monday.backup --replace 0f3a9c12b7de

    Parameters
    ----------
    file
        A file from `reconciler backup`.
    replace
        Id of the damaged log to replace.
    replicas
        Number of replicas per stream: 1, or 3 or 5 in a cluster.
    """
    check_replicas(replicas)
    restored = run_async(_restore(connection, file, replace, replicas))
    with tolerating_closed_output():
        if output == "table":
            _print(restored)
        else:
            print_structured(restored, output)
    return Exit.FAILED if restored.damage else Exit.OK


async def _restore(
    connection: Connection, file: Path, replace: str | None, replicas: int
) -> RestoredLog:
    source = Backup(file)
    with progress_bar("checking", source.size) as progress:
        inspection = inspect(source, progress)
    async with bus(connection, sends=True) as nc:
        plan = await plan_restore(nc, source, inspection, replace)
        if plan.mode == "nothing":
            return _build_unchanged_log(plan, rename_saved_files(source.path))
        with progress_bar("restoring", inspection.events) as progress:
            return await restore_log(nc, source, inspection, plan, progress, replicas=replicas)


async def plan_restore(
    nc: Client, source: Backup, inspection: LogSummary, replace: str | None
) -> Plan:
    """Plan a restore, even if the log lost its newest events; raises ``RestoreRefusedError``."""
    plan = await plan_restoration(nc, source, inspection, replace)
    if plan.log is None or plan.present != inspection.events:
        return plan
    return await _check_lost_end(nc, plan, plan.log.log_id, replace)


async def _check_lost_end(nc: Client, plan: Plan, log_id: str, replace: str | None) -> Plan:
    """Return the plan for a backup whose events are all on the server.

    If the log lost its newest events, raises ``RestoreRefusedError`` unless ``replace`` is its id.
    """
    short: LogDamage | None = None
    # An interrupted restore may have removed the rows.
    with suppress(NotFoundOnBusError, BusDeniedError):
        short = await find_truncation(JetStreamLog(nc, LogIdentity(log_id)), JetStreamRows(nc))
    if short is None:
        return plan
    if replace == log_id:
        return msgspec.structs.replace(plan, mode="continue")
    raise RestoreRefusedError(
        f"the newest events of the log are missing: expected {short.expected}, found "
        f"{short.found}. This backup contains no events that the log lacks; restore a backup with "
        f"the lost events. If there is none, use --replace {log_id} to continue without them"
    )


def _build_unchanged_log(plan: Plan, replaced: list[str]) -> RestoredLog:
    assert plan.log is not None
    return RestoredLog(
        log_id=plan.log.log_id,
        epoch=plan.log.epoch,
        events=plan.present,
        present=plan.present,
        continued=0,
        lost=0,
        declarations=0,
        damage=[],
        replaced=replaced,
        changed=False,
    )


def _print(restored: RestoredLog) -> None:
    out = console()
    if not restored.changed:
        out.print(f"log {restored.log_id} is already complete; nothing was changed")
        return
    out.print(
        f"log {restored.log_id} restored: {plural(restored.events, 'event')}, of which "
        f"{restored.present} existed on the server and {restored.continued} come from the replaced "
        f"log; {plural(restored.declarations, 'declaration')} will be processed when a decider runs"
    )
    for path in restored.replaced:
        out.print(f"the replaced log is saved in {path}")
    if restored.lost:
        out.print(
            f"not restored: {plural(restored.lost, 'event')} from the replaced log, which did not "
            "continue the backup",
            style="yellow",
        )
    if restored.damage:
        out.print(
            f"the backup is damaged in {plural(len(restored.damage), 'place')}:", style="bold red"
        )
        for damage in restored.damage[:_MAX_SHOWN]:
            out.print(f"{damage.problem}: {damage}")
    out.print(
        "Start only the decider first: after a listing, Reconciler may delete objects that were "
        "created after the backup (docs/how-to/back-up-and-restore.md)"
    )
