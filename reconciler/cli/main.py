"""Run one command, and print every error as one line."""

from __future__ import annotations

import difflib
import gc
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from reconciler.cli.commands import COMMAND_GROUPS, COMPLETE_COMMAND, first_page, names
from reconciler.cli.exits import Exit
from reconciler.cli.interrupts import interruption_message, reset_sending
from reconciler.cli.local_clock import reset_local_clock_use
from reconciler.cli.standard_streams import discard_output, open_closed_streams

if TYPE_CHECKING:
    from cyclopts import CycloptsError
    from rich.console import Console

OBJECTS_BETWEEN_COLLECTIONS: Final = 50_000
"""Allocations between two garbage collections.

A collection scans every cached resource, and almost no object is part of a cycle. With the default
of 700, collections took a sixth of a busy process's CPU time, and a fifth of its startup time.
"""

START_TIME = time.monotonic()
"""Approximate start time of this process, before the slow imports."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    status: int = Exit.OK
    reset_sending()
    reset_local_clock_use()
    try:
        open_closed_streams()
        if not tokens or tokens[0] in ("--help", "-h"):
            print(first_page())
        else:
            status = _run(tokens)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()  # The reader, such as `head`, has exited; keep the command's status.
    except OSError as error:  # from standard output, for example on a full disk
        discard_output()
        print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
        return status or Exit.FAILED
    except KeyboardInterrupt:
        print(interruption_message(), file=sys.stderr)
        return Exit.INTERRUPTED
    finally:
        gc.enable()  # for callers that use this function in their own process
    return status


def _run(tokens: Sequence[str]) -> int:
    """Import and run a command."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    gc.disable()  # until a command starts its work: imported objects are never freed
    command = tokens[0]
    if not command.startswith("-") and command not in (*names(), COMPLETE_COMMAND):
        return _report_unknown_command(command)
    from reconciler.shadowing import PackageConflictError, check_packages  # noqa: PLC0415

    try:
        check_packages()  # before importing a package that another one may shadow
    except PackageConflictError as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.FAILED
    from reconciler.cli.skipped_imports import import_with_skips  # noqa: PLC0415

    import_with_skips()  # before a command imports them
    if command == COMPLETE_COMMAND:
        from reconciler.cli.completion import complete  # noqa: PLC0415 - only for shells

        return complete(tokens[1:])
    from cyclopts import CycloptsError  # noqa: PLC0415 - the first page of help does not need it

    from reconciler.cli.app import build_app  # noqa: PLC0415

    try:
        result = build_app(command, console=_console_for_help(tokens))(tokens)
    except CycloptsError as error:
        return _error_status(_report_usage(error, command), tokens)
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 - bugs are also reported in one line
        from reconciler.cli.errors import report  # noqa: PLC0415 - only for errors

        status = report(error, tokens, with_traceback="--debug" in tokens)
        return _error_status(status, tokens)
    return int(result) if isinstance(result, int) else Exit.OK


def _error_status(status: int, tokens: Sequence[str]) -> int:
    """Return the exit status for an error, which must not be the status for differences.

    As in `terraform plan -detailed-exitcode`: 0 no changes, 1 an error, 2 changes.
    """
    is_dry_run = any(token.startswith("--dry-run") for token in tokens)
    reports_differences = tokens[0] in ("plan", "diff") or is_dry_run
    return Exit.FAILED if reports_differences and status == Exit.DIFFERENT else status


def _console_for_help(tokens: Sequence[str]) -> Console | None:
    is_group = len(tokens) == 1 and tokens[0] in COMMAND_GROUPS  # it prints its help
    if not (is_group or {"--help", "-h", "--version"} & set(tokens)):
        return None
    from reconciler.cli.console import help_console  # noqa: PLC0415 - only for help

    return help_console()


def _report_unknown_command(command: str) -> int:
    from events.excerpt import shorten  # noqa: PLC0415 - only for errors

    close = difflib.get_close_matches(command, names(), n=1)
    hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(names())}"
    print(f"error: unknown command {shorten(command)!r}: {hint}", file=sys.stderr)
    return Exit.USAGE


def _report_usage(error: CycloptsError, command: str) -> int:
    from reconciler.cli.usage_errors import describe_usage_error  # noqa: PLC0415 - only for errors

    print(f"error: {describe_usage_error(error, command)}", file=sys.stderr)
    return Exit.USAGE


if __name__ == "__main__":
    sys.exit(main())
