"""Check the server, the streams, and the progress of each stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from events.excerpt import list_first
from events.names import ResourceKey
from events.provider_config import config_key
from events.subjects import log
from events.wording import plural
from infra.bus.intake_trim import KEPT_MESSAGES, count_lost_messages
from infra.bus.removals import INTAKE_REMEDY, find_intake_problem
from infra.bus.rows import JetStreamRows
from infra.bus.streams import (
    INTAKE,
    LISTINGS,
    LOG,
    ROWS,
    decider_consumers,
    find_lost_beginning,
    topology_differences,
    worker_consumer,
    worker_consumers,
)
from infra.jetstream.connection import api_request, require_jetstream
from infra.jetstream.errors import NotFoundOnBusError
from infra.jetstream.reads import read_subject, stream_state
from infra.jetstream.topology import consumer_infos
from projections.read_models import decode_status, read_checkpoint, status_name
from reconciler.cli.checks.clocks import check_clock
from reconciler.cli.checks.finding import Finding, Verdict
from reconciler.cli.checks.space import LONG_MESSAGE_BYTES
from reconciler.cli.connection import DATA_DIRECTORY, read_up_file

_FULL_PERCENT = 90
_MAX_PENDING = 5_000
_MAX_LAG_EVENTS = 2_000
_MAX_SILENT_SECONDS = 60
_NANOSECONDS = 1_000_000_000


async def check_server(nc: Client) -> list[Finding]:
    """Check version, JetStream, storage and clock."""
    version = await require_jetstream(nc)
    number = f"{version.major}.{version.minor}.{version.patch}"
    requested_at = time.time()
    state = await api_request(nc, f"STREAM.INFO.{LOG}", None)
    responded_at = time.time()
    account = await api_request(nc, "INFO", None)
    where = "" if nc.connected_url is None else f" at {nc.connected_url.netloc.rpartition('@')[2]}"
    return [
        Finding("server", "ok", f"nats-server {number}{where}, with JetStream"),
        check_storage(account),
        check_clock(str(state.get("ts", "")), requested_at, responded_at),
    ]


def check_storage(account: dict[str, Any]) -> Finding:
    """Check the account's storage use against the limit with the highest use.

    An account may have one limit per number of replicas.
    """
    tiers: dict[str, dict[str, Any]] = account.get("tiers") or {}
    text = f"{int(account.get('storage', 0)) / 1e6:.1f} MB stored"
    limited = [
        (int(each.get("storage", 0)), limit)
        for each in tiers.values() or (account,)  # with tiers, the account itself has no limits
        if (limit := int(each.get("limits", {}).get("max_storage", -1))) >= 0
    ]
    if not limited:
        return Finding("storage", "ok", f"{text}, no limit for this account")
    percent = max(100 * used // limit if limit else 100 for used, limit in limited)
    verdict: Verdict = "ok"
    if percent >= _FULL_PERCENT:
        is_full = any(limit - used < LONG_MESSAGE_BYTES for used, limit in limited)
        verdict = "fail" if is_full else "warn"
    remedy = (
        ""
        if verdict == "ok"
        else "Give the account more JetStream storage. A full stream refuses declarations."
    )
    return Finding("storage", verdict, f"{text}, {percent}% of the limit", remedy)


async def check_streams(nc: Client) -> list[Finding]:
    """Compare every stream and consumer with the definitions of this release."""
    wrong = {name: fields for name, fields in (await topology_differences(nc)).items() if fields}
    if not wrong:
        if paused := [
            name for stream in (LOG, LISTINGS, ROWS) for name in await _paused(nc, stream)
        ]:
            text = f"another client paused consumers that roles use: {list_first(paused)}"
            return [Finding("streams", "fail", text, "Restart the roles, which create new ones.")]
        text = "all streams and consumers match the definitions of this release"
        return [Finding("streams", "ok", text), *await _check_removed_messages(nc)]
    differing = [f"{name} ({', '.join(list(fields)[:3])})" for name, fields in wrong.items()]
    text = f"differ from the definitions of this release: {list_first(differing)}"
    finding = Finding("streams", "fail", text, "Run `reconciler init`, which restores them.")
    try:
        return [finding, *await _check_removed_messages(nc)]
    except NotFoundOnBusError:  # a stream is missing, which the finding reports
        return [finding]


async def _paused(nc: Client, stream: str) -> list[str]:
    """Return a stream's paused consumers that a role created to read it."""
    return [
        f"{stream}/{each['name']}"
        for each in await consumer_infos(nc, stream)
        if each.get("paused") and not each["config"].get("durable_name")
    ]


