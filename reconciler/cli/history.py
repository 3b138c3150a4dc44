"""`reconciler history`: what happened to one resource, and why."""

from __future__ import annotations

import sys

from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.event_table import TABLES, print_lines
from reconciler.cli.exits import Exit
from reconciler.cli.naming import Meant, meant
from reconciler.cli.options import Namespace, WideOutput, check_limit
from reconciler.cli.output import WideFormat, print_structured
from reconciler.cli.search import find_resource
from reconciler.cli.summaries import tell_all
from reconciler.cli.when import At
from reconciler.ports import StoredEvent
from reconciler.sdk.history import History
from reconciler.sdk.moments import When, span
from reconciler.sdk.moments import shown as shown_time


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
    output: WideOutput = "table",
    connection: Connection = HERE,
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
    resource
        NAME, KIND/NAME or NAMESPACE/KIND/NAME; or a kind, followed by the name.
    name
        The name, after a kind.
    since
        Only events since this point: a log position (1234), a time (2026-01-31T12:00:05Z; UTC
        without a zone) or a time span before now (30m, 2h, 7d).
    until
        Only events until this point, in the same forms.
    limit
        Show only the newest events, at most this many.
    raw
        Print the events as stored, as JSON or YAML.
    """
    if limit is not None:
        check_limit(limit)
    return run_async(
        _history(
            connection,
            meant(resource if name is None else f"{resource}/{name}", namespace),
            (since, until),
            limit,
            "json" if raw and output in TABLES else output,
            raw,
        )
    )


async def _history(
    connection: Connection,
    resource: Meant,
    when: tuple[When | None, When | None],
    limit: int | None,
    output: WideFormat,
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
        damage = f"the log is damaged ({past.damage})"
        sys.stderr.write(f"{damage}; only the events of {key} before the damage are shown\n")
    if not shown and past.events:
        ends = f"{_place(past.events[0])} to {_place(past.events[-1])}"
        sys.stderr.write(f"no events in this range: the history of {key} covers {ends}\n")
    lines = [line for _, line in shown]
    if output in TABLES:
        sys.stdout.write(f"{key}\n")
        print_lines(lines, wide=output == "wide")
    else:
        print_structured([stored.event for stored, _ in shown] if raw else lines, output)
    return Exit.OK


def _place(stored: StoredEvent) -> str:
    return f"position {stored.position}, {shown_time(stored.event.time)}"
