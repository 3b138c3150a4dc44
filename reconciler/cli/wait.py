"""`reconciler wait`: wait until resources reach a state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from nats.aio.client import Client

from events.names import ResourceKey
from projections.read_models import ReadModels
from projections.readiness import show_readiness
from projections.status import StatusRow
from reconciler.cli.client import connect_client
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.folded_log import current_models
from reconciler.cli.naming import parse_outcome
from reconciler.cli.options import UNFILTERED, Duration, Filter, Output, WordsOrKind
from reconciler.cli.progress import progress_bar
from reconciler.cli.results import Result, exit_status, print_results, wait_for_results
from reconciler.cli.row_changes import row_changes
from reconciler.cli.search import has_log_events
from reconciler.cli.selection import select_keys
from reconciler.sdk.outcomes import SETTLED

_READY: Final = "Ready"
_DELETED: Final = "Deleted"
_DELETED_OUTCOMES: Final = ("Deleted", "Released")
_CONDITION: Final = "condition="


class WaitTarget(msgspec.Struct, frozen=True):
    """The state to wait for. With ``fails_early``, any other settled outcome fails the wait."""

    state: str
    is_met: Callable[[StatusRow], bool]
    fails_early: bool = False


def wait(
    *words: WordsOrKind,
    for_: Annotated[str, Parameter(name="--for")] = _READY,
    where: Filter = UNFILTERED,
    timeout: Duration = 60.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Wait until resources reach a state.

    While the API of a resource does not respond, the resource is not Ready.
    A container is Ready once it has stayed ready for some seconds.

    Exit status: 0 if all resources reach it, 1 if any settles in a
    different state, such as Failed or Held, 3 on timeout.

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
    target = parse_target(for_)
    keys = select_keys(connection, words, "wait", where, whole_kinds=True)
    results = run_async(_wait(connection, keys, target, timeout))
    print_results(results, output, good=(target.state,))
    return exit_status(results, (target.state,))


def parse_target(text: str) -> WaitTarget:
    """Parse the value of --for; raises ``UsageError``."""
    if text.lower().startswith(_CONDITION):
        kind, _, status = text[len(_CONDITION) :].partition("=")
        return _condition(kind, status or "True")
    state = parse_outcome(text, _READY, option="--for")
    if state == _READY:
        return WaitTarget(state, _is_ready, fails_early=True)
    if state in _DELETED_OUTCOMES:
        return WaitTarget(state, lambda row: row.is_gone or row.outcome in _DELETED_OUTCOMES)
    return WaitTarget(state, lambda row: row.outcome == state, fails_early=state == "Converged")


def _is_ready(row: StatusRow) -> bool:
    return row.outcome == "Converged" and row.not_ready is None


def _condition(kind: str, status: str) -> WaitTarget:
    if not kind:
        raise UsageError("--for condition=: must name a type, such as condition=Ready")

    def is_met(row: StatusRow) -> bool:
        return any(
            (each.type.lower(), each.status.lower()) == (kind.lower(), status.lower())
            for each in row.conditions
        )

    return WaitTarget(f"{kind} is {status}", is_met)


async def _wait(
    connection: Connection, keys: Iterable[ResourceKey], target: WaitTarget, timeout_seconds: float
) -> list[Result]:
    results = {str(key): Result(str(key), True, "") for key in keys}
    deadline = time.monotonic() + timeout_seconds
    async with bus(connection) as nc:
        models = await current_models(nc)
        for name in results:
            key = ResourceKey.parse(name)
            if name not in models.status and not await has_log_events(nc, key.tokens):
                raise CommandError(
                    f"{name} was never declared; `reconciler get -A` lists all resources"
                )
        await _wait_until(nc, models, results, target, timeout_seconds)
        momentary = [
            result
            for name, result in results.items()
            if result.outcome == _READY and models.status[name].is_momentary
        ]
    if momentary:
        await _wait_until_confirmed(connection, momentary, deadline - time.monotonic())
    return list(results.values())


async def _wait_until_confirmed(
    connection: Connection, results: Sequence[Result], timeout_seconds: float
) -> None:
    """Wait until reads have shown that objects stay ready (ADR 0085)."""
    async with connect_client(connection, sends=False) as client:
        await wait_for_results(client, results, max(timeout_seconds, 0.0))
    for result in results:
        if result.outcome == "Converged" and not result.timed_out:
            result.outcome = _READY


async def wait_until_read(
    connection: Connection, results: Iterable[Result], timeout_seconds: float
) -> None:
    """Wait until accepted requests' objects have been read and settled; update the results."""
    accepted = {each.resource: each for each in results if each.accepted}
    target = WaitTarget(
        "Converged",
        lambda row: not row.doubted and not row.action_id and _is_ready(row),
        fails_early=True,
    )
    async with bus(connection) as nc:
        await _wait_until(nc, await current_models(nc), accepted, target, timeout_seconds)


async def _wait_until(
    nc: Client,
    models: ReadModels,
    results: dict[str, Result],
    target: WaitTarget,
    timeout_seconds: float,
) -> None:
    for result in results.values():
        result.timed_out = True
    rows = [_row_or_placeholder(models.status.get(name), name) for name in results]
    with progress_bar("waiting", len(results)) as show:
        if _update_results(rows, models, results, target, show):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                async for changed in row_changes(nc, models):
                    if _update_results(changed, models, results, target, show):
                        return


def _row_or_placeholder(row: StatusRow | None, name: str) -> StatusRow:
    """Return the row, or a placeholder for a deleted resource."""
    if row is not None:
        return row
    key = ResourceKey.parse(name)
    return StatusRow(key.namespace, key.kind, key.name, outcome=_DELETED)


def _update_results(
    rows: Iterable[StatusRow],
    models: ReadModels,
    results: dict[str, Result],
    target: WaitTarget,
    show: Callable[[int], object],
) -> bool:
    """Update the results from rows; return whether no result is pending."""
    for row in rows:
        result = results.get(str(row.key))
        if result is None:
            continue
        row = show_readiness(row, models.status)  # noqa: PLW2901 - the row as users see it
        source, is_ready = row.not_ready or row, row.not_ready is None
        result.generation, result.outcome, result.ready = row.generation, row.outcome, is_ready
        result.reason, result.message = source.reason, source.message
        is_current = row.generation == row.observed_generation
        is_bad = row.outcome in SETTLED - {"Converged"}
        has_failed = target.fails_early and is_current and is_bad and not row.doubted
        is_met = is_current and target.is_met(row)
        result.timed_out = not (is_met or has_failed)
        if is_met:
            result.outcome = target.state
    show(sum(not each.timed_out for each in results.values()))
    return not any(each.timed_out for each in results.values())
