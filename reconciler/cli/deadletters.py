"""`reconciler deadletters`: list and handle messages that could not be processed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from events.dead_letter import Discarded
from events.envelope import MAX_MESSAGE_BYTES
from events.names import ResourceKey
from reconciler.cli.app import command_group
from reconciler.cli.client import connect_client
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, run_async
from reconciler.cli.dead_letter_list import (
    HandlingResult,
    LetterSelection,
    ShownStage,
    print_discarded,
    print_handling_results,
    print_letter,
    print_letters,
    read_letter,
    summarize_letter,
    summarize_retry,
)
from reconciler.cli.errors import UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.local_clock import record_local_clock_use
from reconciler.cli.options import Duration, Integer, NamedPath, Output, check_limit
from reconciler.cli.output import Format, print_structured
from reconciler.cli.standard_streams import tolerating_closed_output
from reconciler.sdk.client import Client
from reconciler.sdk.dead_letters import DeadLetter, LetterRefusedError

StageFilter = Annotated[ShownStage | None, Parameter(help="Only dead letters from this stage.")]
ResourceFilter = Annotated[
    str | None, Parameter(help="Only dead letters for this NAMESPACE/KIND/NAME.")
]

deadletters = command_group(
    "deadletters",
    """List, retry and dismiss messages that Reconciler could not process.

A dead letter is a message that Reconciler could not process, stored for
90 days with the reason. Dead letters never change. `show` lists each retry
and dismissal.

For example:

    reconciler deadletters list
    reconciler deadletters show 12
    reconciler deadletters retry 12
    reconciler deadletters dismiss 12 --note "fixed and resent"
""",
)


@deadletters.command(name="list")
def list_letters(
    *,
    stage: StageFilter = None,
    resource: ResourceFilter = None,
    since: Duration | None = None,
    handled: bool = False,
    limit: Integer | None = None,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List dead letters, newest last, and count their reasons.

    The last line counts the messages that Reconciler discarded because
    their namespace had exceeded its quota of dead letters.

    For example:

        reconciler deadletters list
        reconciler deadletters list --stage decision --since 1h
        reconciler deadletters list --resource default/Shape/foo --handled
        reconciler deadletters list -o json | jq '.[].reason'

    Parameters
    ----------
    since
        Only dead letters that are at most this old: 30s, 2m, 1h.
    handled
        Also list those that were retried or dismissed.
    limit
        Show only the newest dead letters, at most this many.
    """
    if limit is not None:
        check_limit(limit)
    key = None if resource is None else ResourceKey.parse(resource)
    if since is not None:
        record_local_clock_use()
    oldest = None if since is None else datetime.now(UTC) - timedelta(seconds=since)
    letters, discarded = run_async(_find(connection, stage, key, oldest, only_open=not handled))
    newest = letters if limit is None else letters[max(0, len(letters) - limit) :]
    if output == "table":
        print_letters([summarize_letter(each) for each in newest])
        print_discarded(discarded, stage, key, oldest)
    else:
        print_structured([summarize_letter(each) for each in newest], output)
    return Exit.OK


@deadletters.command
def show(
    number: Integer, /, *, output: Output = "table", connection: Connection = DEFAULT_CONNECTION
) -> int:
    """Show one dead letter with its payload.

    For example:

        reconciler deadletters show 12
        reconciler deadletters show 12 -o json | jq -r .record.payload > new.json

    Parameters
    ----------
    number
        Number of the dead letter, as `list` shows it.
    """
    letter, retry_number = run_async(_read_one(connection, number))
    if output == "table":
        print_letter(letter, retry_number)
    else:
        print_structured(letter, output)
    return Exit.OK


