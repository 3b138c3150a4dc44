"""This machine's clock, which commands use to compute ages and times relative to now."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from infra.bus.bus_clock import BusClock


class _Process:
    """State of the command that this process runs."""

    uses_local_clock = False


def record_local_clock_use() -> None:
    """Record that this command's output depends on this machine's clock."""
    _Process.uses_local_clock = True


def reset_local_clock_use() -> None:
    """Reset the record before a new command."""
    _Process.uses_local_clock = False


async def warn_of_clock_difference(read_clock: Callable[[], Awaitable[BusClock]]) -> None:
    """Warn on standard error if this machine's clock matters and differs from the bus's."""
    if not _Process.uses_local_clock:
        return
    # Imported here, because most commands do not need them.
    from infra.bus.bus_clock import MAX_CLOCK_DIFFERENCE  # noqa: PLC0415
    from infra.jetstream.errors import BusError  # noqa: PLC0415

    try:
        clock = await read_clock()
    except BusError:  # the command itself reports it
        return
    if clock.difference > MAX_CLOCK_DIFFERENCE:
        seconds = clock.offset.total_seconds()
        where = "behind" if seconds > 0 else "ahead of"
        sys.stderr.write(
            f"warning: this machine's clock is {abs(seconds):.0f} s {where} the bus's clock; ages "
            "and durations such as 2h are off by that amount\n"
        )
