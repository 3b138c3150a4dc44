"""`reconciler history`: what happened to one resource, and why."""

from __future__ import annotations

import sys

from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.console import print_table
from reconciler.cli.exits import Exit
from reconciler.cli.naming import Meant, meant
from reconciler.cli.options import Namespace, Output
from reconciler.cli.output import Format, print_structured
from reconciler.cli.search import find_resource
from reconciler.cli.summaries import Line, tell_all
from reconciler.cli.when import At
from reconciler.ports import StoredEvent
from reconciler.sdk.history import History
from reconciler.sdk.moments import When, span
from reconciler.sdk.moments import shown as shown_time

_SHOWN_ID = 14


def history(
    resource: str,
    name: str | None = None,
    /,
    *,
    namespace: Namespace = None,
    since: At = None,
    until: At = None,
    limit: int | None = None,
    raw: bool = False,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Show the events of one resource, oldest first, with cause and actor.

    A deleted resource keeps its history.

    For example:

        reconciler history foo
        reconciler history Shape foo
        reconciler history default/Shape/foo --limit 20
        reconciler history foo --since 2h
        reconciler history foo --since 2026-01-31T12:00:05Z --until 1234
        reconciler history foo --output json | jq '.[].what'
        reconciler history foo --raw --output json     events as stored

    Parameters
    ----------
    resource
        NAME, KIND/NAME or NAMESPACE/KIND/NAME; or a kind, followed by the name.
    name
        The name, after a kind.
    since
        Only events since then: a log position (1234), a time (2026-01-31T12:00:05Z; UTC without a
        zone) or a time span ago (30m, 2h, 7d).
    until
        Only events until then, in the same forms.
    limit
        Maximum number of events; the newest are shown.
    raw
        Print the events as stored, as JSON or YAML.
    """
    return run_async(
        _history(
            connection,
            meant(resource if name is None else f"{resource}/{name}", namespace),
            (since, until),
            limit,
            "json" if raw and output == "table" else output,
            raw,
        )
    )


async def _history(
    connection: Connection,
    resource: Meant,
    when: tuple[When | None, When | None],
    limit: int | None,
    output: Format,
    raw: bool,
) -> Exit:
    async with bus(connection) as nc:
        key = await find_resource(nc, resource)
        wanted = await span(nc, *when)
        past = await History(nc).get(key)
    told = tell_all(past.events)  # each beside what was declared before, also before the span
    shown = [pair for pair in zip(past.events, told, strict=True) if pair[0].position in wanted]
    if limit is not None:
        shown = shown[max(0, len(shown) - limit) :]
    if past.damage is not None:
        sys.stderr.write(f"the log is damaged; of {key} this is what is sound: {past.damage}\n")
    if not shown and past.events:
        ends = f"{_place(past.events[0])} to {_place(past.events[-1])}"
        sys.stderr.write(f"nothing of {key} is asked for: its history goes from {ends}\n")
    if raw:
        print_structured([stored.event for stored, _ in shown], output)
        return Exit.OK
    lines = [line for _, line in shown]
    if output != "table":
        print_structured(lines, output)
        return Exit.OK
    sys.stdout.write(f"{key}\n")
    print_lines(lines)
    return Exit.OK


def _place(stored: StoredEvent) -> str:
    return f"position {stored.position}, {shown_time(stored.event.time)}"


def print_lines(lines: list[Line]) -> None:
    """Print a history as a table."""
    rows = [
        (
            line.time,
            str(line.version),
            f"{line.event} {line.what}".strip(),
            _cause(line),
            line.actor,
        )
        for line in lines
    ]
    print_table(("TIME", "VERSION", "EVENT", "CAUSE", "ACTOR"), rows)


def _cause(line: Line) -> str:
    """Shorten a cause: of an action's own id only what is behind the resource's name."""
    text = line.cause.rpartition("/")[2]
    return text if len(text) <= _SHOWN_ID else text[: _SHOWN_ID - 3] + "..."
