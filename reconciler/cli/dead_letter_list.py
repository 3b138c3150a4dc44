"""Dead letters on the command line: their selection and output."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from events.dead_letter import OTHERS, Discarded, Stage
from events.excerpt import some
from events.names import ResourceKey
from events.subjects import NO_NAMESPACE
from events.wording import plural
from reconciler.cli.console import coloured, console, print_table
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.output import (
    Format,
    harmless,
    harmless_json,
    print_structured,
    single_line,
    time_text,
)
from reconciler.sdk.client import Client
from reconciler.sdk.dead_letters import DeadLetter, Retried, filter_letters

ShownStage = Literal[Stage, "unreadable"]

_SHOWN_REASONS = 10
_REASON_WIDTH = 120
_VARYING = re.compile(r"'[^']*'|`[^`]*`|\"[^\"]*\"|(?<![\w/-])[\w/-]*\d[\w.:/@-]*")
_NAMES = {NO_NAMESPACE: "without a namespace", OTHERS: "other namespaces"}
_INTAKE_STAGES = frozenset({"intake", "declaration", "request", "decision"})


class Listed(msgspec.Struct, frozen=True, rename="camel"):
    """One letter in a list."""

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


class Outcome(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The result of handling a letter."""

    number: int
    done: bool
    what: str
    position: int = 0
    message: str = ""


class Chosen(msgspec.Struct, frozen=True):
    """The selected letters: by number, or all that match, with their expected number."""

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
            raise UsageError("no dead letter selected; give numbers, --stage, --resource or --all")
        if self.numbers and by_filter:
            raise UsageError("give either numbers, or --stage, --resource and --all")
        if self.resource is not None:
            ResourceKey.parse(self.resource)  # an invalid key needs no server

    def of(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Return the selected letters; raises ``CommandError`` for an unexpected number."""
        if self.numbers:
            return [_numbered(letters, number) for number in dict.fromkeys(self.numbers)]
        key = None if self.resource is None else ResourceKey.parse(self.resource)
        matches = filter_letters(letters, stage=self.stage, resource=key)
        if self.count != len(matches):
            meant = "use" if self.count is None else f"--count is {self.count}; use"
            select = plural(len(matches), "open dead letter matches", "open dead letters match")
            raise CommandError(
                f"{select}, and nothing was changed; {meant} "
                f"--count {len(matches)} to select all of them"
            )
        return matches


async def read_one(client: Client, number: int) -> tuple[DeadLetter, int]:
    """Return a letter, and the number of the letter that its retry became, 0 for none."""
    letters = await client.dead_letters(only_open=False)
    letter = _numbered(letters, number)
    positions = {each.position for each in letter.handled if each.position}
    later = [
        each.number
        for each in letters
        if each.record.position in positions and each.record.stage in _INTAKE_STAGES
    ]
    return letter, max(later, default=0)


def _numbered(letters: Iterable[DeadLetter], number: int) -> DeadLetter:
    for each in letters:
        if each.number == number:
            return each
    raise CommandError(
        f"dead letter {number} does not exist; `reconciler deadletters list --handled` lists all"
    )


def outcome_of(retried: Retried) -> Outcome:
    """Return the result of a retry. A rejection by the decider counts as not done."""
    reply = retried.reply
    if reply is None:
        return Outcome(retried.number, True, "Stored", retried.position)
    if reply.accepted:
        message = f"generation {reply.generation}"
        return Outcome(retried.number, True, reply.reason, retried.position, message)
    return Outcome(retried.number, False, reply.reason, retried.position, reply.message)


# --- showing


def listed(letter: DeadLetter) -> Listed:
    """Return the fields of a letter in a list."""
    record = letter.record
    return Listed(
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


def print_letters(letters: Sequence[Listed]) -> None:
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
                each.resource or _one_line(each.subject),
                coloured(each.state),
                _one_line(each.reason),
            )
            for each in letters
        ],
    )
    sys.stdout.write("\n")
    for (stage, reason), count in counted(letters).most_common(_SHOWN_REASONS):
        console().print(f"{plural(count, 'dead letter')} at stage {stage}: {reason}")


def discarded_text(counts: Sequence[Discarded]) -> str:
    """Return a text about discarded messages: their number, the last time, and their namespaces."""
    last = max(each.last_at for each in counts)
    total = sum(each.count for each in counts)
    most = sorted(counts, key=lambda each: each.count, reverse=True)
    parts = [
        f"{_NAMES.get(each.namespace, each.namespace)}: {each.count} at stage {each.stage}"
        for each in most
    ]
    messages = "message" if total == 1 else "messages"
    return (
        f"{total} {messages} discarded without a dead letter, the last at {time_text(last)}; "
        f"{some(parts)}"
    )


def print_discarded(
    counts: Sequence[Discarded],
    stage: ShownStage | None,
    key: ResourceKey | None,
    since: datetime | None,
) -> None:
    """Print the number of messages without a letter, if there are any."""
    chosen = [
        each
        for each in counts
        if stage in (None, each.stage)
        and (key is None or each.namespace == key.namespace)
        and (since is None or each.last_at >= since)
    ]
    if chosen:
        console().print(f"not listed: {discarded_text(chosen)}")


def counted(letters: Iterable[Listed]) -> Counter[tuple[str, str]]:
    """Count letters by stage and reason, ignoring names and numbers in the reasons."""
    return Counter((each.stage, _VARYING.sub("…", _one_line(each.reason))) for each in letters)


def print_letter(letter: DeadLetter, later: int) -> None:
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
    for each in letter.handled:
        where = f" at intake position {each.position}" if each.position else ""
        corrected = ", with a corrected payload" if each.corrected else ""
        note = f": {each.note}" if each.note else ""
        rows.append((each.resolution, f"{time_text(each.at)} by {each.by}{where}{corrected}{note}"))
    if later:
        rows.append(("Failed", f"the retry failed too, and the message became dead letter {later}"))
    for name, value in rows:
        if value:
            out.print(f"{name + ':':<12}{value}")
    out.print("Payload:")
    sys.stdout.write(_readable(letter) + "\n")


def print_outcomes(outcomes: Sequence[Outcome], output: Format) -> None:
    """Print the results of retrying or dismissing letters."""
    if output != "table":
        print_structured(outcomes, output)
        return
    rows = [
        (
            str(each.number),
            coloured(each.what),
            str(each.position or ""),
            single_line(each.message),
        )
        for each in outcomes
    ]
    print_table(("NUMBER", "RESULT", "POSITION", "MESSAGE"), rows)


def _readable(letter: DeadLetter) -> str:
    """Return the payload: JSON with its structure, other text as a literal, bytes in base64."""
    record = letter.record
    if record.payload_encoding == "base64":
        return f"(base64) {record.payload}"
    try:
        return harmless_json(msgspec.json.format(record.payload, indent=2))
    except (ValueError, RecursionError):
        return repr(record.payload)


def _one_line(text: str) -> str:
    line = harmless(single_line(text))
    return line if len(line) <= _REASON_WIDTH else line[: _REASON_WIDTH - 1] + "…"
