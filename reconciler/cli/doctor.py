"""`reconciler doctor`: check everything, and show remedies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from nats.aio.client import Client

from events.envelope import InvalidMessageError
from infra.jetstream.connection import is_clustered, leave_server, server_urls
from infra.jetstream.errors import (
    BusDeniedError,
    BusError,
    BusUnavailableError,
    IncompatibleServerError,
)
from reconciler.cli.checks.actions import check_actions
from reconciler.cli.checks.apis import check_apis
from reconciler.cli.checks.bus import check_server, check_stages, check_streams, check_sync
from reconciler.cli.checks.clocks import check_role_clocks
from reconciler.cli.checks.cluster import check_copies
from reconciler.cli.checks.finding import Finding, not_looked_at
from reconciler.cli.checks.log import (
    check_damage,
    check_dead_letters,
    check_discarded,
    check_disputed,
    check_held,
    check_ownership,
    check_restoration,
    check_rows,
    check_watched,
)
from reconciler.cli.checks.monitoring import (
    HEALTH,
    MONITORING_VARIABLE,
    check_health,
    check_monitoring,
)
from reconciler.cli.checks.room import check_own_disk, check_room_of_streams
from reconciler.cli.connection import DATA_FOLDER, HERE, Connection, bus, read_up_file, run_async
from reconciler.cli.console import coloured, console, print_table
from reconciler.cli.exits import Exit
from reconciler.cli.folded_log import log_of, replay_for_checks
from reconciler.cli.options import Output
from reconciler.cli.output import print_structured
from reconciler.cli.progress import progress_bar
from reconciler.cli.standard_streams import tolerating_closed_output

NO_RESPONSE_OF_CLUSTER: Final = (
    "A server of the cluster is down or does not respond: see the check `replicas`. After a server "
    "fails, an election takes about 10 seconds; then run `reconciler doctor` again."
)
_ROOM: Final = ("storage", "stream limits", "disk", HEALTH)
_MAY_WAIT: Final = ("lost actions", "stored rows")
_LOOKS: Final = 3
_PAUSE_SECONDS: Final = 1.0


def doctor(
    *,
    full: bool = False,
    strict: bool = False,
    monitoring_url: Annotated[str | None, Parameter(env_var=MONITORING_VARIABLE)] = None,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Check the whole system, and show how to fix each problem.

    The command checks the server, clocks, streams, backlogs, external APIs,
    the log, actions without a result, ownership, holds, dead letters and the
    stored rows. It changes nothing, and skips the checks for which you have
    no permission. Exit status: 1 if a check fails.

    For example:

        reconciler doctor
        reconciler doctor --full
        reconciler doctor --strict
        reconciler doctor --monitoring-url http://nats:8222
        reconciler doctor -o json | jq '.[] | select(.status != "ok")'

    Parameters
    ----------
    full
        Read the whole log, even if it has more than 300,000 events, and compare all stored rows
        with it instead of a sample.
    strict
        Also exit with status 1 if a check is `warn`, for example if a server of the cluster is
        down.
    monitoring_url
        Monitoring URL of the NATS server. It shows the server's health, sync interval and disk use.
    """
    findings = run_async(diagnose(connection, full=full, monitoring_url=monitoring_url))
    with tolerating_closed_output():
        if output == "table":
            _print(findings)
        else:
            print_structured(findings, output)
    alarming = ("fail", "warn") if strict else ("fail",)
    return Exit.FAILED if any(one.verdict in alarming for one in findings) else Exit.OK


async def diagnose(
    connection: Connection, *, full: bool, monitoring_url: str | None = None
) -> list[Finding]:
    """Run all checks; raises ``BusUnavailableError`` if there is no other result."""
    has_several = len(server_urls(connection.url)) > 1
    try:
        async with bus(connection) as nc:
            try:
                return await _examine_log_and_all(nc, full=full, monitoring_url=monitoring_url)
            except BusUnavailableError:
                if not has_several:
                    raise
                await leave_server(nc)  # this server may be isolated, or an election may have ended
                return await _examine_log_and_all(nc, full=full, monitoring_url=monitoring_url)
    except (BusUnavailableError, IncompatibleServerError) as error:
        # The monitoring URL may show why a server does not respond.
        known = await _examine_around(monitoring_url)
        if not (known or has_several):
            raise
        remedy = (
            "Start the NATS server, or correct --nats-url. The server's log may show the cause."
        )
        if has_several and isinstance(error, BusUnavailableError):
            remedy = NO_RESPONSE_OF_CLUSTER
        return [*known, Finding("bus", "fail", str(error), remedy)]


