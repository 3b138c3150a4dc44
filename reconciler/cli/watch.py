"""`reconciler watch`: outcomes as they come, and the drift between them."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import structlog
from cyclopts import Parameter
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from events.log import DriftDetected, LogEvent, OutcomeRecorded
from events.subjects import outcome_filter
from infra.bus.streams import LOG, OUTCOMES
from infra.jetstream.follow import Follower, follow
from infra.jetstream.reads import StoredMessage, read_subject, stream_state
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.console import coloured, console
from reconciler.cli.exits import Exit
from reconciler.cli.log_replay import log_of
from reconciler.cli.naming import check_names
from reconciler.cli.options import Namespace
from reconciler.cli.output import print_json_line
from reconciler.cli.search import known_kind, log_speaks_of
from reconciler.cli.signals import until_stopped
from reconciler.cli.summaries import summary

Lines = Literal["table", "json"]

_COPIED_FROM = "Nats-Stream-Source"
_LOOKED_AT = 100
_EVERYTHING = "*.*.*"


def watch(
    kind: str | None = None,
    name: str | None = None,
    /,
    *,
    namespace: Namespace = None,
    since_start: bool = False,
    output: Annotated[Lines, Parameter(name=("--output", "-o"))] = "table",
    connection: Connection = HERE,
) -> int:
    """Show outcomes and drift as they come, one line each, until Ctrl-C.

    For example:

        reconciler watch
        reconciler watch Shape -n payments
        reconciler watch Shape foo --since-start
        reconciler watch --since-start | grep Failed
        reconciler watch --output json | jq 'select(.drift)'

    Parameters
    ----------
    kind
        Only resources of this kind.
    name
        Only resources of this name.
    since_start
        First what is kept (30 days), then what is new.
    output
        Lines for people, or one JSON object a line.
    """
    check_names(namespace=namespace, name=name)

    async def work() -> None:
        async with bus(connection) as nc:
            tokens = await _watched(nc, kind, namespace, name)
            await _watch(nc, tokens, output, since_start=since_start)

    async def all_of_it() -> Exit:
        return await until_stopped(work())

    return run_async(all_of_it())


async def _watched(nc: Client, kind: str | None, namespace: str | None, name: str | None) -> str:
    """Return the pattern to watch; say so if nothing that matches it is known yet.

    A name or a namespace may be watched before anything is declared there. Raises
    ``UnknownKindError``: a kind that nobody knows is a slip of the pen.
    """
    await log_of(nc)
    found_kind = None if kind is None else await known_kind(nc, kind)
    tokens = f"{namespace or '*'}.{found_kind or '*'}.{name or '*'}"
    if tokens != _EVERYTHING and not await log_speaks_of(nc, tokens):
        shown = tokens.replace(".", "/")
        sys.stderr.write(f"nothing is known of {shown} yet: this waits for it\n")
        sys.stderr.flush()
    return tokens


async def _watch(nc: Client, tokens: str, output: Lines, *, since_start: bool) -> None:
    """Follow two streams: what is rejected is not in the log, and drift is only there."""
    first_outcome = 1 if since_start else (await stream_state(nc, OUTCOMES)).last_seq + 1
    first_fact = await _oldest_kept(nc, tokens) if since_start else None
    if first_fact is None:
        first_fact = (await stream_state(nc, LOG)).last_seq + 1
    async with (
        follow(nc, OUTCOMES, filters=[outcome_filter(tokens)], start_seq=first_outcome) as outcomes,
        follow(nc, LOG, filters=[f"log.{tokens}.fact"], start_seq=first_fact) as facts,
    ):
        if since_start:
            await _show_kept(outcomes, facts, output)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_show_new(outcomes, output))
            tasks.create_task(_show_new(facts, output))


async def _oldest_kept(nc: Client, tokens: str) -> int | None:
    """Return the log position of the oldest outcome that is kept; None if nothing is kept."""
    oldest = await read_subject(nc, OUTCOMES, outcome_filter(tokens), limit=_LOOKED_AT)
    for message in oldest:  # what was rejected does not come from the log
        source = (message.headers or {}).get(_COPIED_FROM, "").split()
        if len(source) > 1 and source[1].isdecimal():
            return int(source[1])
    return 1 if oldest else None


async def _show_kept(outcomes: Follower, facts: Follower, output: Lines) -> None:
    """Show what is there already, in the order of time."""
    drifts = deque([event async for batch in facts.replay() for event in _told(batch)])
    async for batch in outcomes.replay():
        for event in _told(batch):
            while drifts and drifts[0].time <= event.time:
                _show(drifts.popleft(), output)
            _show(event, output)
    for event in drifts:
        _show(event, output)


async def _show_new(follower: Follower, output: Lines) -> None:
    async for batch in follower:
        for event in _told(batch):
            _show(event, output)


def _told(messages: Iterable[StoredMessage]) -> Iterator[LogEvent]:
    """Decode what is shown: outcomes and drift."""
    for message in messages:
        try:
            event = decode_log(message.payload)
        except InvalidMessageError as error:
            structlog.get_logger().error("an event cannot be read", error=str(error))
            continue
        if isinstance(event.data, (OutcomeRecorded, DriftDetected)):
            yield event


def _show(event: LogEvent, output: Lines) -> None:
    if isinstance(event.data, DriftDetected):
        _show_drift(event, event.data, output)
    elif isinstance(event.data, OutcomeRecorded):
        if output == "json":
            print_json_line(as_json_object(event, event.data))
        else:
            print_outcome(event, event.data)


def _show_drift(event: LogEvent, data: DriftDetected, output: Lines) -> None:
    if output == "json":
        print_json_line(
            {
                "time": event.time,
                "resource": event.subject,
                "drift": summary(data),
                "generation": data.generation,
                "actor": event.actor,
            }
        )
    else:
        _print_line(event, "Drift", data.generation, summary(data))


def as_json_object(event: LogEvent, data: OutcomeRecorded) -> dict[str, object]:
    """Give an outcome as programs want it: flat."""
    return {
        "time": event.time,
        "resource": event.subject,
        "outcome": data.outcome,
        "generation": data.generation,
        "reason": data.reason,
        "message": data.message,
        "actor": event.actor,
    }


def print_outcome(event: LogEvent, data: OutcomeRecorded) -> None:
    """Print one line about an outcome."""
    message = " ".join(data.message.split())
    _print_line(event, data.outcome, data.generation, f"{data.reason}  {message}")


def _print_line(event: LogEvent, word: str, generation: int, rest: str) -> None:
    time = event.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = coloured(word)
    text.pad_right(max(0, 10 - len(word)))
    line = f"{time}  {event.subject}  "
    console().print(line, text, f" generation {generation}  {rest}", sep="")
    sys.stdout.flush()
