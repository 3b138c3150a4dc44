"""`reconciler doctor`: check the whole system, and show remedies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from nats.aio.client import Client

from events.envelope import InvalidMessageError
from infra.bus.event_log import open_log
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
from reconciler.cli.checks.cluster import check_stream_replicas
from reconciler.cli.checks.finding import Finding, build_skipped_finding
from reconciler.cli.checks.log import (
    check_damage,
    check_dead_letters,
    check_discarded,
    check_disputes,
    check_holds,
    check_ownership,
    check_provider_configs,
    check_restore,
    check_rows,
)
from reconciler.cli.checks.monitoring import (
    HEALTH,
    MONITORING_VARIABLE,
    check_health,
    check_monitoring,
)
from reconciler.cli.checks.space import check_local_disk, check_stream_limits
from reconciler.cli.connection import (
    DATA_DIRECTORY,
    DEFAULT_CONNECTION,
    Connection,
    bus,
    read_up_file,
    run_async,
)
from reconciler.cli.console import colored, console, print_table
from reconciler.cli.exits import Exit
from reconciler.cli.folded_log import replay_for_checks
from reconciler.cli.options import Output
from reconciler.cli.output import print_structured
from reconciler.cli.progress import progress_bar
from reconciler.cli.standard_streams import tolerating_closed_output

CLUSTER_UNAVAILABLE_REMEDY: Final = (
    "A server of the cluster is down or does not respond: see the `replicas` check. After a server "
    "fails, an election takes about 10 seconds. Then run `reconciler doctor` again."
)
_STORAGE_CHECKS: Final = ("storage", "stream limits", "disk", HEALTH)
_STORAGE_DEPENDENT_CHECKS: Final = ("lost actions", "stored rows")
_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 1.0


def doctor(
    *,
    full: bool = False,
    strict: bool = False,
    monitoring_url: Annotated[str | None, Parameter(env_var=MONITORING_VARIABLE)] = None,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
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
        Also exit with status 1 if a check reports `warn`, for example because a server of the
        cluster is down.
    monitoring_url
        Monitoring URL of the NATS server, which reports its health, sync interval and disk use.
    """
    findings = run_async(diagnose(connection, full=full, monitoring_url=monitoring_url))
    with tolerating_closed_output():
        if output == "table":
            _print(findings)
        else:
            print_structured(findings, output)
    failing = ("fail", "warn") if strict else ("fail",)
    return Exit.FAILED if any(finding.verdict in failing for finding in findings) else Exit.OK


async def diagnose(
    connection: Connection, *, full: bool, monitoring_url: str | None = None
) -> list[Finding]:
    """Run all checks; raises ``BusUnavailableError`` if no check returns a finding."""
    has_several_urls = len(server_urls(connection.url)) > 1
    try:
        async with bus(connection) as nc:
            try:
                return await _open_log_and_run_checks(nc, full=full, monitoring_url=monitoring_url)
            except BusUnavailableError:
                if not has_several_urls:
                    raise
                await leave_server(nc)  # another server may respond, or an election may have ended
                return await _open_log_and_run_checks(nc, full=full, monitoring_url=monitoring_url)
    except (BusUnavailableError, IncompatibleServerError) as error:
        # The monitoring URL may show why a server does not respond.
        findings = await _check_server(monitoring_url)
        if not (findings or has_several_urls):
            raise
        remedy = (
            "Start the NATS server, or correct --nats-url. The server's log may show the cause."
        )
        if has_several_urls and isinstance(error, BusUnavailableError):
            remedy = CLUSTER_UNAVAILABLE_REMEDY
        return [*findings, Finding("bus", "fail", str(error), remedy)]


async def _open_log_and_run_checks(
    nc: Client, *, full: bool, monitoring_url: str | None
) -> list[Finding]:
    """Run all checks; raises ``BusUnavailableError`` if the log does not respond."""
    await open_log(nc)
    return await run_checks(nc, full=full, monitoring_url=monitoring_url)


