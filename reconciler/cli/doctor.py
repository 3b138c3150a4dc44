"""`reconciler doctor`: check everything, and say what to do."""

from __future__ import annotations

from functools import partial

from nats.aio.client import Client

from infra.jetstream.errors import BusError
from reconciler.cli.checks_apis import check_apis
from reconciler.cli.checks_bus import check_server, check_stages, check_streams, check_sync
from reconciler.cli.checks_cluster import check_copies
from reconciler.cli.checks_log import (
    check_actions,
    check_dead_letters,
    check_ownership,
    check_rows,
    check_watched,
)
from reconciler.cli.checks_room import check_room_of_streams
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.exits import Exit
from reconciler.cli.finding import Finding
from reconciler.cli.options import Output
from reconciler.cli.output import coloured, console, print_structured, print_table
from reconciler.cli.reading import current_models, log_of


def doctor(*, full: bool = False, output: Output = "table", connection: Connection = HERE) -> int:
    """Check everything, and say what to do; nothing is changed.

    Server, clock, streams, the backlog of each stage, every external API,
    actions that nobody works on, ownership that nobody wants, dead letters,
    and whether the stored rows are what the log says. Exit status 1 if a
    check fails.

    For example:

        reconciler doctor
        reconciler doctor --full               compare every row with the log
        reconciler doctor -o json | jq '.[] | select(.verdict != "ok")'

    Parameters
    ----------
    full
        Compare every stored row with the log, not a sample.
    output
        How to print what was found.
    """
    findings = run_async(_doctor(connection, full))
    if output == "table":
        _print(findings)
    else:
        print_structured(findings, output)
    return Exit.FAILED if any(one.verdict == "fail" for one in findings) else Exit.OK


async def _doctor(connection: Connection, full: bool) -> list[Finding]:
    async with bus(connection) as nc:
        await log_of(nc)
        return await examine(nc, full=full)


async def examine(nc: Client, *, full: bool) -> list[Finding]:
    """Make every check; one that cannot be made is a finding, too."""
    findings: list[Finding] = [check_sync(nc)]
    for name, check in (
        ("server", check_server),
        ("streams", check_streams),
        ("copies", check_copies),
        ("room", check_room_of_streams),
        ("stages", check_stages),
        ("API", check_apis),
        ("log", partial(_check_log, full=full)),
    ):
        try:
            findings += await check(nc)
        except BusError as error:
            findings.append(Finding(name, "fail", f"cannot be checked: {error}", "see above"))
    return findings


async def _check_log(nc: Client, *, full: bool) -> list[Finding]:
    models = await current_models(nc)
    return [
        await check_actions(nc),
        *check_ownership(models.status.values()),
        check_watched(models.status.values()),
        await check_dead_letters(nc),
        await check_rows(nc, full=full),
    ]


def _print(findings: list[Finding]) -> None:
    rows = [(coloured(one.verdict), one.check, one.found) for one in findings]
    print_table(("VERDICT", "CHECK", "FOUND"), rows)
    out = console()
    for one in findings:
        if one.remedy:
            out.print(f"\n{one.check}: {one.remedy}")