async def _check_removed_messages(nc: Client) -> list[Finding]:
    """Report messages that a changed configuration or another client has removed."""
    findings: list[Finding] = []
    if problem := find_lost_beginning(await stream_state(nc, LOG)):
        remedy = "Run `reconciler init` to remove the cause, then restore the log from a backup."
        findings.append(Finding("log beginning", "fail", problem, remedy))
    if problem := await find_intake_problem(nc):
        findings.append(Finding("intake positions", "fail", problem, f"{INTAKE_REMEDY}."))
    if removed := count_lost_messages(await stream_state(nc, INTAKE)):
        remedy = (
            "Publish these declarations again, because the decider may not have processed them. "
            f"This warning disappears after {KEPT_MESSAGES} more messages."
        )
        text = f"{plural(removed, 'message')} removed from the {INTAKE} stream by another client"
        findings.append(Finding("removed", "warn", text, remedy))
    return findings


def check_sync(nc: Client, data: Path = DATA_DIRECTORY) -> Finding:
    """Check that the server syncs each write, if its configuration can be read."""
    running = read_up_file(data)
    connected = nc.connected_url
    config = data / "nats" / "nats.conf"
    if running is None or connected is None or not running.nats_url.endswith(connected.netloc):
        return Finding(
            "sync", "ok", "unknown: an external server reports this only at its monitoring URL"
        )
    try:
        syncs_always = "sync_interval: always" in config.read_text()
    except OSError:
        return Finding(
            "sync", "warn", f"{config} cannot be read", "Check the permissions of this file."
        )
    if syncs_always:
        return Finding("sync", "ok", "the server syncs every write to disk (sync_interval: always)")
    remedy = (
        "Set sync_interval: always. Otherwise, acknowledged messages are lost in a power failure."
    )
    return Finding("sync", "warn", "the server acknowledges writes before they are on disk", remedy)


async def check_stages(nc: Client) -> list[Finding]:
    """Check the progress of each role."""
    deciders = [await _read_consumer(nc, INTAKE, name) for name in decider_consumers()]
    workers = await worker_consumers(nc)
    return [
        check_stage("intake", "decider", deciders),
        await _check_worker_consumers(nc, workers) or check_stage("actions", "worker", workers),
        check_observers(await consumer_infos(nc, LISTINGS), has_apis=bool(workers)),
        await _check_projection(nc),
        check_sources(await api_request(nc, f"STREAM.INFO.{INTAKE}", None)),
    ]


async def _check_worker_consumers(nc: Client, workers: Sequence[dict[str, Any]]) -> Finding | None:
    """Report configurations without a worker's consumer, as a failure if they have actions.

    A worker creates a consumer for each declared configuration, unless the account has reached its
    limit. Another client may have deleted it.
    """
    pattern = status_name(config_key("*"))
    rows = (await JetStreamRows(nc).read_matching(pattern)).values()
    declared = {row.name for row in map(decode_status, rows) if row.declared}
    if not declared and not workers:
        return Finding("actions", "ok", "no ProviderConfig, so no worker needs to pull messages")
    known = {each["name"] for each in workers}
    names = sorted(name for name in declared if worker_consumer(name) not in known)
    if not names:
        return None
    everything = ResourceKey("*", "*", "*")
    subjects = [log(everything, f"action.{name}") for name in names]
    decided = [await read_subject(nc, LOG, subject, limit=1) for subject in subjects]
    verdict: Verdict = "fail" if any(decided) else "warn"
    configs = plural(len(names), "ProviderConfig")
    text = f"no worker is pulling messages for {configs}: {list_first(names)}"
    remedy = (
        "Start one: `reconciler run worker` or `reconciler up`. If one is running, its log shows "
        "why it cannot create the consumer, such as an account limit."
    )
    return Finding("actions", verdict, text, remedy)


