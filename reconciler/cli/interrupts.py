"""Ctrl-C while a command works, and what the command reports then."""

from __future__ import annotations

import signal

from reconciler.cli.entry import exit_at_once


class _Process:
    """What this process has done so far."""

    has_sent = False


def raise_from_now_on() -> None:
    """Have Ctrl-C raise ``KeyboardInterrupt``: work begins, which cleans up after itself."""
    if signal.getsignal(signal.SIGINT) is exit_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def note_sending() -> bool:
    """Note that this command sends something; return whether it is for the first time."""
    is_first, _Process.has_sent = not _Process.has_sent, True
    return is_first


def forget_sending() -> None:
    """Begin a command, which has sent nothing."""
    _Process.has_sent = False


def interrupted() -> str:
    """Return the line that an interrupted command ends with."""
    sent = "; requests that were sent may still take effect" if _Process.has_sent else ""
    return f"error: interrupted{sent}"
