"""The entry point: runs one command, and turns every error into one line."""

from __future__ import annotations

import difflib
import gc
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from reconciler.cli.commands import COMPLETE, WITH_COMMANDS, first_page, names
from reconciler.cli.exits import Exit
from reconciler.cli.interrupts import forget_sending, interrupted
from reconciler.cli.own_clock import forget_own_clock
from reconciler.cli.standard_streams import open_what_is_closed, write_no_more

if TYPE_CHECKING:
    from cyclopts import CycloptsError
    from rich.console import Console

OBJECTS_BETWEEN_COLLECTIONS: Final = 50_000
"""The interpreter looks for reference cycles so rarely: it looks at every resource that is kept,
and hardly anything here is ever in a cycle. With the default of 700 it took a sixth of a busy
reconciler's processor time, and a fifth of a start's."""

STARTED = time.monotonic()
"""When this process began, nearly: before the heavy imports."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    status: int = Exit.OK
    forget_sending()
    forget_own_clock()
    try:
        open_what_is_closed()
        if not tokens or tokens[0] in ("--help", "-h"):
            print(first_page())
        else:
            status = _run(tokens)
        sys.stdout.flush()
    except BrokenPipeError:
        write_no_more()  # the reader is gone, as `head` is: what was done counts
    except OSError as error:  # of standard output: a full disk
        write_no_more()
        print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
        return status or Exit.FAILED
    except KeyboardInterrupt:
        print(interrupted(), file=sys.stderr)
        return Exit.INTERRUPTED
    finally:
        gc.enable()  # for who calls this in a process of his own
    return status


def _run(tokens: Sequence[str]) -> int:
    """Run a command, imported with all that it needs only here."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    gc.disable()  # until a command's work begins: what is imported stays for ever
    command = tokens[0]
    if not command.startswith("-") and command not in (*names(), COMPLETE):
        return _unknown(command)
    from reconciler.shadowing import PackageConflictError, check_packages  # noqa: PLC0415

    try:
        check_packages()  # before the first import of a package that another one may shadow
    except PackageConflictError as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.FAILED
    from reconciler.cli.spared_imports import import_without_spared  # noqa: PLC0415

    import_without_spared()  # before the first command that imports them
    if command == COMPLETE:
        from reconciler.cli.completion import complete  # noqa: PLC0415 - a shell asks for it

        return complete(tokens[1:])
    from cyclopts import CycloptsError  # noqa: PLC0415 - the first page of help needs none of it

    from reconciler.cli.app import build_app  # noqa: PLC0415

    try:
        result = build_app(command, console=_console_for_help(tokens))(tokens)
    except CycloptsError as error:
        return _status_of_error(_report_usage(error, command), tokens)
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 - each is one line, of a defect too
        from reconciler.cli.errors import report  # noqa: PLC0415 - only when something failed

        status = report(error, tokens, with_traceback="--debug" in tokens)
        return _status_of_error(status, tokens)
    return int(result) if isinstance(result, int) else Exit.OK


def _status_of_error(status: int, tokens: Sequence[str]) -> int:
    """Return the exit status of an error: never that of differences, where a command reports any.

    As of `terraform plan -detailed-exitcode`: 0 no changes, 1 an error, 2 changes.
    """
    is_dry_run = any(token.startswith("--dry-run") for token in tokens)
    reports_differences = tokens[0] in ("plan", "diff") or is_dry_run
    return Exit.FAILED if reports_differences and status == Exit.DIFFERENT else status


def _console_for_help(tokens: Sequence[str]) -> Console | None:
    is_group = len(tokens) == 1 and tokens[0] in WITH_COMMANDS  # it shows its help
    if not (is_group or {"--help", "-h", "--version"} & set(tokens)):
        return None
    from reconciler.cli.console import help_console  # noqa: PLC0415 - for people only

    return help_console()


def _unknown(command: str) -> int:
    close = difflib.get_close_matches(command, names(), n=1)
    hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(names())}"
    print(f"error: unknown command {command!r}: {hint}", file=sys.stderr)
    return Exit.USAGE


def _report_usage(error: CycloptsError, command: str) -> int:
    from reconciler.cli.usage_errors import told  # noqa: PLC0415 - only when something failed

    print(f"error: {told(error, command)}", file=sys.stderr)
    return Exit.USAGE


if __name__ == "__main__":
    sys.exit(main())
