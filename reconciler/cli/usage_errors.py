"""Describe a usage error in one line, with the command that shows the help."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from cyclopts import CycloptsError, MissingArgumentError, UnusedCliTokensError

from events.excerpt import shorten
from reconciler.cli.commands import names
from reconciler.cli.output import escape_text


def describe_usage_error(error: CycloptsError, command: str) -> str:
    """Return the description of a usage error, with the command that shows the help."""
    text = " ".join(str(error).split()).removesuffix(".")
    if isinstance(error, UnusedCliTokensError):
        unused = " ".join(map(repr, error.unused_tokens or ()))
        text = f"unexpected argument: {unused}"
    elif isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.keyword or error.argument.name
        if error.argument.tokens or error.keyword:
            text = f"{name}: requires a value{_choices(error)}"
        else:
            what = "option" if name.startswith("-") else "argument"
            text = f"missing {what} {name}{_choices(error)}"
    return f"{escape_text(shorten(text))} (see `{_help_command(error, command)}`)"


def _choices(error: MissingArgumentError) -> str:
    """Return the allowed values for a missing argument."""
    hint: Any = None if error.argument is None else error.argument.hint
    if get_origin(hint) is not Literal:
        return ""
    return f"; use one of {', '.join(map(str, get_args(hint)))}"


def _help_command(error: CycloptsError, command: str) -> str:
    if command not in names():
        return "reconciler --help"
    chain = [each for each in error.command_chain or () if each != command]
    return " ".join(["reconciler", command, *chain, "--help"])
