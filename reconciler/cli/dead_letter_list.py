"""Select dead letters on the command line, and print them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from events.dead_letter import OTHERS, Discarded, Stage
from events.excerpt import list_first
from events.names import ResourceKey
from events.subjects import NO_NAMESPACE
from events.wording import plural
from reconciler.cli.console import colored, console, print_table
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.output import (
    Format,
    escape_json,
    escape_text,
    print_structured,
    single_line,
    time_text,
)
from reconciler.sdk.client import Client
from reconciler.sdk.dead_letters import DeadLetter, RetryResult, filter_letters

ShownStage = Literal[Stage, "unreadable"]

_MAX_SHOWN_REASONS = 10
_MAX_REASON_CHARACTERS = 120
_VARYING = re.compile(r"'[^']*'|`[^`]*`|\"[^\"]*\"|(?<![\w/-])[\w/-]*\d[\w.:/@-]*")
_LABELS = {NO_NAMESPACE: "without a namespace", OTHERS: "other namespaces"}
_INTAKE_STAGES = frozenset({"intake", "declaration", "request", "decision"})


class LetterSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A dead letter in a list."""

    number: int
    at: datetime
    stage: str
    resource: str
    subject: str
    sender: str
    position: int
    size: int
    state: str
    reason: str


class HandlingResult(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The result of handling a dead letter."""

    number: int
    done: bool
    what: str
    position: int = 0
    message: str = ""


class LetterSelection(msgspec.Struct, frozen=True):
    """The selected letters: by number, or by filters with the expected count."""

    numbers: Sequence[int]
    stage: ShownStage | None
    resource: str | None
    all_letters: bool
    count: int | None

    def check(self) -> None:
        """Raise ``UsageError`` for an ambiguous selection.

        Raises ``InvalidNameError`` for an invalid resource.
        """
        by_filter = self.all_letters or self.stage is not None or self.resource is not None
        if not self.numbers and not by_filter:
            raise UsageError("no dead letter selected; use numbers, --stage, --resource or --all")
        if self.numbers and by_filter:
            raise UsageError("use either numbers, or --stage, --resource and --all")
        if self.resource is not None:
            ResourceKey.parse(self.resource)  # rejecting an invalid key does not need a server

    def select(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Return the selected letters; raises ``CommandError`` for an unexpected count."""
        if self.numbers:
            return [_find_letter(letters, number) for number in dict.fromkeys(self.numbers)]
        key = None if self.resource is None else ResourceKey.parse(self.resource)
        matches = filter_letters(letters, stage=self.stage, resource=key)
        if self.count != len(matches):
            hint = "use" if self.count is None else f"--count is {self.count}; use"
            matched = plural(len(matches), "open dead letter matches", "open dead letters match")
            raise CommandError(
                f"{matched}, and nothing was changed; {hint} "
                f"--count {len(matches)} to select all of them"
            )
        return matches


async def read_letter(client: Client, number: int) -> tuple[DeadLetter, int]:
    """Return a letter, and the number of the letter that its retry became, or 0."""
    letters = await client.dead_letters(only_open=False)
    letter = _find_letter(letters, number)
    positions = {each.position for each in letter.handled if each.position}
    retries = [
        each.number
        for each in letters
        if each.record.position in positions and each.record.stage in _INTAKE_STAGES
    ]
    return letter, max(retries, default=0)


def _find_letter(letters: Iterable[DeadLetter], number: int) -> DeadLetter:
    for each in letters:
        if each.number == number:
            return each
    raise CommandError(
        f"dead letter {number} does not exist; `reconciler deadletters list --handled` lists all"
    )


def summarize_retry(result: RetryResult) -> HandlingResult:
    """Return the result of a retry, which has failed if the decider rejected the message."""
    reply = result.reply
    if reply is None:
        return HandlingResult(result.number, True, "Stored", result.position)
    if reply.accepted:
        message = f"generation {reply.generation}"
        return HandlingResult(result.number, True, reply.reason, result.position, message)
    return HandlingResult(result.number, False, reply.reason, result.position, reply.message)


# --- output


def summarize_letter(letter: DeadLetter) -> LetterSummary:
    """Return the letter's fields that a list shows."""
    record = letter.record
    return LetterSummary(
        letter.number,
        record.at,
        record.stage,
        str(letter.resource or ""),
        record.subject,
        letter.sender,
        record.position,
        record.size,
        letter.state,
        record.reason,
    )


def print_letters(letters: Sequence[LetterSummary]) -> None:
    """Print a table of letters, and the number of letters by reason."""
    if not letters:
        sys.stdout.write("no dead letters\n")
        return
    print_table(
        ("NUMBER", "TIME", "STAGE", "RESOURCE", "STATE", "REASON"),
        [
            (
                str(each.number),
                time_text(each.at),
                each.stage,
                each.resource or _shorten(each.subject),
                colored(each.state),
                _shorten(each.reason),
            )
            for each in letters
        ],
    )
    sys.stdout.write("\n")
    for (stage, reason), count in count_reasons(letters).most_common(_MAX_SHOWN_REASONS):
        console().print(f"{plural(count, 'dead letter')} at stage {stage}: {reason}")


def discarded_text(counts: Sequence[Discarded]) -> str:
    """Describe discarded messages: their number, latest time, namespaces and stages."""
    last = max(each.last_at for each in counts)
    total = sum(each.count for each in counts)
    ordered = sorted(counts, key=lambda each: each.count, reverse=True)
    parts = [
        f"{_LABELS.get(each.namespace, each.namespace)}: {each.count} at stage {each.stage}"
        for each in ordered
    ]
    messages = plural(total, "message")
    return (
        f"{messages} discarded without a dead letter, the last at {time_text(last)}; "
        f"{list_first(parts)}"
    )


def print_discarded(
    counts: Sequence[Discarded],
    stage: ShownStage | None,
    key: ResourceKey | None,
    since: datetime | None,
) -> None:
    """Print how many messages were discarded without a letter, if any."""
    matches = [
        each
        for each in counts
        if stage in (None, each.stage)
        and (key is None or each.namespace == key.namespace)
        and (since is None or each.last_at >= since)
    ]
    if matches:
        console().print(f"not listed: {discarded_text(matches)}")


def count_reasons(letters: Iterable[LetterSummary]) -> Counter[tuple[str, str]]:
    """Count letters by stage and reason, ignoring names and numbers in the reasons."""
    return Counter((each.stage, _VARYING.sub("…", _shorten(each.reason))) for each in letters)


def print_letter(letter: DeadLetter, retry_number: int) -> None:
    """Print all fields of a letter."""
    record = letter.record
    out = console()
    rows = [
        ("Number", f"{letter.number} ({letter.state})"),
        ("Time", time_text(record.at)),
        ("Stage", record.stage),
        ("Reason", single_line(record.reason)),
        ("Resource", str(letter.resource or "")),
        ("Subject", repr(record.subject).strip("'")),
        ("Position", str(record.position)),
        ("Sender", letter.sender),
        ("Message id", record.message_id),
        ("Size", f"{record.size} bytes{', truncated' if record.payload_truncated else ''}"),
    ]
    for entry in letter.handled:
        where = f" at intake position {entry.position}" if entry.position else ""
        corrected = ", with a corrected payload" if entry.corrected else ""
        note = f": {entry.note}" if entry.note else ""
        rows.append(
            (entry.resolution, f"{time_text(entry.at)} by {entry.by}{where}{corrected}{note}")
        )
    if retry_number:
        rows.append(
            ("Failed", f"the retry failed too, and the message became dead letter {retry_number}")
        )
    for name, value in rows:
        if value:
            out.print(f"{name + ':':<12}{value}")
    out.print("Payload:")
    sys.stdout.write(_format_payload(letter) + "\n")


def print_handling_results(outcomes: Sequence[HandlingResult], output: Format) -> None:
    """Print the results of retrying or dismissing letters."""
    if output != "table":
        print_structured(outcomes, output)
        return
    rows = [
        (
            str(each.number),
            colored(each.what),
            str(each.position or ""),
            single_line(each.message),
        )
        for each in outcomes
    ]
    print_table(("NUMBER", "RESULT", "POSITION", "MESSAGE"), rows)


def _format_payload(letter: DeadLetter) -> str:
    """Return the payload: formatted JSON, other text as a literal, or bytes in Base64."""
    record = letter.record
    if record.payload_encoding == "base64":
        return f"(base64) {record.payload}"
    try:
        return escape_json(msgspec.json.format(record.payload, indent=2))
    except (ValueError, RecursionError):
        return repr(record.payload)


def _shorten(text: str) -> str:
    line = escape_text(single_line(text))
    return line if len(line) <= _MAX_REASON_CHARACTERS else line[: _MAX_REASON_CHARACTERS - 1] + "…"
