"""Events as tables: the sentences, and on request the names that the log has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.cli.console import print_table
from reconciler.cli.summaries import Line

TABLES: Final = ("table", "wide")
"""Values of ``--output`` that print a table."""

WIDE_COLUMNS: Final = ("VERSION", "EVENT", "CAUSE", "ACTOR")
_MAX_CAUSE_CHARACTERS: Final = 14


def print_lines(lines: Sequence[Line], *, wide: bool = False) -> None:
    """Print events of one resource as a table; ``wide`` adds the columns of ``WIDE_COLUMNS``."""
    columns = ("TIME", "POSITION", *(WIDE_COLUMNS if wide else ()), "WHAT")
    print_table(columns, [cells(line, wide=wide) for line in lines])


def cells(line: Line, *resource: str, wide: bool) -> tuple[str, ...]:
    """Return the cells of an event; ``resource`` stands behind the position, if it is given."""
    if not wide:
        return (f"{line.time.partition('.')[0]}Z", str(line.position), *resource, line.what)
    cause = line.cause.rpartition("/")[2]  # of an action's id what is behind the resource's name
    if len(cause) > _MAX_CAUSE_CHARACTERS:
        cause = f"{cause[: _MAX_CAUSE_CHARACTERS - 3]}..."
    names = (str(line.version), line.event, cause, line.actor)
    return (line.time, str(line.position), *resource, *names, line.what)
