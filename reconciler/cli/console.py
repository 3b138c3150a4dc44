"""Output for users: colors and tables on a terminal, plain text elsewhere.

Importing it takes a tenth of a command's startup time, so commands import it only if needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from reconciler.cli.output import escape_text

_GOOD = {
    "Accepted",
    "Stored",
    "Converged",
    "Deleted",
    "Released",
    "ok",
    "created",
    "Ready",
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


_MIN_HELP_COLUMNS = 20  # with fewer columns, cyclopts wraps endlessly


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise ``BrokenPipeError``, which `main` handles silently; rich would exit with 1."""
        raise BrokenPipeError


class _LineConsole(_Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """Print one line, with control characters of each string and text escaped."""
        cells = [_cell(each) if isinstance(each, (str, Text)) else each for each in objects]
        super().print(*cells, **options)

    def print_title(self, title: str) -> None:
        """Print a title after an empty line."""
        self.print()
        self.print(title, style="bold")


def console(*, error: bool = False) -> _LineConsole:
    """Return a console for standard output or error, with colors only on a terminal."""
    stream = sys.stderr if error else sys.stdout
    interactive = stream.isatty() and "NO_COLOR" not in os.environ
    return _LineConsole(
        file=stream,
        no_color=not interactive,
        force_terminal=None if interactive else False,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not stream.isatty(),
    )


def help_console() -> Console:
    """Return a console that prints help."""
    new_console = _Console()
    new_console.width = max(new_console.width, _MIN_HELP_COLUMNS)
    return new_console


NOT_READY = "Converged, not ready"
"""Label for a resource whose object is as declared but not usable yet."""

READINESS_UNKNOWN = "Converged, readiness unknown"
"""Label for a resource whose object was as declared and ready before its API fell silent."""


_AGES = (("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0))
_MIN_UNITS = 2  # fewer than 2 h are shown in minutes: 90m, not 1h


def format_age(since: datetime, now: datetime) -> str:
    """Return a duration in the style of kubectl: 35s, 90m, 5d."""
    seconds = max(0.0, (now - since).total_seconds())
    for unit, length in _AGES:
        if seconds >= _MIN_UNITS * length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def colored(word: str) -> Text:
    """Return a word in the color for good, bad or pending states."""
    if word in _GOOD:
        return Text(word, "green")
    if word in _BAD:
        return Text(word, "bold red")
    return Text(word, "yellow") if word in _WAITING else Text(word)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print rows under headings: colored on a terminal, and one line per row elsewhere."""
    table = Table(columns)
    table.print(rows, headings=True)


class Table:
    """A table whose rows may be printed in several calls, without narrowing its columns.

    Words are never broken. A narrow terminal wraps text between words, or if words do not fit,
    shows each row as a paragraph.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._widths = [0] * len(columns)

    def print(self, rows: Iterable[Sequence[str | Text]], *, headings: bool = False) -> None:
        """Print rows; columns become wider if a cell does not fit."""
        cells = [[_cell(each) for each in row] for row in rows]
        lines = [[_cell(Text(each, "bold")) for each in self._columns], *cells]
        columns = list(zip(*lines, strict=True))
        self._widths = [
            max(previous, *(each.cell_len for each in column))
            for previous, column in zip(self._widths, columns, strict=True)
        ]
        if not sys.stdout.isatty():
            for row in lines if headings else cells:
                sys.stdout.write(f"{_line(row, self._widths)}\n")
            return
        out = console()
        widths = _fit_widths(columns, self._widths, out.width)
        if widths is None:
            self._print_paragraphs(out, cells)
            return
        table = Grid.grid(padding=(0, _COLUMN_GAP, 0, 0))
        for width in widths:
            table.add_column(width=width, overflow="fold")
        for row in lines if headings else cells:
            table.add_row(*row)
        out.print(table)

    def _print_paragraphs(self, out: Console, rows: Iterable[Sequence[Text]]) -> None:
        width = max(map(len, self._columns))
        for row in rows:
            for heading, cell in zip(self._columns, row, strict=True):
                if cell:
                    label = f"{heading.ljust(width)}  "
                    out.print(Text.assemble((label, "bold"), cell), soft_wrap=True)
            out.print()


_COLUMN_GAP = 2  # spaces between columns


def _cell(value: str | Text) -> Text:
    if isinstance(value, Text) and value.plain.isprintable():
        return value
    return Text(escape_text(str(value)), "" if isinstance(value, str) else value.style)


def _line(row: Sequence[Text], widths: Sequence[int]) -> str:
    cells = (cell.plain.ljust(width) for cell, width in zip(row, widths, strict=True))
    return (" " * _COLUMN_GAP).join(cells).rstrip()


def _fit_widths(
    columns: Sequence[Sequence[Text]], widths: Sequence[int], width: int
) -> list[int] | None:
    """Return widths that fit, narrowing the widest columns first; None if a word does not fit."""
    minimums = [max(_longest_word(cell) for cell in column) for column in columns]
    fitted = list(widths)
    excess = sum(widths) + _COLUMN_GAP * (len(widths) - 1) - width
    for index in sorted(range(len(widths)), key=lambda index: -widths[index]):
        removed = max(0, min(excess, fitted[index] - minimums[index]))
        fitted[index] -= removed
        excess -= removed
    return None if excess > 0 else fitted


def _longest_word(cell: Text) -> int:
    return max((cell_len(word) for word in cell.plain.split()), default=0)
