"""Ctrl-C during a command, and the message about it."""

from __future__ import annotations

import signal

from reconciler.cli.entry import exit_at_once


class _Process:
    """The state of the command of this process."""

    has_sent = False


def raise_from_now_on() -> None:
    """Make Ctrl-C raise ``KeyboardInterrupt``, because work begins that cleans up after itself."""
    if signal.getsignal(signal.SIGINT) is exit_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def note_sending() -> bool:
    """Record that this command sends messages. Return whether it is the first time."""
    is_first, _Process.has_sent = not _Process.has_sent, True
    return is_first


def forget_sending() -> None:
    """Reset the record for a new command."""
    _Process.has_sent = False


def interrupted() -> str:
    """Return the last line of an interrupted command."""
    sent = "; requests that were sent may still take effect" if _Process.has_sent else ""
    return f"error: interrupted{sent}"
