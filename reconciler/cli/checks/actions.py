"""Verify that every decided action has an outcome, a live lease, a scheduled retry or a hold."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from nats.aio.client import Client

from events.excerpt import some
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
from reconciler.cli.checks.clocks import ahead_of_bus
from reconciler.cli.checks.finding import Finding
from reconciler.resource.backoff import is_over
from reconciler.sdk.history import History
from reconciler.sdk.log_replay import LogReplay

OVERDUE = timedelta(seconds=30)
_LOOKS = 3
_PAUSE_SECONDS = 0.3
_MAX_HISTORIES = 200


class _Look(NamedTuple):
    """The result of one check: resources by the state of their action."""

    taken_care_of: int
    lost: frozenset[str]
    overdue: frozenset[str]
    untimed: frozenset[str]


class _Decided(NamedTuple):
    """The log position of a row's newest action."""

    position: int
    row: StatusRow


async def check_actions(nc: Client, replay: LogReplay) -> Finding:
    """Check that every action in flight is at a worker, or waits for a decision or a retry.

    The log is read first, then the consumers of actions, then the intake, then the log again. So a
    change in between is seen twice, never missed. Only an action that looks lost each time counts.
    """
    combined: _Look | None = None
    for number in range(_LOOKS):
        if number:
            await asyncio.sleep(_PAUSE_SECONDS)
            await replay.advance()
        look = await _look(nc, replay)
        combined = look if combined is None else _both(combined, look)
        if not (combined.lost or combined.overdue or combined.untimed):
            break
    assert combined is not None
    finding = _finding(combined)
    if replay.damage and finding.remedy:  # a seemingly lost action may only be missing in the log
        return msgspec.structs.replace(finding, remedy="Repair the log first: see the check `log`.")
    return finding


def _both(one: _Look, another: _Look) -> _Look:
    return _Look(
        another.taken_care_of,
        one.lost & another.lost,
        one.overdue & another.overdue,
        one.untimed & another.untimed,
    )


def _finding(look: _Look) -> Finding:
    text = f"{look.taken_care_of} in flight, all accounted for"
    if look.lost:
        return Finding(
            "lost actions",
            "fail",
            f"{len(look.lost)} without a worker and without a result: {some(sorted(look.lost))}",
            "Stop the workers, delete the consumer of their ProviderConfig NAME "
            f"(`nats consumer rm {LOG} {worker_consumer('NAME')}`), and start the workers. The "
            "server then delivers every action again, and the workers skip those with a result.",
        )
    if look.overdue:
        return Finding(
            "lost actions",
            "fail",
            f"{len(look.overdue)} with an overdue retry: {some(sorted(look.overdue))}",
            "Run an observer. Its sweeper starts overdue retries.",
        )
    if look.untimed:
        return Finding(
            "lost actions",
            "warn",
            f"{len(look.untimed)} with a retry and no timer: {some(sorted(look.untimed))}",
            "Run an observer. Its sweeper starts retries that are due.",
        )
    return Finding("lost actions", "ok", f"none; {text}")


async def _look(nc: Client, replay: LogReplay) -> _Look:
    rows = list(replay.models.status.values())
    waiting = [row for row in rows if row.retry_at is not None]
    called = [row for row in rows if row.action_id and row.retry_at is None]
    suspects = await _not_handed_out(nc, called)
    lost = await _really_lost(nc, replay, suspects) if suspects else frozenset[str]()
    # A held action is not retried when it is due. When it is released, it is. The log was read
    # again in between: a retry that has started since needs no timer.
    timed = [row for row in waiting if row.retry_at and row.outcome != "Held" and not row.paused]
    overdue, untimed = await _not_timed(nc, timed)
    cared_for = len(called) + len(waiting) - len(lost) - len(overdue) - len(untimed)
    return _Look(cared_for, lost, overdue, untimed)


async def _not_handed_out(nc: Client, called: list[StatusRow]) -> list[StatusRow]:
    """Return the rows whose actions cannot all be at a worker, by the counts of the consumers."""
    newest = await _newest(nc, [log(row.key, "action.*") for row in called])
    by_consumer: dict[str, list[_Decided]] = defaultdict(list)
    suspects: list[StatusRow] = []
    for row in called:
        action = newest.get(row.key)
        if action is None:
            suspects.append(row)
        else:
            by_consumer[_consumer_of(action.subject)].append(_Decided(action.seq, row))
    for consumer, decided in by_consumer.items():
        suspects += await _not_handed_out_by(nc, consumer, decided)
    return suspects


