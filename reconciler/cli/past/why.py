"""`reconciler why`: explain the state of a resource with the events that caused it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from cyclopts import Parameter

from events.names import ResourceKey
from projections.read_models import rebuild
from projections.readiness import API_SILENT, show_readiness
from projections.status import StatusRow
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.console import console, print_table
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.naming import parse_reference
from reconciler.cli.options import Namespace, Resource, WideOutput
from reconciler.cli.output import TABLES, print_structured, time_text
from reconciler.cli.past.answer import build_answer, describe_source
from reconciler.cli.past.approval_command import find_approval_command
from reconciler.cli.past.dependencies import read_dependencies
from reconciler.cli.past.exchanges import explain_exchange
from reconciler.cli.past.history import print_lines
from reconciler.cli.past.summaries import Line, describe_history
from reconciler.cli.search import find_in_words
from reconciler.ports import StoredEvent
from reconciler.resource.difference import format_value
from reconciler.sdk.history import History, ResourceHistory
from reconciler.sdk.why import Parent, RepeatedDrift, Why, explain, lineage

_MAX_SHOWN_VALUES = 5


class ParentLines(msgspec.Struct, frozen=True, rename="camel"):
    """A resource composed of the explained one, its reason, and the lines about its causes."""

    resource: str
    reason: str
    chain: list[Line]


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """The structured output: the answer in one sentence, and the chain of causes.

    ``parents``: the composed resources that contain the explained one, innermost first.
    ``readiness``: why the readiness is unknown, if its API does not respond. ``approval``: the
    command that approves its hold, if an approval can end it. ``exchange``: the resources with
    which it exchanges a value, if the API refuses that.
    """

    answer: str
    why: Why
    chain: list[Line]
    parents: list[ParentLines]
    readiness: str = ""
    approval: str = ""
    exchange: str = ""


def why(
    resource: Resource,
    /,
    *words: Annotated[str, Parameter(name="FIELD")],
    namespace: Namespace = None,
    output: WideOutput = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Explain the status of a resource, or the value of one field.

    The command explains the status in one sentence, and then shows its
    causes, back to the first one: a declaration, or a change in the API. For a
    field, it shows the desired, applied and observed values, newest first, each
    with its cause, and reports other clients that overwrite the field. For a
    part of a composed resource, it also explains the composed resource. If the
    API refuses an update because other resources exchange values with this one,
    the command names them and the way out.

    For example:

        reconciler why foo
        reconciler why Shape/foo color
        reconciler why Shape foo color
        reconciler why payments/Container/web labels.team -o json

    Parameters
    ----------
    words
        Path of a field of the spec, such as color, env.PORT or labels.team.
    """
    key, field, past, ancestors, row, exchange = run_async(
        _read_past(connection, resource, words, namespace)
    )
    result = explain(str(key), past.events, field)
    result = msgspec.structs.replace(result, parents=tuple(each for each, _ in ancestors))
    lines = _lines(past.events, result.chain)
    parents = [
        ParentLines(each.resource, each.reason, _lines(history, each.chain))
        for each, history in ancestors
    ]
    if field and not (result.wanted or result.applied or result.observed):
        raise CommandError(
            f"{key} has never had a field {field!r}; "
            f"`reconciler explain {key.kind}` lists the fields"
        )
    answer = build_answer(key, past.events, result)
    explanation = Explanation(answer, result, lines, parents, exchange=exchange)
    if row is not None:
        readiness, approval = _explain_readiness(row), find_approval_command(row)
        explanation = msgspec.structs.replace(explanation, readiness=readiness, approval=approval)
    if output in TABLES:
        _print(explanation, wide=output == "wide")
    else:
        print_structured(explanation, output)
    return Exit.OK


async def _read_past(
    connection: Connection, resource: str, words: Sequence[str], namespace: str | None
) -> tuple[
    ResourceKey,
    str,
    ResourceHistory,
    list[tuple[Parent, Sequence[StoredEvent]]],
    StatusRow | None,
    str,
]:
    """Return the resource, the field, its history and its parents.

    Without a field, also its row, and the circle of values that it is part of.
    """
    parse_reference(resource, namespace)  # checked before any request to a server
    async with bus(connection) as nc:
        key, more = await find_in_words(nc, (resource, *words), namespace)
        if len(more) > 1:
            raise UsageError(f"only one field is allowed; remove {', '.join(more[1:])}")
        history = History(nc)

        async def read(parent: ResourceKey) -> Sequence[StoredEvent]:
            return (await history.get(parent)).events

        past, field = await history.get(key), "".join(more)
        row = None if field else rebuild(past.events).status.get(str(key))
        if row is not None:
            row = show_readiness(row, await read_dependencies(nc, row, None))
        exchange = "" if row is None else await explain_exchange(nc, row, past.events)
        return key, field, past, await lineage(past.events, read), row, exchange


def _explain_readiness(row: StatusRow) -> str:
    """Return why the readiness of a resource is unknown, or ""."""
    return next((each.message for each in row.conditions if each.reason == API_SILENT), "")


def _lines(history: Sequence[StoredEvent], chain: Sequence[int]) -> list[Line]:
    lines = {each.version: each for each in describe_history(history)}
    return [lines[version] for version in chain]


def _print(explanation: Explanation, *, wide: bool) -> None:
    out, why = console(), explanation.why
    out.print(explanation.answer, style="bold")
    if explanation.readiness:
        out.print(f"Its readiness is unknown: {explanation.readiness}.", style="bold yellow")
    if explanation.exchange:
        out.print(f"{explanation.exchange}.", style="bold yellow")
    if explanation.approval:
        out.print(f"To approve exactly this: {explanation.approval}", style="bold yellow")
    if why.field:
        _print_values(why)
    for each in why.repeated_drifts:
        out.print(_describe_repeated_drift(each), style="bold yellow")
    if explanation.chain:
        out.print()
        print_lines(explanation.chain, wide=wide)
    for parent in explanation.parents:
        has_reason = parent.reason not in ("", f"part of {parent.resource}")
        reason = f" (reason: {parent.reason})" if has_reason else ""
        out.print_title(f"It is part of {parent.resource}{reason}.")
        print_lines(parent.chain, wide=wide)


def _print_values(why: Why) -> None:
    rows: list[tuple[str, ...]] = []
    for name, values in (
        ("desired", why.wanted),
        ("applied", why.applied),
        ("observed", why.observed),
    ):
        newest = values[: -_MAX_SHOWN_VALUES - 1 : -1]
        rows += [
            (
                "" if number else name,
                format_value(each.value),
                time_text(each.time),
                str(each.position),
                describe_source(each),
            )
            for number, each in enumerate(newest)
        ] or [(name, "never set", "", "", "")]
    print_table(("STATE", "VALUE", "SINCE", "POSITION", "CAUSE"), rows)


def _describe_repeated_drift(drift: RepeatedDrift) -> str:
    theirs = ", ".join(map(format_value, drift.theirs))
    since, until = time_text(drift.since), time_text(drift.until)
    return (
        f"Another client set {drift.path} to {theirs} {drift.times} times from {since} to"
        f" {until}, and Reconciler set it back to {format_value(drift.ours)}."
    )
