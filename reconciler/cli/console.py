"""Output for people: colour and tables on a terminal, plain text elsewhere.

Importing it takes a tenth of a start, so who prints nothing for people does without.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reconciler.cli.output import harmless

_GOOD = {
    "Accepted",
    "Stored",
    "Converged",
    "Deleted",
    "Released",
    "ok",
    "created",
    "True",
    "Present",
}
_BAD = {"Refused", "Failed", "Conflict", "Rejected", "fail"}
_WAITING = {
    "Degraded",
    "Disputed",
    "Drifted",
    "Held",
    "Paused",
    "Unowned",
    "Pending",
    "Drift",
    "warn",
}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main`, which ends quietly: rich would end with status 1."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """Make text of a string that is printed."""
        return super().render_str(harmless(text), **options)


def console(*, error: bool = False) -> Console:
    """Make a console for standard output or error: no colour where nobody sees it."""
    stream = sys.stderr if error else sys.stdout
    interactive = stream.isatty() and "NO_COLOR" not in os.environ
    return _Console(
        file=stream,
        no_color=not interactive,
        force_terminal=None if interactive else False,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not stream.isatty(),
    )


def help_console() -> Console:
    """Make the console that help is shown on."""
    return _Console()


NOT_READY = "Converged, not ready"
"""How a resource stands whose object is as declared, and cannot be used yet."""


_AGES = (("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0))
_ENOUGH = 2  # of the smaller unit: 90 minutes are more than 1 h


def age(since: datetime, now: datetime) -> str:
    """Say how long ago something was, as kubectl does: 35s, 90m, 5d."""
    seconds = max(0.0, (now - since).total_seconds())
    for unit, length in _AGES:
        if seconds >= _ENOUGH * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def coloured(word: str) -> Text:
    """Give a word the colour of what it means."""
    if word in _GOOD:
        return Text(word, "green")
    if word in _BAD:
        return Text(word, "bold red")
    return Text(word, "yellow") if word in _WAITING else Text(word)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print rows under headings: coloured on a terminal, and elsewhere fit for grep and awk."""
    if not sys.stdout.isatty():
        _print_plain_table([columns, *rows])
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(harmless(one) if isinstance(one, str) else one for one in row))
    console().print(table)


def _print_plain_table(rows: Sequence[Sequence[str | Text]]) -> None:
    cells = [[harmless(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")