async def _check_server(monitoring_url: str | None) -> list[Finding]:
    """Check the server's disk and health, which does not require the bus."""
    findings, up_file = [*check_local_disk()], read_up_file(DATA_DIRECTORY)
    if url := monitoring_url or (up_file.monitoring_url if up_file is not None else ""):
        findings += await check_health(url)
    return findings


async def run_checks(nc: Client, *, full: bool, monitoring_url: str | None = None) -> list[Finding]:
    """Run all checks. A check that cannot run also returns a finding."""
    findings = await _check_server(monitoring_url)
    if all(finding.check != HEALTH for finding in findings):
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
        ("replicas", check_stream_replicas),
        ("stream limits", check_stream_limits),
        ("stages", check_stages),
        ("API", check_apis),
        ("log", partial(_check_log, full=full)),
    ):
        attempts = 1 if name == "log" else _ATTEMPTS  # it is slow, and repeats its own checks
        try:
            findings += await run_check(partial(check, nc), attempts, may_elect=is_clustered(nc))
        except BusDeniedError as denied:
            findings.append(build_skipped_finding(name, denied))
        except (BusError, InvalidMessageError) as error:
            remedy = "Fix the failed checks above."
            if isinstance(error, BusUnavailableError) and is_clustered(nc):
                remedy = CLUSTER_UNAVAILABLE_REMEDY
            findings.append(Finding(name, "fail", f"cannot be checked: {error}", remedy))
    return point_to_full_storage(findings)


def point_to_full_storage(findings: list[Finding]) -> list[Finding]:
    """Replace the remedies of findings that a lack of space explains.

    A result that a worker cannot store looks lost.
    """
    full = [
        each.check for each in findings if each.check in _STORAGE_CHECKS and each.verdict == "fail"
    ]
    if not full:
        return findings
    remedy = f"Fix the {full[0]} check first. Results waiting for space look lost, but are not."
    return [
        msgspec.structs.replace(each, remedy=remedy)
        if each.check in _STORAGE_DEPENDENT_CHECKS and each.remedy
        else each
        for each in findings
    ]


async def run_check(
    check: Callable[[], Awaitable[list[Finding]]], attempts: int, *, may_elect: bool = False
) -> list[Finding]:
    """Run a check, and repeat it before reporting a problem.

    Between two requests, a role briefly has no open request; on a busy machine, this lasts longer.
    ``may_elect``: whether the cluster may be electing leaders, which delays responses by seconds.
    """
    is_silent = not may_elect
    for _ in range(attempts - 1):
        try:
            findings = await check()
        except BusUnavailableError:
            if is_silent:
                raise
            is_silent, findings = True, list[Finding]()
        if findings and all(finding.verdict in ("ok", "skip") for finding in findings):
            return findings
        await asyncio.sleep(_PAUSE_SECONDS)
    return await check()


async def _check_log(nc: Client, *, full: bool) -> list[Finding]:
    async with replay_for_checks(nc, full=full) as replay:
        with progress_bar(
            "reading the log", await (await open_log(nc)).last_position()
        ) as progress:
            await replay.advance(progress=progress)
        rows = replay.models.status.values()
        return [
            check_damage(replay),
            *await check_restore(nc, rows),
            await _if_allowed("actions", check_actions(nc, replay)),
            *check_ownership(rows),
            check_holds(rows),
            check_disputes(rows),
            check_provider_configs(rows),
            await _if_allowed("dead letters", check_dead_letters(nc)),
            await _if_allowed("discarded", check_discarded(nc)),
            await _if_allowed("rows", check_rows(nc, replay, full=full)),
        ]


async def _if_allowed(name: str, check: Awaitable[Finding]) -> Finding:
    try:
        return await check
    except BusDeniedError as denied:
        return build_skipped_finding(name, denied)


def _print(findings: list[Finding]) -> None:
    rows = [(colored(finding.verdict), finding.check, finding.details) for finding in findings]
    print_table(("STATUS", "CHECK", "DETAILS"), rows)
    out = console()
    for finding in findings:
        if finding.remedy:
            out.print()
            out.print(f"{finding.check}: {finding.remedy}")
