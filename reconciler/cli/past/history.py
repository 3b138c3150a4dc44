"""`history` and `events`: show the events of one resource, or of all resources."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated, Final, cast

import msgspec
from cyclopts import Parameter
from nats.aio.client import Client

from events.log import (
    ActionDecided,
    OutcomeName,
    ResourceEvent,
    SpecDeclared,
    SpecWithdrawn,
)
from events.names import ResourceKey
from infra.bus.event_log import open_log
from infra.bus.log_times import log_range
from reconciler.cli.completion import complete_events, complete_outcomes
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.console import console, print_table
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.naming import (
    Reference,
    check_names,
    parse_event_name,
    parse_outcome,
    parse_reference,
)
from reconciler.cli.options import Integer, Name, Namespace, Resource, WideOutput, check_limit
from reconciler.cli.output import TABLES, WideFormat, print_json_line, print_structured
from reconciler.cli.past.summaries import (
    Line,
    declaration_after,
    describe_event,
    describe_history,
    last_declaration,
)
from reconciler.cli.progress import progress_bar
from reconciler.cli.search import check_namespace, find_kind, find_resource, has_log_events
from reconciler.cli.signals import run_until_stopped
from reconciler.cli.when import At
from reconciler.ports import StoredEvent
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.sdk.moments import Span, When, format_time, span
from reconciler.sdk.timeline import EventFilter, follow_events, newest_events

_WIDE_COLUMNS: Final = ("VERSION", "EVENT", "CAUSE", "ACTOR")
_MAX_CAUSE_CHARACTERS: Final = 14


def history(
    resource: Resource,
    name: Name = None,
    /,
    *,
    namespace: Namespace = None,
    since: At = None,
    until: At = None,
    limit: Integer | None = None,
    raw: bool = False,
    output: WideOutput = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show the events of one resource as sentences, oldest first.

    With -o wide, each line also has the event's name, cause and actor. A
    deleted resource keeps its history.

    For example:

        reconciler history foo
        reconciler history Shape foo
        reconciler history default/Shape/foo --limit 20
        reconciler history foo --since 2h -o wide
        reconciler history foo --since 2026-01-31T12:00:05Z --until 1234
        reconciler history foo --output json | jq '.[].what'
        reconciler history foo --raw --output json     events as stored

    Parameters
    ----------
    since
        Only events since this point: a log position (1234), a time (2026-01-31T12:00:05Z; UTC
        if no zone is given) or a duration before now (30m, 2h, 7d).
    until
        Only events until this point, in the same format.
    limit
        Show only the newest events, at most this many.
    raw
        Print the events as stored, as JSON or YAML.
    """
    if limit is not None:
        check_limit(limit)
    reference = parse_reference(resource, namespace, name)
    if raw and output in TABLES:
        output = "json"
    return run_async(_history(connection, reference, (since, until), limit, output, raw=raw))


async def _history(
    connection: Connection,
    resource: Reference,
    when: tuple[When | None, When | None],
    limit: int | None,
    output: WideFormat,
    *,
    raw: bool,
) -> Exit:
    from reconciler.sdk.history import History  # noqa: PLC0415 - its library takes 0.1 s of CPU

    async with bus(connection) as nc:
        key = await find_resource(nc, resource)
        selected = await span(nc, *when)
        past = await History(nc).get(key)
    # A description refers to earlier declarations, including those before the span.
    descriptions = describe_history(past.events)
    pairs = [
        pair for pair in zip(past.events, descriptions, strict=True) if pair[0].position in selected
    ]
    if limit is not None:
        pairs = pairs[max(0, len(pairs) - limit) :]
    if past.damage is not None:
        damage = f"the log is damaged ({past.damage})"
        sys.stderr.write(f"{damage}; only the events of {key} before the damage are shown\n")
    if not pairs and past.events:
        covered = f"{_format_position(past.events[0])} to {_format_position(past.events[-1])}"
        sys.stderr.write(f"no events in this range: the history of {key} covers {covered}\n")
    lines = [line for _, line in pairs]
    if output in TABLES:
        sys.stdout.write(f"{key}\n")
        print_lines(lines, wide=output == "wide")
    else:
        print_structured([stored.event for stored, _ in pairs] if raw else lines, output)
    return Exit.OK


def _format_position(stored: StoredEvent) -> str:
    return f"position {stored.position}, {format_time(stored.event.time)}"


# --- all resources


class FleetLine(Line, frozen=True, rename="camel"):
    """One event in the timeline of all resources."""

    resource: str