@deadletters.command
def retry(
    *numbers: Integer,
    stage: StageFilter = None,
    resource: ResourceFilter = None,
    all_letters: Annotated[bool, Parameter(name="--all")] = False,
    count: Integer | None = None,
    file: NamedPath | None = None,
    force: bool = False,
    timeout: Duration = 5.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Publish the messages of dead letters again. Remove the cause first.

    Each message goes to its original subject with a new message id. The
    command refuses a retry if the message would become a dead letter again,
    or would replace a newer declaration. Retrying a declaration that was
    accepted before has no effect.

    Exit status: 1 if a retry was refused.

    For example:

        reconciler deadletters retry 12 13
        reconciler deadletters retry --stage decision --count 40
        reconciler deadletters show 12 -o json | jq -r .record.payload > new.json
        reconciler deadletters retry 12 --file new.json

    Parameters
    ----------
    numbers
        Numbers of dead letters, as `list` shows them.
    all_letters
        Retry all open dead letters.
    count
        Required with --all, --stage or --resource: the number of dead letters that you expect. With
        any other number, the command changes nothing.
    file
        File with a corrected payload, for one dead letter.
    force
        Also retry dead letters that were retried before, or that would replace a newer declaration.
    timeout
        Maximum time to wait for the decider's response to a declaration.
    """
    if file is not None and len(numbers) != 1:
        raise UsageError(
            "--file: contains the payload of one dead letter; specify exactly one number"
        )
    payload = None if file is None else _payload(file)
    selection = LetterSelection(numbers, stage, resource, all_letters, count)

    async def handle(client: Client, letter: DeadLetter) -> HandlingResult:
        try:
            result = await client.retry_dead_letter(
                letter, payload=payload, force=force, reply_seconds=timeout
            )
        except LetterRefusedError as error:
            return HandlingResult(letter.number, False, "Refused", message=str(error))
        return summarize_retry(result)

    return _handle_selected(connection, selection, handle, output)


@deadletters.command
def dismiss(
    *numbers: Integer,
    stage: StageFilter = None,
    resource: ResourceFilter = None,
    all_letters: Annotated[bool, Parameter(name="--all")] = False,
    count: Integer | None = None,
    note: str = "",
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Mark dead letters as handled, so that `doctor` does not count them.

    For example:

        reconciler deadletters dismiss 12 --note "typo, fixed and resent"
        reconciler deadletters dismiss --stage listing --count 3

    Parameters
    ----------
    numbers
        Numbers of dead letters, as `list` shows them.
    all_letters
        Dismiss all open dead letters.
    count
        Required with --all, --stage or --resource: the number of dead letters that you expect. With
        any other number, the command changes nothing.
    note
        The reason, stored with the dead letter.
    """
    selection = LetterSelection(numbers, stage, resource, all_letters, count)

    async def handle(client: Client, letter: DeadLetter) -> HandlingResult:
        await client.dismiss_dead_letter(letter, note=note)
        return HandlingResult(letter.number, True, "Dismissed")

    return _handle_selected(connection, selection, handle, output)


async def _find(
    connection: Connection,
    stage: ShownStage | None,
    resource: ResourceKey | None,
    since: datetime | None,
    *,
    only_open: bool,
) -> tuple[list[DeadLetter], Sequence[Discarded]]:
    async with connect_client(connection, sends=False) as client:
        letters = await client.dead_letters(
            stage=stage, resource=resource, since=since, only_open=only_open
        )
        return letters, await client.discarded()


async def _read_one(connection: Connection, number: int) -> tuple[DeadLetter, int]:
    async with connect_client(connection, sends=False) as client:
        return await read_letter(client, number)


def _payload(file: Path) -> bytes:
    """Read a corrected payload, at most one byte over the maximum message size."""
    with file.open("rb") as opened:
        return opened.read(MAX_MESSAGE_BYTES + 1)


def _handle_selected(
    connection: Connection,
    selection: LetterSelection,
    handle: Callable[[Client, DeadLetter], Awaitable[HandlingResult]],
    output: Format,
) -> int:
    """Handle each selected letter, oldest first, and print the results."""
    selection.check()

    async def handle_all() -> list[HandlingResult]:
        async with connect_client(connection) as client:
            letters = selection.select(await client.dead_letters(only_open=False))
            return [await handle(client, letter) for letter in letters]

    outcomes = run_async(handle_all())
    with tolerating_closed_output():
        print_handling_results(outcomes, output)
    return Exit.OK if all(each.done for each in outcomes) else Exit.FAILED
