"""The process of a command. Ctrl-C ends it with one line, even during imports."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportAttributeAccessIssue=false
import _signal  # built in, because importing `signal` takes milliseconds
import os
import sys

INTERRUPTED = 130  # as `Exit`, which is not imported yet


def main() -> int:
    """Run the command line, and return the exit status."""
    _signal.signal(_signal.SIGINT, exit_at_once)
    from reconciler.cli.main import main as run  # noqa: PLC0415 - Ctrl-C may arrive during the import
    from reconciler.cli.standard_streams import tolerate_stderr_failures  # noqa: PLC0415

    tolerate_stderr_failures()
    status = run()
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # nothing remains to be done
    return status


def exit_at_once(_number: int, _frame: object) -> None:
    """End the process: the signal handler until a command starts its work.

    An exception could be raised anywhere in an import, with a traceback.
    """
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