def events(
    *,
    namespace: Namespace = None,
    kind: str | None = None,
    actor: str | None = None,
    outcome: Annotated[str | None, Parameter(completer=complete_outcomes)] = None,
    event: Annotated[tuple[str, ...], Parameter(completer=complete_events)] = (),
    since: At = None,
    until: At = None,
    limit: Integer = 50,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
    output: WideOutput = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show the newest events of all resources, oldest first.

    Each line has the time, the resource and a sentence about the event. With
    -o wide, it also has the event's name, cause and actor. A TIME is a log
    position (1234), a time (2026-01-31T12:00:05Z; UTC if no zone is given) or
    a duration before now (30m, 2h, 7d).

    For example:

        reconciler events
        reconciler events --since 2h --limit 1000
        reconciler events -n payments --kind Shape --outcome Failed
        reconciler events --actor 'cli:*' --since 7d
        reconciler events --event SpecDeclared --event SpecWithdrawn
        reconciler events -f -o json | jq .what

    Parameters
    ----------
    kind
        Only resources of this kind.
    actor
        Only events by this actor, as `-o wide` shows it; * matches any text.
    outcome
        Only this outcome: Converged, Degraded, Failed, ...
    event
        Only events of this type, as `-o wide` shows it: SpecDeclared, DriftDetected, ... May be
        repeated.
    since
        Only events since TIME.
    until
        Only events until TIME.
    limit
        Show only the newest events, at most this many.
    follow
        Continue with new events until Ctrl-C. JSON is then one object per line.
    """
    check_names(namespace=namespace)
    check_limit(limit, at_least=0 if follow else 1)
    if follow and until is not None:
        raise UsageError(
            "--follow: not allowed with --until, because it does not end; remove one of them"
        )
    name = None if outcome is None else cast("OutcomeName", parse_outcome(outcome))
    event_filter = EventFilter(
        namespace or "*",
        kind or "*",
        actor=actor,
        outcome=name,
        event_names=[parse_event_name(each) for each in event],
    )

    async def work() -> None:
        async with bus(connection) as nc:
            await _events(nc, event_filter, (since, until), limit, output, follows=follow)

    return run_async(run_until_stopped(work()))


async def _events(
    nc: Client,
    event_filter: EventFilter,
    when: tuple[When | None, When | None],
    limit: int,
    output: WideFormat,
    *,
    follows: bool,
) -> None:
    event_filter = await _check_filter(nc, event_filter)
    selected = await span(nc, *when)
    _, last = await log_range(nc)
    selected = Span(selected.after, last if selected.up_to is None else selected.up_to)
    with progress_bar("reading the log", max(0, last - selected.after)) as progress:
        events = await newest_events(nc, event_filter, selected, limit, progress)
    describer = _EventDescriber(nc)
    lines = [await describer.describe(event) for event in events]
    if follows:
        _print_lines(lines, output)
        async with aclosing(follow_events(nc, event_filter, last)) as batches:
            async for batch in batches:
                _print_lines([await describer.describe(event) for event in batch], output)
    elif output not in TABLES:
        print_structured(lines, output)
    elif lines:
        wide = output == "wide"
        columns = ("TIME", "POSITION", "RESOURCE", *(_WIDE_COLUMNS if wide else ()), "WHAT")
        print_table(columns, [_cells(line, line.resource, wide=wide) for line in lines])
    else:
        sys.stderr.write("no events match\n")


async def _check_filter(nc: Client, event_filter: EventFilter) -> EventFilter:
    """Resolve the kind of a filter; raises an error for an unknown kind or namespace."""
    await open_log(nc)
    await check_namespace(nc, None if event_filter.namespace == "*" else event_filter.namespace)
    kind = event_filter.kind if event_filter.kind == "*" else await find_kind(nc, event_filter.kind)
    tokens = f"{event_filter.namespace}.{kind}.*"
    if tokens != "*.*.*" and not await has_log_events(nc, tokens):
        scope = "" if event_filter.namespace == "*" else f" in namespace {event_filter.namespace}"
        what = "nothing" if kind == "*" else f"no {kind}"
        raise CommandError(
            f"the log contains {what}{scope}; `reconciler get -A` lists all resources"
        )
    return msgspec.structs.replace(event_filter, kind=kind)


class _EventDescriber:
    """Describes events of many resources in log order, with their previous declarations."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._declared: dict[str, SpecDeclared | None] = {}

    async def describe(self, stored: StoredEvent) -> FleetLine:
        resource, data = stored.event.subject, stored.event.data
        if resource not in self._declared and _needs_previous_declaration(data):
            self._declared[resource] = await self._previous_declaration(stored)
        line = describe_event(stored, self._declared.get(resource))
        if isinstance(data, (SpecDeclared, SpecWithdrawn)):
            self._declared[resource] = declaration_after(stored, None)
        return FleetLine(**msgspec.structs.asdict(line), resource=resource)

    async def _previous_declaration(self, stored: StoredEvent) -> SpecDeclared | None:
        from reconciler.sdk.history import History  # noqa: PLC0415 - its library takes 0.1 s of CPU

        past = await History(self._nc).get(ResourceKey.parse(stored.event.subject))
        return last_declaration(each for each in past.events if each.position < stored.position)


def _needs_previous_declaration(data: ResourceEvent) -> bool:
    """Return whether the description of an event requires the previous declaration."""
    if isinstance(data, ActionDecided):
        return data.action.operation == "Update" and OWNER_LABEL not in data.action.labels
    return isinstance(data, SpecDeclared) and data.generation > 1


def _print_lines(lines: list[FleetLine], output: WideFormat) -> None:
    """Print lines as they arrive, without aligned columns."""
    for line in lines:
        if output in TABLES:
            console().print("  ".join(_cells(line, line.resource, wide=output == "wide")))
        else:
            print_json_line(line)
    sys.stdout.flush()


# --- tables


def print_lines(lines: Sequence[Line], *, wide: bool = False) -> None:
    """Print events of one resource as a table; ``wide`` adds names, causes and actors."""
    columns = ("TIME", "POSITION", *(_WIDE_COLUMNS if wide else ()), "WHAT")
    print_table(columns, [_cells(line, wide=wide) for line in lines])


def _cells(line: Line, *resource: str, wide: bool) -> tuple[str, ...]:
    """Return the cells of an event, with its ``resource``, if given, after the position."""
    if not wide:
        return (f"{line.time.partition('.')[0]}Z", str(line.position), *resource, line.what)
    cause = line.cause.rpartition("/")[2]  # an action's id without the resource's name
    if len(cause) > _MAX_CAUSE_CHARACTERS:
        cause = f"{cause[: _MAX_CAUSE_CHARACTERS - 3]}..."
    names = (str(line.version), line.event, cause, line.actor)
    return (line.time, str(line.position), *resource, *names, line.what)
