"""The process of a command: Ctrl-C ends it in one line from here on, while the rest is imported."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportAttributeAccessIssue=false
import _signal  # built in: `signal` takes milliseconds to import
import os
import sys

INTERRUPTED = 130  # as `Exit`, which is not imported yet


def main() -> int:
    """Run the command line of this process; return the exit status."""
    _signal.signal(_signal.SIGINT, exit_at_once)
    from reconciler.cli.main import main as run  # noqa: PLC0415 - Ctrl-C may come meanwhile
    from reconciler.cli.standard_streams import never_fail_at_standard_error  # noqa: PLC0415

    never_fail_at_standard_error()
    status = run()
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # nothing is left to do
    return status


def exit_at_once(_number: int, _frame: object) -> None:
    """End the process: the signal handler until a command's work begins.

    An exception could be raised anywhere in an import, and its traceback printed.
    """
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
