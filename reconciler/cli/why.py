"""`reconciler why`: which event led to how a resource stands, and who asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.text import Text

from events.names import ResourceKey
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.console import console
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.history import print_lines
from reconciler.cli.naming import meant, registered
from reconciler.cli.options import Namespace, Output
from reconciler.cli.output import harmless, print_structured
from reconciler.cli.search import find_resource
from reconciler.cli.summaries import Line, tell_all
from reconciler.ports import StoredEvent
from reconciler.provider.kind import installed_kinds
from reconciler.sdk.history import History, Past
from reconciler.sdk.why import Fight, Parent, Value, Why, lineage
from reconciler.sdk.why import why as explained

_SHOWN_VALUES = 5


class ParentLines(msgspec.Struct, frozen=True, rename="camel"):
    """A resource that another is a part of, what it said to that one, and why, as it is told."""

    resource: str
    reason: str
    chain: list[Line]


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """What is printed for programs: the answer, and its chain as it is told.

    ``parents``: what it is a part of, the nearest first, up to the top.
    """

    why: Why
    chain: list[Line]
    parents: list[ParentLines]


def why(
    resource: str,
    /,
    *words: Annotated[str, Parameter(name="FIELD")],
    namespace: Namespace = None,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Explain the status of a resource, or the value of one field.

    Follows the causes back to the first one: a declaration, or a change in
    the API. For a field, it shows the declared, the last applied and the
    observed value, each with its actor, and the clients that overwrite it.
    For a part of a composed resource, it continues with that resource.

    For example:

        reconciler why foo
        reconciler why Shape/foo color
        reconciler why Shape foo color
        reconciler why payments/Container/web labels.team -o json

    Parameters
    ----------
    resource
        NAME, KIND/NAME or NAMESPACE/KIND/NAME; or a kind, followed by the name.
    words
        Path of a field of the spec, such as color, env.PORT or labels.team.
    """
    named, field = _read(resource, words)
    key, past, above = run_async(_past(connection, named, namespace))
    answer = explained(str(key), past.events, field)
    answer = msgspec.structs.replace(answer, parents=tuple(each for each, _ in above))
    told = _lines(past.events, answer.chain)
    parents = [
        ParentLines(each.resource, each.reason, _lines(history, each.chain))
        for each, history in above
    ]
    if field and not (answer.wanted or answer.applied or answer.observed):
        raise CommandError(f"{key} never had a field {field!r}: `reconciler explain {key.kind}`")
    if output != "table":
        print_structured(Explanation(answer, told, parents), output)
        return Exit.OK
    _print(key, answer, told, parents)
    return Exit.OK


def _read(resource: str, words: Sequence[str]) -> tuple[str, str]:
    """Tell the resource from the field: behind a kind comes a name."""
    more = list(words)
    if more and "/" not in resource and registered(resource) in installed_kinds():
        resource = f"{resource}/{more.pop(0)}"
    if len(more) > 1:
        raise UsageError(f"one field at a time, and there is {', '.join(more)}")
    return resource, more[0] if more else ""


async def _past(
    connection: Connection, resource: str, namespace: str | None
) -> tuple[ResourceKey, Past, list[tuple[Parent, Sequence[StoredEvent]]]]:
    async with bus(connection) as nc:
        key, history = await find_resource(nc, meant(resource, namespace)), History(nc)

        async def read(parent: ResourceKey) -> Sequence[StoredEvent]:
            return (await history.get(parent)).events

        past = await history.get(key)
        return key, past, await lineage(past.events, read)


def _lines(history: Sequence[StoredEvent], chain: Sequence[int]) -> list[Line]:
    lines = {each.version: each for each in tell_all(history)}
    return [lines[version] for version in chain]


def _print(key: ResourceKey, answer: Why, told: list[Line], parents: list[ParentLines]) -> None:
    out = console()
    out.print(f"{key}{' ' + answer.field if answer.field else ''}", style="bold")
    for name in ("wanted", "applied", "observed") if answer.field else ():
        _print_values(name, getattr(answer, name))
    for each in answer.fights:
        out.print(Text(harmless(_told(each)), "bold yellow"))
    if told:
        out.print("\nBecause" if answer.field else "Because", style="bold")
        print_lines(told)
    for each in parents:
        said = f', which said "{each.reason}"' if each.reason else ""
        out.print(Text(harmless(f"\nDeclared by {each.resource}{said}"), "bold"))
        print_lines(each.chain)


def _print_values(name: str, values: Sequence[Value]) -> None:
    out = console()
    if not values:
        out.print(f"  {name:<9} nothing, ever")
        return
    for number, each in enumerate(reversed(values[-_SHOWN_VALUES:])):
        moment = each.time.isoformat(timespec="seconds").replace("+00:00", "Z")
        when = f"since {moment}" if number == 0 else f"  from {moment}"
        what = f"{_value(each.value)}  {when} by {each.event} of {each.actor}"
        line = f"  {name if number == 0 else '':<9} {what} (version {each.version})"
        out.print(Text(harmless(line), "" if number == 0 else "dim"))


def _told(fight: Fight) -> str:
    theirs = ", ".join(map(_value, fight.theirs))
    since, until = (f"{each:%Y-%m-%dT%H:%M:%SZ}" for each in (fight.since, fight.until))
    return (
        f"  a fight about {fight.path}: somebody else wrote {theirs} {fight.times} times"
        f" from {since} to {until}, and we put {_value(fight.ours)} back each time"
    )


def _value(value: Any) -> str:
    return "nothing" if value is None else msgspec.json.encode(value).decode()
