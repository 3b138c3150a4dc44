"""`reconciler wait`: wait until resources reach a state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from nats.aio.client import Client

from events.names import ResourceKey
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.folded_log import current_models
from reconciler.cli.naming import known_outcome
from reconciler.cli.options import UNFILTERED, Duration, Filter, Output, WordsOrKind
from reconciler.cli.progress import progress_bar
from reconciler.cli.results import Result, exit_status, print_results
from reconciler.cli.row_changes import row_changes
from reconciler.cli.search import has_log_events
from reconciler.cli.selection import chosen_keys
from reconciler.sdk.outcomes import SETTLED

_READY: Final = "Ready"
_GONE: Final = "Deleted"
_GONE_OUTCOMES: Final = ("Deleted", "Released")
_CONDITION: Final = "condition="


class Awaited(msgspec.Struct, frozen=True):
    """The awaited state; with ``ends``, another settled outcome ends the wait as a failure."""

    word: str
    holds: Callable[[StatusRow], bool]
    ends: bool = False


def wait(
    *words: WordsOrKind,
    for_: Annotated[str, Parameter(name="--for")] = _READY,
    where: Filter = UNFILTERED,
    timeout: Duration = 60.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Wait until resources reach a state.

    Exit status: 0 if all reached it, 1 if any settled in another state, such
    as Failed or Held, 3 on timeout.

    For example:

        reconciler wait Shape foo
        reconciler wait -l team=payments --for converged --timeout 5m
        reconciler wait Shape/foo Shape/bar --for deleted
        reconciler wait foo --for condition=Ready=False

    Parameters
    ----------
    for_
        Ready (as declared, and usable), Converged (as declared), Deleted (or released), any other
        outcome, or condition=TYPE[=STATUS].
    timeout
        Maximum time to wait: 500ms, 30s, 2m, 1h.
    """
    awaited = parse_awaited(for_)
    keys = chosen_keys(connection, words, "wait", where, whole_kinds=True)
    results = run_async(_wait(connection, keys, awaited, timeout))
    print_results(results, output, good=(awaited.word,))
    return exit_status(results, (awaited.word,))


def parse_awaited(text: str) -> Awaited:
    """Parse the awaited state; raises ``UsageError``."""
    if text.lower().startswith(_CONDITION):
        kind, _, status = text[len(_CONDITION) :].partition("=")
        return _condition(kind, status or "True")
    word = known_outcome(text, _READY, option="--for")
    if word == _READY:
        return Awaited(word, _is_ready, ends=True)
    if word in _GONE_OUTCOMES:
        return Awaited(word, lambda row: row.is_gone or row.outcome in _GONE_OUTCOMES)
    return Awaited(word, lambda row: row.outcome == word, ends=word == "Converged")


def _is_ready(row: StatusRow) -> bool:
    return row.outcome == "Converged" and row.not_ready is None


def _condition(kind: str, status: str) -> Awaited:
    if not kind:
        raise UsageError("--for condition=: must name a type, such as condition=Ready")

    def holds(row: StatusRow) -> bool:
        return any(
            (each.type.lower(), each.status.lower()) == (kind.lower(), status.lower())
            for each in row.conditions
        )

    return Awaited(f"{kind} is {status}", holds)


async def _wait(
    connection: Connection, keys: Iterable[ResourceKey], awaited: Awaited, timeout_seconds: float
) -> list[Result]:
    results = {str(key): Result(str(key), True, "") for key in keys}
    async with bus(connection) as nc:
        models = await current_models(nc)
        for name in results:
            key = ResourceKey.parse(name)
            if name not in models.status and not await has_log_events(nc, key.tokens):
                raise CommandError(
                    f"{name} was never declared; `reconciler get -A` lists all resources"
                )
        await _until(nc, models, results, awaited, timeout_seconds)
    return list(results.values())


async def wait_until_read(
    connection: Connection, results: Iterable[Result], timeout_seconds: float
) -> None:
    """Wait until the objects of accepted requests are read and settled; update the results."""
    accepted = {each.resource: each for each in results if each.accepted}
    awaited = Awaited(
        "Converged", lambda row: not row.doubted and not row.action_id and _is_ready(row), ends=True
    )
    async with bus(connection) as nc:
        await _until(nc, await current_models(nc), accepted, awaited, timeout_seconds)


async def _until(
    nc: Client,
    models: ReadModels,
    results: dict[str, Result],
    awaited: Awaited,
    timeout_seconds: float,
) -> None:
    for result in results.values():
        result.timed_out = True
    rows = [_row(models.status.get(name), name) for name in results]
    with progress_bar("waiting", len(results)) as show:
        if _judge(rows, results, awaited, show):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                async for changed in row_changes(nc, models):
                    if _judge(changed, results, awaited, show):
                        return


def _row(row: StatusRow | None, name: str) -> StatusRow:
    """Return the row, or a placeholder for a deleted resource."""
    if row is not None:
        return row
    key = ResourceKey.parse(name)
    return StatusRow(key.namespace, key.kind, key.name, outcome=_GONE)


def _judge(
    rows: Iterable[StatusRow],
    results: dict[str, Result],
    awaited: Awaited,
    show: Callable[[int], object],
) -> bool:
    """Update the results from rows; return whether none is still pending."""
    for row in rows:
        result = results.get(str(row.key))
        if result is None:
            continue
        why = row.not_ready
        result.generation, result.outcome, result.ready = row.generation, row.outcome, why is None
        source = row if why is None else why
        result.reason, result.message = source.reason, source.message
        is_current = row.generation == row.observed_generation
        is_bad = row.outcome in SETTLED - {"Converged"}
        has_failed = awaited.ends and is_current and is_bad and not row.doubted
        holds = is_current and awaited.holds(row)
        result.timed_out = not (holds or has_failed)
        if holds:
            result.outcome = awaited.word
    show(sum(not each.timed_out for each in results.values()))
    return not any(each.timed_out for each in results.values())
