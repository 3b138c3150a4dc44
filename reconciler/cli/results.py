"""Print the results of requests, one per line, and compute the exit status."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
from rich.text import Text

from events.hold import Hold
from events.intake import Reply
from events.log import OutcomeName
from events.names import ResourceKey
from events.wording import plural
from reconciler.cli.console import NOT_READY, colored, print_table
from reconciler.cli.exits import Exit
from reconciler.cli.output import Format, escape_lines, print_structured, single_line
from reconciler.cli.progress import MAX_WITHOUT_BAR, progress_bar
from reconciler.cli.standard_streams import tolerating_closed_output
from reconciler.errors import DeclarationRefusedError, WaitTimeoutError
from reconciler.sdk.client import Client
from reconciler.sdk.outcomes import SETTLED, UNCONFIRMED_MESSAGE, Outcome

DELETED_OUTCOMES: Final[tuple[OutcomeName, ...]] = ("Deleted", "Released")
_KEPT: Final = ("Held", Hold.REFERENCED)
_REFERENCE_SECONDS: Final = 15.0
"""Time for the end of a reference to take effect.

It usually takes about a second. A ProviderConfig ends up to 10 s after its last user.
"""


class Result(msgspec.Struct, rename="camel", omit_defaults=True):
    """The result of one request."""

    resource: str
    accepted: bool
    reason: str
    generation: int = 0
    outcome: str = ""
    message: str = ""
    timed_out: bool = False
    ready: bool = True


def build_result(key: ResourceKey, reply: Reply | DeclarationRefusedError) -> Result:
    """Build a result from the decider's reply."""
    if isinstance(reply, DeclarationRefusedError):
        return Result(str(key), False, reply.reason, message=reply.message)
    return Result(str(key), True, reply.reason, reply.generation, message=reply.message)


async def wait_for_deletions(
    client: Client, results: Sequence[Result], timeout_seconds: float
) -> None:
    """Wait as `wait_for_results` does, and then for resources that others of them referenced."""
    deadline = time.monotonic() + timeout_seconds
    await wait_for_results(client, results, timeout_seconds)
    count = len(results)
    while True:
        kept = [each for each in results if (each.outcome, each.reason) == _KEPT]
        remaining = min(deadline - time.monotonic(), _REFERENCE_SECONDS)
        if not kept or len(kept) >= count or remaining <= 0:
            return  # nothing was deleted since, so other resources reference them
        count = len(kept)
        await wait_for_results(client, kept, remaining, outcomes=DELETED_OUTCOMES)


async def wait_for_results(
    client: Client,
    results: Sequence[Result],
    timeout_seconds: float,
    *,
    outcomes: Collection[OutcomeName] = SETTLED,
) -> None:
    """Wait until accepted requests settle, show the progress, and update the results."""
    accepted = {result.resource: result for result in results if result.accepted}
    generations: Mapping[str, int] = {name: result.generation for name, result in accepted.items()}
    settled: dict[str, Outcome] = {}
    with progress_bar("waiting for outcomes", len(generations)) as show:

        def record(outcome: Outcome) -> None:
            settled[str(outcome.key)] = outcome
            show(len(settled))

        try:
            accepted_outcomes = await client.wait_for_many(
                generations,
                outcomes=outcomes,
                timeout_seconds=timeout_seconds,
                on_outcome=record,
            )
        except WaitTimeoutError:
            _record_timeout(accepted, settled)
            return
    for key, outcome in accepted_outcomes.items():
        _update(accepted[str(key)], outcome)


def _update(result: Result, outcome: Outcome) -> None:
    not_ready = outcome.not_ready if outcome.outcome == "Converged" else None
    source = not_ready or outcome
    result.outcome, result.ready = outcome.outcome, not_ready is None
    result.reason, result.message = source.reason, source.message


def _record_timeout(accepted: Mapping[str, Result], outcomes: Mapping[str, Outcome]) -> None:
    for name, result in accepted.items():
        outcome = outcomes.get(name)
        if outcome is not None and outcome.generation >= result.generation:
            _update(result, outcome)
            if outcome.is_unconfirmed:
                result.ready, result.message = False, UNCONFIRMED_MESSAGE
        result.timed_out = result.outcome not in SETTLED or not result.ready


def exit_status(results: Sequence[Result], good: Collection[str] | None) -> Exit:
    """Return 0 if all succeeded, 3 if some did not settle in time, and 1 if some failed.

    ``good``: the outcomes that count as success. If it is None, acceptance is enough.
    """
    if any(not result.accepted for result in results):
        return Exit.FAILED
    if good is None:
        return Exit.OK
    if any(result.outcome not in good and not result.timed_out for result in results):
        return Exit.FAILED
    return Exit.TIMEOUT if any(result.timed_out for result in results) else Exit.OK


def print_results(
    results: Sequence[Result],
    output: Format,
    *,
    good: Collection[str],
    problems: Sequence[str] = (),
    dry_run: bool = False,
) -> None:
    """Print the results. On a terminal, many successes are only counted.

    ``problems``: the problems with invalid documents.
    """
    with tolerating_closed_output():
        _print(results, output, good)
        sys.stdout.flush()
    for problem in problems:
        sys.stderr.write(f"error: {escape_lines(problem)}\n")
    if output == "table" and len(results) + len(problems) > 1:
        sys.stderr.write(f"{_counts(results, problems)}{' (dry run)' if dry_run else ''}\n")


def _counts(results: Sequence[Result], problems: Sequence[str]) -> str:
    counts = Counter(str(_format_status(each)) for each in results)
    counts["invalid"] += len(problems)
    text = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"{plural(counts.total(), 'resource')}: {text}"


def _print(results: Sequence[Result], output: Format, good: Collection[str]) -> None:
    if output != "table":
        print_structured(results, output)
        return
    rows = results
    if len(results) > MAX_WITHOUT_BAR and sys.stdout.isatty():
        rows = [each for each in results if not each.accepted or each.outcome not in (*good, "")]
        sys.stdout.write(f"{plural(len(results) - len(rows), 'resource')} succeeded\n")
    if rows:
        print_table(("RESOURCE", "RESULT", "GENERATION", "REASON", "MESSAGE"), map(_row, rows))


def _format_status(result: Result) -> Text:
    if not result.accepted:
        return colored("Rejected")
    if result.timed_out:
        outcome = result.outcome or "Pending"
        return Text(f"{outcome if result.ready else NOT_READY} (timed out)", "yellow")
    return colored(result.outcome or "Accepted")


def _row(result: Result) -> list[str | Text]:
    word, generation = _format_status(result), str(result.generation) if result.generation else ""
    return [result.resource, word, generation, result.reason, single_line(result.message)]
