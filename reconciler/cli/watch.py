"""`reconciler watch`: outcomes as they come."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import structlog
from cyclopts import Parameter
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from events.log import LogEvent, OutcomeRecorded
from events.names import check_token
from infra.bus.streams import OUTCOMES
from infra.jetstream.follow import follow
from infra.jetstream.reads import stream_state
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.exits import Exit
from reconciler.cli.options import Namespace
from reconciler.cli.output import coloured, console, print_json_line
from reconciler.cli.reading import log_of, same_kind
from reconciler.cli.stopping import until_stopped

Lines = Literal["table", "json"]


def watch(
    kind: str | None = None,
    /,
    *,
    namespace: Namespace = None,
    since_start: bool = False,
    output: Annotated[Lines, Parameter(name=("--output", "-o"))] = "table",
    connection: Connection = HERE,
) -> int:
    """Show outcomes as they come, one line each, until Ctrl-C.

    For example:

        reconciler watch
        reconciler watch Shape -n payments
        reconciler watch --since-start | grep Failed
        reconciler watch --output json | jq .outcome

    Parameters
    ----------
    kind
        Only shapes of this kind.
    since_start
        First those that are kept (30 days), then the new ones.
    output
        Lines for people, or one JSON object a line.
    """
    if namespace is not None:
        check_token(namespace, what="namespace")

    async def work() -> None:
        async with bus(connection) as nc:
            await _watch(nc, kind, namespace, since_start, output)

    async def all_of_it() -> Exit:
        return await until_stopped(work())

    return run_async(all_of_it())


async def _watch(
    nc: Client, kind: str | None, namespace: str | None, since_start: bool, output: Lines
) -> None:
    await log_of(nc)
    first = 1 if since_start else (await stream_state(nc, OUTCOMES)).last_seq + 1
    filters = [f"outcome.{namespace or '*'}.*.*"]
    async with follow(nc, OUTCOMES, filters=filters, start_seq=first) as follower:
        async for messages in follower:
            for message in messages:
                _show(message.payload, kind, output)


def _show(payload: bytes, kind: str | None, output: Lines) -> None:
    try:
        event = decode_log(payload)
    except InvalidMessageError as error:
        structlog.get_logger().error("an outcome cannot be read", error=str(error))
        return
    if not isinstance(event.data, OutcomeRecorded):
        return
    if kind is not None and not same_kind(kind, event.key.kind):
        return
    if output == "json":
        print_json_line(as_json_object(event, event.data))
    else:
        print_outcome(event, event.data)


def as_json_object(event: LogEvent, data: OutcomeRecorded) -> dict[str, object]:
    """Give an outcome as programs want it: flat."""
    return {
        "time": event.time,
        "shape": event.subject,
        "outcome": data.outcome,
        "generation": data.generation,
        "reason": data.reason,
        "message": data.message,
        "actor": event.actor,
    }


def print_outcome(event: LogEvent, data: OutcomeRecorded) -> None:
    """Print one line about an outcome."""
    time = event.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = coloured(f"{data.outcome}")
    text.pad_right(max(0, 10 - len(data.outcome)))
    message = " ".join(data.message.split())
    line = f"{time}  {event.subject}  "
    console().print(line, text, f" generation {data.generation}  {data.reason}  {message}", sep="")
    sys.stdout.flush()
