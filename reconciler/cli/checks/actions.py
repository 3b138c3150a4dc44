"""Verify that every decided action has an outcome, a live lease, a scheduled retry or a hold."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from nats.aio.client import Client

from events.excerpt import list_first
from events.names import ResourceKey
from events.subjects import log, log_filter, parse_log, schedule
from infra.bus.bus_clock import MAX_CLOCK_DIFFERENCE, read_clock
from infra.bus.streams import (
    INTAKE,
    LOG,
    TIMERS,
    decider_consumers,
    worker_consumer,
)
from infra.jetstream.connection import api_request
from infra.jetstream.errors import NotFoundOnBusError
from infra.jetstream.reads import StoredMessage, last_for_subjects
from projections.status import StatusRow
from reconciler.cli.checks.clocks import read_clock_offset
from reconciler.cli.checks.finding import Finding
from reconciler.resource.backoff import is_over
from reconciler.sdk.history import History
from reconciler.sdk.log_replay import LogReplay

OVERDUE = timedelta(seconds=30)
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.3
_MAX_HISTORIES = 200


class _Actions(NamedTuple):
    """The result of one pass: resources by the state of their action."""

    healthy: int
    lost: frozenset[str]
    overdue: frozenset[str]
    untimed: frozenset[str]


class _DecidedAction(NamedTuple):
    """A row's newest action, by its log position."""

    position: int
    row: StatusRow


async def check_actions(nc: Client, replay: LogReplay) -> Finding:
    """Check that every action in flight is with a worker, or is waiting for a decision or a retry.

    Each pass reads the log, the workers' consumers, the intake, and then the log again, so that
    it misses no change in between. Only an action that is lost in every pass is reported.
    """
    combined: _Actions | None = None
    for number in range(_ATTEMPTS):
        if number:
            await asyncio.sleep(_PAUSE_SECONDS)
            await replay.advance()
        actions = await _classify_actions(nc, replay)
        combined = actions if combined is None else _intersect(combined, actions)
        if not (combined.lost or combined.overdue or combined.untimed):
            break
    assert combined is not None
    finding = _build_finding(combined)
    if replay.damage and finding.remedy:  # only the action's result may be missing
        return msgspec.structs.replace(finding, remedy="Repair the log first: see the `log` check.")
    return finding


def _intersect(earlier: _Actions, later: _Actions) -> _Actions:
    return _Actions(
        later.healthy,
        earlier.lost & later.lost,
        earlier.overdue & later.overdue,
        earlier.untimed & later.untimed,
    )


def _build_finding(actions: _Actions) -> Finding:
    text = f"{actions.healthy} in flight, all accounted for"
    if actions.lost:
        return Finding(
            "lost actions",
            "fail",
            f"{len(actions.lost)} without a worker or a result: {list_first(sorted(actions.lost))}",
            "Stop the workers, delete the consumer of their ProviderConfig NAME "
            f"(`nats consumer rm {LOG} {worker_consumer('NAME')}`), and start the workers. The "
            "server then delivers every action again, and the workers skip those with a result.",
        )
    if actions.overdue:
        return Finding(
            "lost actions",
            "fail",
            f"{len(actions.overdue)} with an overdue retry: {list_first(sorted(actions.overdue))}",
            "Run an observer. Its sweeper starts overdue retries.",
        )
    if actions.untimed:
        return Finding(
            "lost actions",
            "warn",
            f"{len(actions.untimed)} with a retry but no timer: "
            f"{list_first(sorted(actions.untimed))}",
            "Run an observer. Its sweeper starts retries that are due.",
        )
    return Finding("lost actions", "ok", f"none; {text}")


async def _classify_actions(nc: Client, replay: LogReplay) -> _Actions:
    rows = list(replay.models.status.values())
    waiting = [row for row in rows if row.retry_at is not None]
    unscheduled = [row for row in rows if row.action_id and row.retry_at is None]
    suspects = await _find_undelivered(nc, unscheduled)
    lost = await _confirm_lost(nc, replay, suspects) if suspects else frozenset[str]()
    # A held action is retried when its hold ends, not when it is due. A retry that has started
    # since the first read of the log has no `retry_at`, and does not need a timer.
    timed = [row for row in waiting if row.retry_at and row.outcome != "Held" and not row.paused]
    overdue, untimed = await _find_untimed(nc, timed)
    healthy = len(unscheduled) + len(waiting) - len(lost) - len(overdue) - len(untimed)
    return _Actions(healthy, lost, overdue, untimed)


async def _find_undelivered(nc: Client, unscheduled: list[StatusRow]) -> list[StatusRow]:
    """Return the rows whose actions cannot all be with a worker, according to the consumers."""
    newest = await _read_newest(nc, [log(row.key, "action.*") for row in unscheduled])
    by_consumer: dict[str, list[_DecidedAction]] = defaultdict(list)
    suspects: list[StatusRow] = []
    for row in unscheduled:
        action = newest.get(row.key)
        if action is None:
            suspects.append(row)
        else:
            by_consumer[_consumer_name(action.subject)].append(_DecidedAction(action.seq, row))
    for consumer, decided in by_consumer.items():
        suspects += await _find_undelivered_by(nc, consumer, decided)
    return suspects


