"""`reconciler deadletters`: look at what could not be used, and do something about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from events.dead_letter import Discarded
from events.envelope import MAX_MESSAGE_BYTES
from events.names import ResourceKey
from reconciler.cli.app import group_of_commands
from reconciler.cli.client import client_of
from reconciler.cli.connection import HERE, Connection, run_async
from reconciler.cli.dead_letter_list import (
    Chosen,
    Outcome,
    Stage,
    listed,
    outcome_of,
    print_discarded,
    print_letter,
    print_letters,
    print_outcomes,
    read_one,
)
from reconciler.cli.errors import UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.options import Duration, Output
from reconciler.cli.output import Format, print_structured
from reconciler.cli.standard_streams import even_if_nobody_reads
from reconciler.sdk.client import Client
from reconciler.sdk.dead_letters import DeadLetter, LetterRefusedError

ByStage = Annotated[Stage | None, Parameter(help="Only letters of this stage.")]
ByResource = Annotated[str | None, Parameter(help="Only letters about this namespace/kind/name.")]

deadletters = group_of_commands(
    "deadletters",
    """Look at what could not be used, and try it again.

A message that cannot be used is never dropped: it is kept for 90 days with
the reason, and everyone else goes on. A letter stays as it is; what is done
about it is written down beside it.

For example:

    reconciler deadletters list
    reconciler deadletters show 12
    reconciler deadletters retry 12
    reconciler deadletters dismiss 12 --note "sent by hand, by mistake"
""",
)


@deadletters.command(name="list")
def list_letters(
    *,
    stage: ByStage = None,
    resource: ByResource = None,
    since: Duration | None = None,
    handled: bool = False,
    limit: int | None = None,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """List dead letters, newest last, and count their reasons.

    What a namespace sent beyond its share got no letter: the last line counts it.

    For example:

        reconciler deadletters list
        reconciler deadletters list --stage decision --since 1h
        reconciler deadletters list --resource default/Shape/foo --handled
        reconciler deadletters list -o json | jq '.[].reason'

    Parameters
    ----------
    since
        Only those of the last 30s, 2m, 1h.
    handled
        Those that were retried or dismissed, too.
    limit
        Only so many of the newest.
    output
        How to print them.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: at least one letter")
    key = None if resource is None else ResourceKey.parse(resource)
    begin = None if since is None else datetime.now(UTC) - timedelta(seconds=since)
    letters, discarded = run_async(_find(connection, stage, key, begin, only_open=not handled))
    shown = letters if limit is None else letters[max(0, len(letters) - limit) :]
    if output == "table":
        print_letters([listed(each) for each in shown])
        print_discarded(discarded, stage, key, begin)
    else:
        print_structured([listed(each) for each in shown], output)
    return Exit.OK


@deadletters.command
def show(number: int, /, *, output: Output = "table", connection: Connection = HERE) -> int:
    """Show everything about one dead letter, its payload included.

    For example:

        reconciler deadletters show 12
        reconciler deadletters show 12 -o json | jq -r .record.payload > new.json

    Parameters
    ----------
    number
        As `list` shows it.
    output
        For people, or for programs.
    """
    letter, later = run_async(_one(connection, number))
    if output == "table":
        print_letter(letter, later)
    else:
        print_structured(letter, output)
    return Exit.OK


@deadletters.command
def retry(
    *numbers: int,
    stage: ByStage = None,
    resource: ByResource = None,
    all_letters: Annotated[bool, Parameter(name="--all")] = False,
    count: int | None = None,
    file: Path | None = None,
    force: bool = False,
    timeout: Duration = 5.0,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Publish the messages of dead letters again, once the cause is gone.

    Each goes to its own subject under a new message id. What could only become
    the next dead letter is refused with the reason, and so is a declaration
    that would take a newer one back. A declaration that was accepted before is
    recognised and changes nothing. Exit status 1 if some were refused.

    For example:

        reconciler deadletters retry 12 13
        reconciler deadletters retry --stage decision --count 40
        reconciler deadletters show 12 -o json | jq -r .record.payload > new.json
        reconciler deadletters retry 12 --file new.json

    Parameters
    ----------
    numbers
        As `list` shows them.
    all_letters
        All open letters.
    count
        With --all, --stage or --resource: how many letters you mean. Nothing is done if it is not
        so.
    file
        A corrected payload, for one letter.
    force
        Also what was retried before, or would take a newer declaration back.
    timeout
        How long to wait for the decider's answer to a declaration.
    output
        How to print what came of it.
    """
    if file is not None and len(numbers) != 1:
        raise UsageError("--file holds the payload of one letter: give exactly one number")
    payload = None if file is None else _payload(file)
    chosen = Chosen(numbers, stage, resource, all_letters, count)

    async def one(client: Client, letter: DeadLetter) -> Outcome:
        try:
            retried = await client.retry_dead_letter(
                letter, payload=payload, force=force, answer_seconds=timeout
            )
        except LetterRefusedError as error:
            return Outcome(letter.number, False, "Refused", message=str(error))
        return outcome_of(retried)

    return _do(connection, chosen, one, output)


@deadletters.command
def dismiss(
    *numbers: int,
    stage: ByStage = None,
    resource: ByResource = None,
    all_letters: Annotated[bool, Parameter(name="--all")] = False,
    count: int | None = None,
    note: str = "",
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Mark dead letters as dealt with: they stay, and `doctor` no longer counts them.

    For example:

        reconciler deadletters dismiss 12 --note "a typing error, sent right since"
        reconciler deadletters dismiss --stage listing --count 3

    Parameters
    ----------
    numbers
        As `list` shows them.
    all_letters
        All open letters.
    count
        With --all, --stage or --resource: how many letters you mean. Nothing is done if it is not
        so.
    note
        Why, for those who look later.
    output
        How to print what came of it.
    """
    chosen = Chosen(numbers, stage, resource, all_letters, count)

    async def one(client: Client, letter: DeadLetter) -> Outcome:
        await client.dismiss_dead_letter(letter, note=note)
        return Outcome(letter.number, True, "Dismissed")

    return _do(connection, chosen, one, output)


async def _find(
    connection: Connection,
    stage: Stage | None,
    resource: ResourceKey | None,
    since: datetime | None,
    *,
    only_open: bool,
) -> tuple[list[DeadLetter], Sequence[Discarded]]:
    async with client_of(connection) as client:
        letters = await client.dead_letters(
            stage=stage, resource=resource, since=since, only_open=only_open
        )
        return letters, await client.discarded()


async def _one(connection: Connection, number: int) -> tuple[DeadLetter, int]:
    async with client_of(connection) as client:
        return await read_one(client, number)


def _payload(file: Path) -> bytes:
    """Read a corrected payload, no more of it than can be sent."""
    with file.open("rb") as opened:
        return opened.read(MAX_MESSAGE_BYTES + 1)


def _do(
    connection: Connection,
    chosen: Chosen,
    one: Callable[[Client, DeadLetter], Awaitable[Outcome]],
    output: Format,
) -> int:
    """Do something about each chosen letter, oldest first, and tell what came of it."""
    chosen.check()

    async def each_in_turn() -> list[Outcome]:
        async with client_of(connection) as client:
            letters = chosen.of(await client.dead_letters(only_open=False))
            return [await one(client, letter) for letter in letters]

    outcomes = run_async(each_in_turn())
    with even_if_nobody_reads():
        print_outcomes(outcomes, output)
    return Exit.OK if all(each.done for each in outcomes) else Exit.FAILED
