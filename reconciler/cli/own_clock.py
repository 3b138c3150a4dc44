"""This machine's clock, which commands use for ages and for time spans before now."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from infra.bus.bus_clock import BusClock


class _Process:
    """The state of the command of this process."""

    reads_own_clock = False


def note_own_clock() -> None:
    """Record that this command's output depends on this machine's clock."""
    _Process.reads_own_clock = True


def forget_own_clock() -> None:
    """Reset the record for a new command."""
    _Process.reads_own_clock = False


async def warn_of_own_clock(read_clock: Callable[[], Awaitable[BusClock]]) -> None:
    """Warn on standard error if this machine's clock matters and differs from the bus's."""
    if not _Process.reads_own_clock:
        return
    # Most commands do not need them.
    from infra.bus.bus_clock import MAX_CLOCK_DIFFERENCE  # noqa: PLC0415
    from infra.jetstream.errors import BusError  # noqa: PLC0415

    try:
        clock = await read_clock()
    except BusError:  # the command itself reports it
        return
    if clock.difference > MAX_CLOCK_DIFFERENCE:
        seconds = clock.ahead.total_seconds()
        where = "behind" if seconds > 0 else "ahead of"
        sys.stderr.write(
            f"warning: the clock of this machine is {abs(seconds):.0f} s {where} the bus's clock; "
            "ages, and time spans such as 2h, are off by this amount\n"
        )