async def _read_newest(nc: Client, filters: Sequence[str]) -> dict[ResourceKey, StoredMessage]:
    """Return each resource's newest log message that matches the filters."""
    newest: dict[ResourceKey, StoredMessage] = {}
    for message in await last_for_subjects(nc, LOG, filters):
        key = parse_log(message.subject)
        if key not in newest or newest[key].seq < message.seq:
            newest[key] = message
    return newest


def _consumer_name(subject: str) -> str:
    return worker_consumer(subject.rpartition(".")[2])


async def _find_undelivered_by(
    nc: Client, consumer: str, decided: Sequence[_DecidedAction]
) -> list[StatusRow]:
    try:
        worker: dict[str, Any] = await api_request(nc, f"CONSUMER.INFO.{LOG}.{consumer}", None)
    except NotFoundOnBusError:  # the next worker creates it, and then receives all actions
        return []
    acknowledged_position = int(worker["ack_floor"]["stream_seq"])
    delivered_position = int(worker["delivered"]["stream_seq"])
    acknowledged = [each.row for each in decided if each.position <= acknowledged_position]
    delivered = [
        each.row for each in decided if acknowledged_position < each.position <= delivered_position
    ]
    # The server reports only how many delivered messages are unacknowledged, not which.
    return acknowledged + (delivered if len(delivered) > int(worker["num_ack_pending"]) else [])


async def _confirm_lost(nc: Client, replay: LogReplay, suspects: list[StatusRow]) -> frozenset[str]:
    """Return the resources with neither a pending or processed result nor a hold."""
    without_result = await _find_without_result(nc, suspects)
    await replay.advance()
    names: list[str] = []
    for row in without_result:
        current = replay.models.status.get(str(row.key))
        if current is None or current.retry_at is not None:
            continue
        if (current.action_id, current.attempt) == (row.action_id, row.attempt):
            names.append(str(row.key))
    checked = names[:_MAX_HISTORIES]
    return frozenset(
        [
            *[name for name in checked if await _is_call_in_progress(nc, name)],
            *names[_MAX_HISTORIES:],
        ]
    )


async def _find_without_result(nc: Client, rows: Iterable[StatusRow]) -> list[StatusRow]:
    rows = list(rows)
    processed_position = await _read_processed_position(nc)
    if processed_position is None:
        return rows
    by_filter = {f"result.{row.key.tokens}": row for row in rows}
    newest = await last_for_subjects(nc, INTAKE, [f"in.*.{tokens}" for tokens in by_filter])
    waiting = {
        message.subject.split(".", 2)[2] for message in newest if message.seq > processed_position
    }
    return [row for tokens, row in by_filter.items() if tokens not in waiting]


async def _read_processed_position(nc: Client) -> int | None:
    """Return the position that intake processing has reached, or None if nothing is pending."""
    floors: list[int] = []
    for name in decider_consumers():
        try:
            info: dict[str, Any] = await api_request(nc, f"CONSUMER.INFO.{INTAKE}.{name}", None)
        except NotFoundOnBusError:  # the `streams` check reports it
            return 0
        if info["num_pending"] or info["num_ack_pending"]:
            floors.append(int(info["ack_floor"]["stream_seq"]))
    return min(floors, default=None)


async def _is_call_in_progress(nc: Client, name: str) -> bool:
    """Return whether, according to the history, a call is in progress and not held."""
    try:
        past = await History(nc).get(ResourceKey.parse(name))
        in_flight = past.state.actions.in_flight
    except ValueError:
        return True
    return in_flight is not None and in_flight.failed is None and not in_flight.is_held


async def _find_untimed(
    nc: Client, waiting: list[StatusRow]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the resources with an overdue retry, and those without a timer.

    Retry times are corrected by the offset that the decider's clock had when it wrote the
    resource's newest event.
    """
    now = (await read_clock(nc)).now()
    newest = await _read_newest(nc, [log_filter(row.key) for row in waiting])
    overdue: set[str] = set()
    untimed: dict[str, str] = {}
    for row in waiting:
        offset = _read_offset(newest.get(row.key))
        assert row.retry_at is not None
        at = row.retry_at - offset
        if is_over(at, row.retry_seconds, now - OVERDUE):
            overdue.add(str(row.key))
        elif (
            at > now and abs(offset) < MAX_CLOCK_DIFFERENCE
        ):  # an inaccurate clock sets the timer to a different time
            untimed[schedule(row.key, "retry")] = str(row.key)
    for message in await last_for_subjects(nc, TIMERS, list(untimed)) if untimed else ():
        untimed.pop(message.subject, None)
    return frozenset(overdue), frozenset(untimed.values())


def _read_offset(message: StoredMessage | None) -> timedelta:
    """Return the difference between the clock that wrote an event and the bus's clock."""
    try:
        return timedelta(0) if message is None else read_clock_offset(message)
    except (ValueError, RecursionError):  # the `log` check reports the damage
        return timedelta(0)
