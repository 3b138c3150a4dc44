"""Errors for users: one line with the object, the problem and the remedy."""

from __future__ import annotations

import errno
import re
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from events.envelope import InvalidMessageError
from events.excerpt import shorten
from events.manifest import InvalidManifestError
from events.names import InvalidNameError
from infra.components import ComponentError
from infra.jetstream.connection import redact_url
from infra.jetstream.errors import BusError, NotFoundOnBusError
from reconciler.cli.exits import Exit
from reconciler.cli.output import escape_text
from reconciler.cli.settings import NAMES, flag_name
from reconciler.errors import HostError, ReconcilerError, WaitTimeoutError
from reconciler.process_secrets import PROCESS_SECRETS

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_COMMAND_PATTERN = re.compile(r"(?<=`)reconciler (?![^`]*--help)[^`]+")
_MISSING_PATTERN = re.compile(r"(stream|consumer) not found")


class CommandError(Exception):
    """A command failed; the message is for users."""

    status: Exit = Exit.FAILED


class UsageError(CommandError):
    """The arguments of a command are invalid."""

    status = Exit.USAGE


class StackError(CommandError):
    """A server of `reconciler up` could not start, or has stopped."""


EXPECTED = (
    BusError,
    ReconcilerError,
    CommandError,
    InvalidManifestError,
    InvalidNameError,
    InvalidMessageError,
    ComponentError,
    msgspec.DecodeError,
    OSError,
)


def report(
    error: BaseException, tokens: Sequence[str] = (), *, with_traceback: bool = False
) -> Exit:
    """Write each error as one line to standard error, without secrets. Return the exit status.

    ``tokens``: the command line. Its connection options are added, without secrets, to the commands
    in messages.
    """
    status = Exit.OK
    reported: set[str] = set()
    if with_traceback:
        sys.stderr.write(PROCESS_SECRETS.hide("".join(traceback.format_exception(error))))
    for leaf in _leaves(error):
        line = PROCESS_SECRETS.hide(_with_flags(format_error(leaf), tokens))
        if line not in reported:  # several tasks may report the same error
            sys.stderr.write(f"error: {line}\n")
        reported.add(line)
        status = max(status, _status(leaf))
    return Exit(status)


def _with_flags(line: str, tokens: Sequence[str]) -> str:
    flags = {flag_name(name) for name in NAMES}
    with_values: list[str] = []
    for number, token in enumerate(tokens):
        name, sign, value = token.partition("=")
        if name in flags:
            value = value if sign else "".join(tokens[number + 1 : number + 2])
            with_values.append(shlex.join((name, redact_url(value))))
    return _COMMAND_PATTERN.sub(lambda match: " ".join((match[0], *with_values)), line)


def format_error(error: BaseException) -> str:
    """Return an error as one line, including its class if it is unexpected."""
    text = escape_text(shorten(" ".join(_error_text(error).split()))) or type(error).__name__
    if isinstance(error, EXPECTED):
        return text
    return (
        f"unexpected {type(error).__name__}: {text}; this is a bug. Please report it with the "
        "output of --debug"
    )


def _error_text(error: BaseException) -> str:
    """Return an error's text. For a file error, it contains the path, but not the errno."""
    if isinstance(error, HostError):
        return error.local_text
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
        return f"cannot write: {error.strerror}; free disk space, or write to another disk"
    if isinstance(error, NotFoundOnBusError) and _MISSING_PATTERN.search(str(error)):
        return f"{error}; `reconciler init` creates missing streams and consumers"
    return str(error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _status(error: BaseException) -> Exit:
    if isinstance(error, CommandError):
        return error.status
    # The name is from the command line; an invalid name in a message raises a different exception.
    if isinstance(error, InvalidNameError):
        return Exit.USAGE
    return Exit.TIMEOUT if isinstance(error, WaitTimeoutError) else Exit.FAILED
