"""Handle Ctrl-C during a command, and report the interruption."""

from __future__ import annotations

import signal

from reconciler.cli.entry import exit_immediately


class _Process:
    """State of the command that this process runs."""

    has_sent = False


def enable_keyboard_interrupts() -> None:
    """Make Ctrl-C raise ``KeyboardInterrupt``, so that the work that begins can clean up."""
    if signal.getsignal(signal.SIGINT) is exit_immediately:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def record_sending() -> bool:
    """Record that this command sends messages. Return whether it is the first such call."""
    is_first, _Process.has_sent = not _Process.has_sent, True
    return is_first


def reset_sending() -> None:
    """Reset the record before a new command."""
    _Process.has_sent = False


def interruption_message() -> str:
    """Return the error that an interrupted command prints last."""
    sent = "; requests that were sent may still take effect" if _Process.has_sent else ""
    return f"error: interrupted{sent}"