def check_sources(intake: dict[str, Any]) -> Finding:
    """Check that the server copies fired timers into the intake."""
    wrong: list[str] = []
    for source in intake.get("sources") or ():
        if int(source.get("lag", 0)) > _MAX_LAG_EVENTS:
            wrong.append(f"{INTAKE} is {source['lag']} messages behind {source['name']}")
        if not 0 <= int(source.get("active", -1)) < _MAX_SILENT_SECONDS * _NANOSECONDS:
            wrong.append(f"{INTAKE} receives nothing from {source['name']}")
    if not wrong:
        return Finding("timers", "ok", "timer messages are arriving")
    remedy = (
        "Read the server's log. Until the source recovers, no timer fires. It recovers "
        "automatically, or when you restart the server."
    )
    return Finding("timers", "warn", list_first(wrong), remedy)


def check_stage(stage: str, role: str, consumers: Sequence[dict[str, Any]]) -> Finding:
    """Report the messages waiting for a role, and whether any of its processes is pulling them."""
    pending = sum(int(consumer.get("num_pending", 0)) for consumer in consumers)
    leased = sum(int(consumer.get("num_ack_pending", 0)) for consumer in consumers)
    waiting = sum(int(consumer.get("num_waiting", 0)) for consumer in consumers)
    text = f"{pending} pending, {leased} unacknowledged"
    if paused := [consumer["name"] for consumer in consumers if consumer.get("paused")]:
        remedy = "Run `reconciler init`, which resumes them."
        return Finding(stage, "fail", f"{text}; paused: {list_first(paused)}", remedy)
    if not waiting:
        verdict: Verdict = "fail" if pending or leased else "warn"
        remedy = f"Start one: `reconciler run {role}` or `reconciler up`."
        problem = f"{text}; no {role} is pulling messages"
        if unavailable := sorted(
            {name for consumer in consumers for name in _find_unavailable_servers(consumer)}
        ):
            servers = ", ".join(unavailable)
            problem += (
                f"; server {servers} of the cluster is down or does not respond"
                if len(unavailable) == 1
                else f"; servers {servers} of the cluster are down or do not respond"
            )
            remedy = (
                f"First fix what the `replicas` check reports. A running {role} reconnects within "
                "30 seconds. "
                f"If none is running, start one: `reconciler run {role}`."
            )
        return Finding(stage, verdict, problem, remedy)
    if pending > _MAX_PENDING:
        remedy = f"Start another {role}, unless the number of pending messages is falling."
        return Finding(stage, "warn", text, remedy)
    return Finding(stage, "ok", text)


def check_observers(consumers: Sequence[dict[str, Any]], *, has_apis: bool) -> Finding:
    """Check that an observer is running: each follows the listings of other teams' observers."""
    running = sum(bool(each.get("push_bound")) for each in consumers)
    if running:
        return Finding("observers", "ok", f"{plural(running, 'observer')} running")
    return Finding(
        "observers",
        "fail" if has_apis else "warn",
        "no observer is running, so changes in the APIs are not detected",
        "Start one: `reconciler run observer` or `reconciler up`.",
    )


def _find_unavailable_servers(consumer: dict[str, Any]) -> list[str]:
    """Return the servers whose replica of a consumer is offline or not up to date."""
    cluster: dict[str, Any] = consumer.get("cluster") or {}
    return [
        each["name"]
        for each in cluster.get("replicas") or ()
        if each.get("offline") or not each.get("current")
    ]


async def _check_projection(nc: Client) -> Finding:
    last = (await stream_state(nc, LOG)).last_seq
    payload, _ = await JetStreamRows(nc).checkpoint()
    checkpoint = read_checkpoint(payload)
    position = 0 if checkpoint is None else checkpoint.position
    lag = max(0, last - position)
    text = f"{plural(lag, 'event')} behind the log, which is at position {last}"
    if lag <= _MAX_LAG_EVENTS:
        return Finding("projection", "ok", text)
    remedy = (
        "Start a projector: `reconciler run projector`. Until then, the SDK returns outdated data."
    )
    return Finding("projection", "warn", text, remedy)


async def _read_consumer(nc: Client, stream: str, name: str) -> dict[str, Any]:
    try:
        return await api_request(nc, f"CONSUMER.INFO.{stream}.{name}", None)
    except NotFoundOnBusError:  # the `streams` check reports it
        return {}
