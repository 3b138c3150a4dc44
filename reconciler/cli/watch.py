"""`reconciler watch`: show outcomes and drift as they occur."""

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
from events.subjects import SILENCE, outcome_filter, rejection_filter
from infra.bus.event_log import ALL_RESOURCES
from infra.bus.streams import LOG, REJECTIONS
from infra.jetstream.follow import Follower, follow
from infra.jetstream.reads import StoredMessage, stream_state
from projections.status import StatusRow
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.console import colored, console
from reconciler.cli.folded_log import current_models
from reconciler.cli.options import Filter, Labels, Namespace, ResourceWord
from reconciler.cli.output import print_json_line, single_line
from reconciler.cli.past.summaries import describe_drift
from reconciler.cli.search import check_namespace, has_log_events
from reconciler.cli.selection import ResolvedSelection, Selection, parse_selection
from reconciler.cli.signals import run_until_stopped

LineFormat = Literal["table", "json"]


class WatchFilter(msgspec.Struct, frozen=True):
    """Shows only the resources that match ``tokens`` and the selection.

    ``labels`` contains each resource's labels, for selections by label.
    """

    tokens: str
    selected: ResolvedSelection
    labels: dict[str, dict[str, str]]

    def matches(self, event: LogEvent) -> bool:
        """Return whether to show an event; events must arrive in log order."""
        key = event.key
        if not self.selected.labels.terms:
            return self.selected.matches(StatusRow(key.namespace, key.kind, key.name))
        if isinstance(event.data, SpecDeclared):
            self.labels[event.subject] = event.data.labels
        labels = self.labels.get(event.subject, {})
        return self.selected.matches(StatusRow(key.namespace, key.kind, key.name, labels=labels))


def watch(
    kind: ResourceWord | None = None,
    /,
    *names: ResourceWord,
    namespace: Namespace = None,
    labels: Labels = "",
    since_start: bool = False,
    output: Annotated[LineFormat, Parameter(name=("--output", "-o"))] = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show outcomes and drift as they occur, one per line, until Ctrl-C.

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
        A kind, or a resource: NAME, KIND/NAME or NAMESPACE/KIND/NAME. Default: all resources in
        all namespaces.
    names
        More resources, or names after a kind.
    since_start
        First show all past outcomes, and the rejections from the last 30 days.
    output
        Output format: text, or one JSON object per line.
    """
    words = names if kind is None else (kind, *names)
    where = Filter(namespace=namespace, all_namespaces=namespace is None, labels=labels)
    selection = parse_selection(words, where)

    async def work() -> None:
        async with bus(connection) as nc:
            watch_filter = await _build_filter(nc, selection)
            await _watch(nc, watch_filter, output, since_start=since_start)

    return run_async(run_until_stopped(work()))


async def _build_filter(nc: Client, selection: Selection) -> WatchFilter:
    """Return the filter; print a note if no event in the log matches it yet.

    A user may watch a name before declaring it. Raises ``CommandError`` for an unknown kind or
    namespace, which is probably a typo.
    """
    rows = (await current_models(nc)).status
    selected = selection.resolve(rows.values())
    await check_namespace(nc, selected.namespace)
    single = selected.named[0] if len(selected.named) == 1 else None
    kind, name = (selected.kind, None) if single is None else (single.kind, single.name)
    namespace_token = selected.namespace if single is None else single.namespace
    tokens = f"{namespace_token or '*'}.{kind or '*'}.{name or '*'}"
    if tokens != ALL_RESOURCES and not await has_log_events(nc, tokens):
        text = tokens.replace(".", "/")
        sys.stderr.write(f"{text}: no events in the log yet; waiting for the first one\n")
        sys.stderr.flush()
    return WatchFilter(tokens, selected, {name: row.labels for name, row in rows.items()})


async def _watch(
    nc: Client, watch_filter: WatchFilter, output: LineFormat, *, since_start: bool
) -> None:
    """Follow the log and the rejections, which are not in the log."""
    tokens = watch_filter.tokens
    filters = [outcome_filter(tokens), f"log.{tokens}.fact", f"log.{tokens}.{SILENCE}"]
    starts = {LOG: 1, REJECTIONS: 1}
    if not since_start:
        starts = {stream: (await stream_state(nc, stream)).last_seq + 1 for stream in starts}
    async with (
        follow(nc, LOG, filters=filters, start_seq=starts[LOG]) as log,
        follow(
            nc, REJECTIONS, filters=[rejection_filter(tokens)], start_seq=starts[REJECTIONS]
        ) as rejections,
    ):
        if since_start:
            watch_filter.labels.clear()  # the replay sets them again
            await _show_existing(log, rejections, watch_filter, output)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_show_new(log, watch_filter, output))
            tasks.create_task(_show_new(rejections, watch_filter, output))


async def _show_existing(
    log: Follower, rejections: Follower, watch_filter: WatchFilter, output: LineFormat
) -> None:
    """Show the existing events in chronological order."""
    rejected = deque([event async for batch in rejections.replay() for event in _events(batch)])
    async for batch in log.replay():
        for event in _events(batch):
            while rejected and rejected[0].time <= event.time:
                _show(rejected.popleft(), watch_filter, output)
            _show(event, watch_filter, output)
    for event in rejected:
        _show(event, watch_filter, output)


async def _show_new(follower: Follower, watch_filter: WatchFilter, output: LineFormat) -> None:
    async for batch in follower:
        for event in _events(batch):
            _show(event, watch_filter, output)


def _events(messages: Iterable[StoredMessage]) -> Iterator[LogEvent]:
    for message in messages:
        try:
            yield decode_log(message.payload)
        except InvalidMessageError as error:
            structlog.get_logger().error("an event cannot be read", error=str(error))


def _show(event: LogEvent, watch_filter: WatchFilter, output: LineFormat) -> None:
    """Show watched resources' outcomes and drift; other events only update the labels."""
    if not watch_filter.matches(event):
        return
    if isinstance(event.data, DriftDetected):
        _show_drift(event, event.data, output)
    elif isinstance(event.data, OutcomeRecorded):
        if output == "json":
            print_json_line(as_json_object(event, event.data))
        else:
            print_outcome(event, event.data)


def _show_drift(event: LogEvent, data: DriftDetected, output: LineFormat) -> None:
    if output == "json":
        print_json_line(
            {
                "time": event.time,
                "resource": event.subject,
                "drift": describe_drift(data),
                "generation": data.generation,
                "actor": event.actor,
            }
        )
    else:
        _print_line(event, "Drift", data.generation, describe_drift(data))


def as_json_object(event: LogEvent, data: OutcomeRecorded) -> dict[str, object]:
    """Return an outcome as a flat object, for programs."""
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
    """Print one line for an outcome."""
    message = single_line(data.message)
    _print_line(event, data.outcome, data.generation, f"{data.reason}  {message}")


def _print_line(event: LogEvent, word: str, generation: int, rest: str) -> None:
    time = event.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = colored(word)
    text.pad_right(max(0, 10 - len(word)))
    line = f"{time}  {event.subject}  "
    console().print(line, text, f" generation {generation}  {rest}", sep="")
    sys.stdout.flush()