async def _newest(nc: Client, filters: Sequence[str]) -> dict[ResourceKey, StoredMessage]:
    """Return the newest message in the log of each resource under the filters."""
    newest: dict[ResourceKey, StoredMessage] = {}
    for message in await last_for_subjects(nc, LOG, filters):
        key = parse_log(message.subject)
        if key not in newest or newest[key].seq < message.seq:
            newest[key] = message
    return newest


def _consumer_of(subject: str) -> str:
    return worker_consumer(subject.rpartition(".")[2])


async def _not_handed_out_by(
    nc: Client, consumer: str, decided: Sequence[_Decided]
) -> list[StatusRow]:
    try:
        worker: dict[str, Any] = await api_request(nc, f"CONSUMER.INFO.{LOG}.{consumer}", None)
    except NotFoundOnBusError:  # the next worker creates it, and receives all actions
        return []
    done_up_to = int(worker["ack_floor"]["stream_seq"])
    delivered_up_to = int(worker["delivered"]["stream_seq"])
    acknowledged = [each.row for each in decided if each.position <= done_up_to]
    between = [each.row for each in decided if done_up_to < each.position <= delivered_up_to]
    # The server reports only the number of the delivered ones.
    return acknowledged + (between if len(between) > int(worker["num_ack_pending"]) else [])


async def _really_lost(nc: Client, replay: LogReplay, suspects: list[StatusRow]) -> frozenset[str]:
    """Return the resources without a result that waits, was decided or waits for an operator."""
    without_result = await _without_result(nc, suspects)
    await replay.advance()
    names: list[str] = []
    for row in without_result:
        now = replay.models.status.get(str(row.key))
        same = now is not None and (now.action_id, now.attempt) == (row.action_id, row.attempt)
        if same and now is not None and now.retry_at is None:
            names.append(str(row.key))
    checked = names[:_MAX_HISTORIES]
    return frozenset(
        [*[name for name in checked if await _is_called(nc, name)], *names[_MAX_HISTORIES:]]
    )


async def _without_result(nc: Client, rows: Iterable[StatusRow]) -> list[StatusRow]:
    rows = list(rows)
    undecided_from = await _undecided_from(nc)
    if undecided_from is None:
        return rows
    by_filter = {f"result.{row.key.tokens}": row for row in rows}
    newest = await last_for_subjects(nc, INTAKE, [f"in.*.{tokens}" for tokens in by_filter])
    waiting = {
        message.subject.split(".", 2)[2] for message in newest if message.seq > undecided_from
    }
    return [row for tokens, row in by_filter.items() if tokens not in waiting]


async def _undecided_from(nc: Client) -> int | None:
    """Return the position up to which everything is decided, or None if nothing waits."""
    floors: list[int] = []
    for name in decider_consumers():
        try:
            info: dict[str, Any] = await api_request(nc, f"CONSUMER.INFO.{INTAKE}.{name}", None)
        except NotFoundOnBusError:  # the check of the streams reports it
            return 0
        if info["num_pending"] or info["num_ack_pending"]:
            floors.append(int(info["ack_floor"]["stream_seq"]))
    return min(floors, default=None)


async def _is_called(nc: Client, name: str) -> bool:
    """Return whether a call is in progress, by the history: not while it is held."""
    try:
        past = await History(nc).get(ResourceKey.parse(name))
        flight = past.state.actions.in_flight
    except ValueError:
        return True
    return flight is not None and flight.failed is None and not flight.is_held


async def _not_timed(nc: Client, waiting: list[StatusRow]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the resources that should have been woken, and those without a timer.

    The times of deciders are corrected by the error of their clocks when they wrote the newest
    event of the resource.
    """
    now = (await read_clock(nc)).now()
    newest = await _newest(nc, [log_filter(row.key) for row in waiting])
    overdue: set[str] = set()
    untimed: dict[str, str] = {}
    for row in waiting:
        ahead = _ahead_of_bus(newest.get(row.key))
        assert row.retry_at is not None
        at = row.retry_at - ahead
        if is_over(at, row.retry_seconds, now - OVERDUE):
            overdue.add(str(row.key))
        elif (
            at > now and abs(ahead) < MAX_CLOCK_DIFFERENCE
        ):  # a wrong clock sets a timer for another time
            untimed[schedule(row.key, "retry")] = str(row.key)
    for message in await last_for_subjects(nc, TIMERS, list(untimed)) if untimed else ():
        untimed.pop(message.subject, None)
    return frozenset(overdue), frozenset(untimed.values())


def _ahead_of_bus(message: StoredMessage | None) -> timedelta:
    """Return the difference between the clock that wrote an event and the bus's clock."""
    try:
        return timedelta(0) if message is None else ahead_of_bus(message)
    except (ValueError, RecursionError):  # damage, which has its own check
        return timedelta(0)
