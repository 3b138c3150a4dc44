"""`reconciler backup`: save the whole log to one file."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from events.wording import plural
from infra.backup.backup import SavedLog, save_log
from infra.bus.event_log import open_log
from infra.bus.rows import JetStreamRows
from infra.bus.streams import find_log
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.console import console
from reconciler.cli.exits import Exit
from reconciler.cli.options import NamedPath, Output
from reconciler.cli.output import print_structured
from reconciler.cli.progress import progress_bar
from reconciler.cli.standard_streams import tolerating_closed_output
from reconciler.roles.projector.lost_events import find_truncation

_MAX_SHOWN = 20
_MEGABYTE = 1e6


def backup(
    file: NamedPath, /, *, output: Output = "table", connection: Connection = DEFAULT_CONNECTION
) -> int:
    """Save the whole log to one file, while the roles are running.

    The file contains all events, and the declarations that no decider has
    processed. The command writes a temporary file, and renames it when it is
    complete. It also checks the versions and digests of all events. If the log
    is damaged, it still writes the file, reports the damage, and exits with
    status 1.

    For example:

        reconciler backup monday.backup
        reconciler backup "$(date +%FT%H%M).backup" --output json

    Parameters
    ----------
    file
        Path of the backup file, which must not exist yet.
    """
    saved = run_async(_backup(connection, file))
    with tolerating_closed_output():
        if output == "table":
            _print(saved)
        else:
            print_structured(saved, output)
    return Exit.FAILED if saved.damage else Exit.OK


async def _backup(connection: Connection, file: Path) -> SavedLog:
    async with bus(connection) as nc:
        log = await open_log(nc)
        with progress_bar("saving", await log.last_position()) as progress:
            saved = await save_log(nc, file, await find_log(nc), progress)
        short = await find_truncation(log, JetStreamRows(nc))
        return saved if short is None else replace(saved, damage=[*saved.damage, short])


def _print(saved: SavedLog) -> None:
    out = console()
    out.print(
        f"{saved.file} ({saved.bytes / _MEGABYTE:.1f} MB): log {saved.log_id} as of position "
        f"{saved.position}, with {plural(saved.events, 'event')} and "
        f"{plural(saved.declarations, 'declaration')} that no decider has processed"
    )
    if saved.damage:
        out.print(f"the log is damaged in {plural(len(saved.damage), 'place')}:", style="bold red")
        for damage in saved.damage[:_MAX_SHOWN]:
            out.print(f"{damage.problem}: {damage}")
        out.print("Keep your earlier backups, and see `reconciler restore --help`.")
