"""`reconciler replay`: rebuild all read models from the log, and check the log."""

from __future__ import annotations

import sys
import time

import msgspec
from msgspec.structs import replace
from nats.aio.client import Client

from events.wording import plural
from infra.bus.event_log import open_log
from infra.bus.rows import JetStreamRows
from projections.read_models import (
    CHECKPOINT,
    EMPTY_CHECKPOINT,
    FleetSummary,
    ReadModels,
    encode_checkpoint,
    read_checkpoint,
)
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.console import colored, console, print_table
from reconciler.cli.errors import CommandError
from reconciler.cli.exits import Exit
from reconciler.cli.folded_log import replay_from_start
from reconciler.cli.options import Output
from reconciler.cli.output import escape_json, print_structured
from reconciler.cli.progress import progress_bar
from reconciler.cli.row_comparison import Comparison, compare
from reconciler.cli.standard_streams import tolerating_closed_output
from reconciler.ports import RowsConflictError
from reconciler.sdk.log_replay import Integrity

_MAX_SHOWN = 20
_MIN_SECONDS = 1e-9


class ReplayResult(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a replay."""

    events: int
    position: int
    seconds: float
    events_per_second: float
    fleet: FleetSummary
    integrity: Integrity
    verified: Comparison | None = None
    marked: bool = False


def replay(
    *,
    verify: bool = False,
    repair: bool = False,
    dump: bool = False,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Rebuild all read models from the log, and check the log.

    The command checks the version and digest of every event, and that the log
    is as long as the other streams indicate. It does not call any API, and the
    roles may keep running. With --verify, it also compares the result with
    the stored rows at their log position, byte for byte. It writes nothing
    without --repair.

    Exit status: 1 if the log is damaged, or if rows differ and --repair did
    not mark them.

    For example:

        reconciler replay                  rebuild all rows, write nothing
        reconciler replay --verify
        reconciler replay --dump | jq .    every row, one JSON object per line

    Parameters
    ----------
    verify
        Compare the result with the stored rows.
    repair
        Implies --verify. If rows differ and the log is correct, mark the rows as incomplete, so
        that the projectors and observers rebuild them when they next start. Deletes nothing.
    dump
        Print only the rebuilt rows, one JSON object per line.
    """
    result, models = run_async(_replay(connection, verify or repair, repair))
    verified = result.verified
    with tolerating_closed_output():
        if dump:
            _dump(models)
        elif output == "table":
            _print(result)
        else:
            print_structured(result, output)
    differs = verified is not None and verified.differences and not result.marked
    return Exit.FAILED if differs or result.integrity.damage else Exit.OK


async def _replay(
    connection: Connection, verify: bool, repair: bool
) -> tuple[ReplayResult, ReadModels]:
    async with bus(connection, sends=repair) as nc:
        last = await (await open_log(nc)).last_position()
        started_at = time.perf_counter()
        async with replay_from_start(nc) as replay:
            with progress_bar("replaying", last) as progress:
                verified = await compare(nc, replay, progress) if verify else None
                await replay.advance(last, progress)
            integrity = replay.integrity
            repaired = repair and await _repair(nc, verified, integrity)
            seconds = max(time.perf_counter() - started_at, _MIN_SECONDS)
    models = replay.models
    rate = replay.events / seconds
    result = ReplayResult(
        replay.events,
        models.position,
        round(seconds, 3),
        round(rate),
        models.fleet(),
        integrity,
        verified,
        repaired,
    )
    return result, models


async def _repair(nc: Client, verified: Comparison | None, integrity: Integrity) -> bool:
    """Mark differing rows as incomplete, but keep their position, which reveals lost events."""
    if verified is None or not verified.differences or integrity.damage:
        return False
    store = JetStreamRows(nc)
    payload, revision = await store.checkpoint()
    incomplete = replace(read_checkpoint(payload) or EMPTY_CHECKPOINT, is_whole=False)
    try:
        await store.save({CHECKPOINT: encode_checkpoint(incomplete)}, revision)
    except RowsConflictError:
        raise CommandError("a projector is writing the rows; stop it, then retry") from None
    return True


def _dump(models: ReadModels) -> None:
    for name, payload in models.rows():
        sys.stdout.write(escape_json(f'{{"row":"{name}","value":{payload.decode()}}}') + "\n")


def _print(result: ReplayResult) -> None:
    out = console()
    out.print(
        f"{plural(result.events, 'event')} up to position {result.position} "
        f"in {result.seconds:.2f} s ({result.events_per_second:.0f}/s)"
    )
    print_integrity(result.integrity)
    if result.verified is None:
        print_fleet(result.fleet)
        return
    is_damaged = bool(result.integrity.damage)
    _print_comparison(result.verified, is_damaged=is_damaged, is_marked=result.marked)


def print_integrity(integrity: Integrity) -> None:
    """Print whether the log is intact."""
    out = console()
    if not integrity.damage:
        out.print(
            f"the versions and digests of all {plural(integrity.resources, 'resource')} in the log "
            "are correct",
            style="green",
        )
        return
    out.print(f"the log is damaged in {plural(len(integrity.damage), 'place')}", style="bold red")
    for damage in integrity.damage[:_MAX_SHOWN]:
        out.print(f"{damage.problem}: {damage}")
    if len(integrity.damage) > _MAX_SHOWN:
        out.print("... (--output json lists all)")
    out.print(
        "Keep all streams: they may contain the lost events. Restore the log with "
        '`reconciler restore`: see "When the log is damaged" in docs/how-to/back-up-and-restore.md.'
    )


def print_fleet(fleet: FleetSummary) -> None:
    """Print the number of resources per namespace, kind and outcome."""
    rows = [
        (each.namespace, each.kind, colored(each.outcome), str(each.count)) for each in fleet.counts
    ]
    print_table(("NAMESPACE", "KIND", "OUTCOME", "COUNT"), rows)
    console().print(f"{fleet.owned} owned, {fleet.in_flight} with an action in progress")


def _print_comparison(comparison: Comparison, *, is_damaged: bool, is_marked: bool) -> None:
    out = console()
    if comparison.note:
        out.print(f"rows were not compared: {comparison.note}", style="yellow")
    elif not comparison.differences:
        out.print(
            f"all {comparison.rows} stored rows (existing resources, totals and checkpoint) match "
            f"the rebuilt rows, byte for byte, at position {comparison.checkpoint}",
            style="green",
        )
    else:
        out.print(
            f"{len(comparison.differences)} of {comparison.rows} stored rows differ",
            style="bold red",
        )
        for difference in comparison.differences[:_MAX_SHOWN]:
            out.print(f"{difference.problem}: {difference.row}")
            out.print(f"  log:    {difference.rebuilt}")
            out.print(f"  stored: {difference.live}")
        if len(comparison.differences) > _MAX_SHOWN:
            out.print("... (--output json lists all)")
        if is_marked:
            out.print(
                "The rows are marked as incomplete. Restart the projectors and observers to "
                "rebuild them."
            )
        elif not is_damaged:
            out.print(
                "The log is correct, but the rows are not. Run `reconciler replay --repair`, and "
                "restart the projectors and observers, which then rebuild the rows from the log."
            )