async def _examine_log_and_all(
    nc: Client, *, full: bool, monitoring_url: str | None
) -> list[Finding]:
    """Run all checks; raises ``BusUnavailableError`` if the log cannot be found either."""
    await log_of(nc)
    return await examine(nc, full=full, monitoring_url=monitoring_url)


async def _examine_around(monitoring_url: str | None) -> list[Finding]:
    """Check the server without its bus."""
    findings, own = [*check_own_disk()], read_up_file(DATA_FOLDER)
    if monitored := monitoring_url or (own.monitoring_url if own is not None else ""):
        findings += await check_health(monitored)
    return findings


async def examine(nc: Client, *, full: bool, monitoring_url: str | None = None) -> list[Finding]:
    """Run all checks. One that fails to run also becomes a finding."""
    findings = await _examine_around(monitoring_url)
    if all(one.check != HEALTH for one in findings):
        unknown = "unknown: a server reports a full disk only at its monitoring URL"
        findings.append(Finding(HEALTH, "ok", f"{unknown} (--monitoring-url)"))
    if monitoring_url is None:
        findings.append(check_sync(nc))
    else:
        findings += await check_monitoring(monitoring_url)
    for name, check in (
        ("server", check_server),
        ("role clocks", check_role_clocks),
        ("streams", check_streams),
        ("replicas", check_copies),
        ("stream limits", check_room_of_streams),
        ("stages", check_stages),
        ("API", check_apis),
        ("log", partial(_check_log, full=full)),
    ):
        looks = 1 if name == "log" else _LOOKS  # it is long, and repeats its own checks
        try:
            findings += await look(partial(check, nc), looks, elects=is_clustered(nc))
        except BusDeniedError as denied:
            findings.append(not_looked_at(name, denied))
        except (BusError, InvalidMessageError) as error:
            remedy = "Fix the failed checks above."
            if isinstance(error, BusUnavailableError) and is_clustered(nc):
                remedy = NO_RESPONSE_OF_CLUSTER
            findings.append(Finding(name, "fail", f"cannot be checked: {error}", remedy))
    return room_first(findings)


def room_first(findings: list[Finding]) -> list[Finding]:
    """Replace the remedies of findings that a lack of room explains.

    Results that a worker cannot store look lost.
    """
    full = [each.check for each in findings if each.check in _ROOM and each.verdict == "fail"]
    if not full:
        return findings
    remedy = f"Fix the check {full[0]} first. Results that wait for room look lost, but are not."
    return [
        msgspec.structs.replace(each, remedy=remedy)
        if each.check in _MAY_WAIT and each.remedy
        else each
        for each in findings
    ]


async def look(
    check: Callable[[], Awaitable[list[Finding]]], looks: int, *, elects: bool = False
) -> list[Finding]:
    """Run a check, and repeat it before a problem is reported.

    A role has no open request for a moment between two requests, which is long on a busy machine.
    ``elects``: whether a cluster may be electing leaders, so that requests get no response for some
    seconds.
    """
    is_silent = not elects
    for _ in range(looks - 1):
        try:
            findings = await check()
        except BusUnavailableError:
            if is_silent:
                raise
            is_silent, findings = True, list[Finding]()
        if findings and all(one.verdict in ("ok", "skip") for one in findings):
            return findings
        await asyncio.sleep(_PAUSE_SECONDS)
    return await check()


async def _check_log(nc: Client, *, full: bool) -> list[Finding]:
    async with replay_for_checks(nc, full=full) as replay:
        with progress_bar("reading the log", await (await log_of(nc)).last_position()) as progress:
            await replay.advance(progress=progress)
        rows = replay.models.status.values()
        return [
            check_damage(replay),
            *await check_restoration(nc, rows),
            await _if_allowed("actions", check_actions(nc, replay)),
            *check_ownership(rows),
            check_held(rows),
            check_disputed(rows),
            check_watched(rows),
            await _if_allowed("dead letters", check_dead_letters(nc)),
            await _if_allowed("discarded", check_discarded(nc)),
            await _if_allowed("rows", check_rows(nc, replay, full=full)),
        ]


async def _if_allowed(name: str, check: Awaitable[Finding]) -> Finding:
    try:
        return await check
    except BusDeniedError as denied:
        return not_looked_at(name, denied)


def _print(findings: list[Finding]) -> None:
    rows = [(coloured(one.verdict), one.check, one.found) for one in findings]
    print_table(("STATUS", "CHECK", "DETAILS"), rows)
    out = console()
    for one in findings:
        if one.remedy:
            out.print()
            out.print(f"{one.check}: {one.remedy}")
