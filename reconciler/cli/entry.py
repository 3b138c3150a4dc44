"""The entry point of the process: Ctrl-C ends it with a one-line error, even during imports."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportAttributeAccessIssue=false
import _signal  # built in, because importing `signal` takes milliseconds
import os
import sys

INTERRUPTED = 130  # the same as in `Exit`, which is not imported yet


def main() -> int:
    """Run the command line, and return the exit status."""
    _signal.signal(_signal.SIGINT, exit_immediately)
    from reconciler.cli.main import main as run  # noqa: PLC0415 - Ctrl-C may arrive during the import
    from reconciler.cli.standard_streams import tolerate_stderr_failures  # noqa: PLC0415

    tolerate_stderr_failures()
    status = run()
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # the command has finished
    return status


def exit_immediately(_number: int, _frame: object) -> None:
    """End the process. This is the signal handler until a command starts its work.

    An exception would show a traceback from within an import.
    """
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
