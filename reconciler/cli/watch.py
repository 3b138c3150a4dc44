"""`reconciler watch`: outcomes as they come, and the drift between them."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import msgspec
import structlog
from cyclopts import Parameter
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from events.log import DriftDetected, LogEvent, OutcomeRecorded, SpecDeclared
from events.subjects import outcome_filter
from infra.bus.event_log import EVERYTHING
from infra.bus.streams import LOG, OUTCOMES
from infra.jetstream.follow import Follower, follow
from infra.jetstream.reads import StoredMessage, read_subject, stream_state
from projections.status import StatusRow
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.console import coloured, console
from reconciler.cli.exits import Exit
from reconciler.cli.log_replay import current_models
from reconciler.cli.options import Namespace
from reconciler.cli.output import print_json_line
from reconciler.cli.search import check_namespace, log_speaks_of
from reconciler.cli.selection import Selected, Selection, selection
from reconciler.cli.selectors import Labels
from reconciler.cli.signals import until_stopped
from reconciler.cli.summaries import summary

Lines = Literal["table", "json"]

_COPIED_FROM = "Nats-Stream-Source"
_LOOKED_AT = 100


class Watched(msgspec.Struct, frozen=True):
    """Whose outcomes and drift are shown: what matches ``tokens``, and is selected.

    ``labels`` are those of each resource, as far as they matter.
    """

    tokens: str
    selected: Selected
    labels: dict[str, dict[str, str]]

    def shows(self, event: LogEvent) -> bool:
        """Return whether an event is shown; events must come in the order of the log."""
        key = event.key
        if not self.selected.labels.terms:
            return self.selected.takes(StatusRow(key.namespace, key.kind, key.name))
        if isinstance(event.data, SpecDeclared):
            self.labels[event.subject] = event.data.labels
        labels = self.labels.get(event.subject, {})
        return self.selected.takes(StatusRow(key.namespace, key.kind, key.name, labels=labels))


def watch(
    kind: str | None = None,
    /,
    *names: str,
    namespace: Namespace = None,
    labels: Labels = "",
    since_start: bool = False,
    output: Annotated[Lines, Parameter(name=("--output", "-o"))] = "table",
    connection: Connection = HERE,
) -> int:
    """Show outcomes and drift as they come, one line each, until Ctrl-C.

    For example:

        reconciler watch
        reconciler watch Shape -n payments
        reconciler watch -l team=payments
        reconciler watch Shape foo --since-start
        reconciler watch --since-start | grep Failed
        reconciler watch --output json | jq 'select(.drift)'

    Parameters
    ----------
    kind
        Only resources of this kind; or a name, KIND/NAME or NAMESPACE/KIND/NAME.
    names
        Only resources of these names.
    namespace
        Only resources of this namespace; all by default.
    since_start
        First what is kept (30 days), then what is new.
    output
        Lines for people, or one JSON object a line.
    """
    words = names if kind is None else (kind, *names)
    chosen = selection(words, namespace=namespace, everywhere=namespace is None, labels=labels)

    async def work() -> None:
        async with bus(connection) as nc:
            watched = await _watched(nc, chosen)
            if labels:
                await _watch_log(nc, watched, output, since_start=since_start)
            else:
                await _watch(nc, watched, output, since_start=since_start)

    async def all_of_it() -> Exit:
        return await until_stopped(work())

    return run_async(all_of_it())


async def _watched(nc: Client, chosen: Selection) -> Watched:
    """Return what to watch; say so if nothing that matches it is known yet.

    A name may be watched before it is declared. Raises ``CommandError``: a kind or a namespace that
    nobody knows is a slip of the pen.
    """
    rows = (await current_models(nc)).status
    selected = chosen.among(rows.values())
    await check_namespace(nc, selected.namespace)
    one = selected.named[0] if len(selected.named) == 1 else None
    kind, name = (one.kind, one.name) if one is not None else (selected.kind, None)
    place = selected.namespace if one is None else one.namespace
    tokens = f"{place or '*'}.{kind or '*'}.{name or '*'}"
    if tokens != EVERYTHING and not await log_speaks_of(nc, tokens):
        shown = tokens.replace(".", "/")
        sys.stderr.write(f"nothing is known of {shown} yet: this waits for it\n")
        sys.stderr.flush()
    return Watched(tokens, selected, {name: row.labels for name, row in rows.items()})


async def _watch_log(nc: Client, watched: Watched, output: Lines, *, since_start: bool) -> None:
    """Follow the log alone: it tells labels in order with all else, but not what was rejected."""
    first = 1 if since_start else (await stream_state(nc, LOG)).last_seq + 1
    if since_start:
        watched.labels.clear()  # as they were by then
    async with follow(nc, LOG, filters=[f"log.{watched.tokens}.>"], start_seq=first) as log:
        await _show_new(log, watched, output)


async def _watch(nc: Client, watched: Watched, output: Lines, *, since_start: bool) -> None:
    """Follow two streams: what is rejected is not in the log, and drift is only there."""
    tokens = watched.tokens
    first_outcome = 1 if since_start else (await stream_state(nc, OUTCOMES)).last_seq + 1
    first_fact = await _oldest_kept(nc, tokens) if since_start else None
    if first_fact is None:
        first_fact = (await stream_state(nc, LOG)).last_seq + 1
    async with (
        follow(nc, OUTCOMES, filters=[outcome_filter(tokens)], start_seq=first_outcome) as outcomes,
        follow(nc, LOG, filters=[f"log.{tokens}.fact"], start_seq=first_fact) as facts,
    ):
        if since_start:
            await _show_kept(outcomes, facts, watched, output)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_show_new(outcomes, watched, output))
            tasks.create_task(_show_new(facts, watched, output))


async def _oldest_kept(nc: Client, tokens: str) -> int | None:
    """Return the log position of the oldest outcome that is kept; None if nothing is kept."""
    oldest = await read_subject(nc, OUTCOMES, outcome_filter(tokens), limit=_LOOKED_AT)
    for message in oldest:  # what was rejected does not come from the log
        source = (message.headers or {}).get(_COPIED_FROM, "").split()
        if len(source) > 1 and source[1].isdecimal():
            return int(source[1])
    return 1 if oldest else None


async def _show_kept(outcomes: Follower, facts: Follower, watched: Watched, output: Lines) -> None:
    """Show what is there already, in the order of time."""
    drifts = deque([event async for batch in facts.replay() for event in _told(batch, watched)])
    async for batch in outcomes.replay():
        for event in _told(batch, watched):
            while drifts and drifts[0].time <= event.time:
                _show(drifts.popleft(), output)
            _show(event, output)
    for event in drifts:
        _show(event, output)


async def _show_new(follower: Follower, watched: Watched, output: Lines) -> None:
    async for batch in follower:
        for event in _told(batch, watched):
            _show(event, output)


def _told(messages: Iterable[StoredMessage], watched: Watched) -> Iterator[LogEvent]:
    """Decode what is shown: outcomes and drift."""
    for message in messages:
        try:
            event = decode_log(message.payload)
        except InvalidMessageError as error:
            structlog.get_logger().error("an event cannot be read", error=str(error))
            continue
        if watched.shows(event) and isinstance(event.data, (OutcomeRecorded, DriftDetected)):
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
