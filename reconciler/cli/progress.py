"""A progress bar on a terminal; no output elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

MAX_WITHOUT_BAR = 20
"""Maximum number of items for which no progress bar is shown."""


def _show_nothing(_done: int) -> None:
    """Show nothing."""


@contextmanager
def progress_bar(description: str, total: int) -> Generator[Callable[[int], None]]:
    """Show a bar if standard error is a terminal; yield a callback that takes the number done."""
    if total <= MAX_WITHOUT_BAR or not sys.stderr.isatty():
        yield _show_nothing
        return
    from rich import progress  # noqa: PLC0415 - takes 20 ms, and only a terminal needs it

    from reconciler.cli.console import console  # noqa: PLC0415

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns, console=console(error=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.update(task, completed=done)
