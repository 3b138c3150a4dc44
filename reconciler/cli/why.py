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
from reconciler.provider.kind import installed_kinds
from reconciler.sdk.history import History, Past
from reconciler.sdk.why import Fight, Value, Why
from reconciler.sdk.why import why as explained

_SHOWN_VALUES = 5


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """What is printed for programs: the answer, and its chain as it is told."""

    why: Why
    chain: list[Line]


def why(
    resource: str,
    /,
    *words: Annotated[str, Parameter(name="FIELD")],
    namespace: Namespace = None,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Return why a resource stands as it does, or why a field has its value.

    The causes are followed back to the first: somebody's declaration, or
    what was seen in the API. For a field: as it is wanted, was applied last,
    and was seen, each with who made it so. Who keeps overwriting it is named.

    For example:

        reconciler why foo
        reconciler why Shape/foo color
        reconciler why Shape foo color
        reconciler why payments/Container/web labels.team -o json

    Parameters
    ----------
    resource
        NAME, kind/name or namespace/kind/name; or a kind, with the name after it.
    words
        Path of a field of the spec, such as color, env.PORT or labels.team.
    output
        For people, or for programs.
    """
    named, field = _read(resource, words)
    key, past = run_async(_past(connection, named, namespace))
    answer = explained(str(key), past.events, field)
    lines = {each.version: each for each in tell_all(past.events)}
    told = [lines[version] for version in answer.chain]
    if field and not (answer.wanted or answer.applied or answer.observed):
        raise CommandError(f"{key} never had a field {field!r}: `reconciler explain {key.kind}`")
    if output != "table":
        print_structured(Explanation(answer, told), output)
        return Exit.OK
    _print(key, answer, told)
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
) -> tuple[ResourceKey, Past]:
    async with bus(connection) as nc:
        key = await find_resource(nc, meant(resource, namespace))
        return key, await History(nc).get(key)


def _print(key: ResourceKey, answer: Why, told: list[Line]) -> None:
    out = console()
    out.print(f"{key}{' ' + answer.field if answer.field else ''}", style="bold")
    for name in ("wanted", "applied", "observed") if answer.field else ():
        _print_values(name, getattr(answer, name))
    for each in answer.fights:
        out.print(Text(harmless(_told(each)), "bold yellow"))
    if told:
        out.print("\nBecause" if answer.field else "Because", style="bold")
        print_lines(told)


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
