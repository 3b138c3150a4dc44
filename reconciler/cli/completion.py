"""`reconciler completion`: scripts that complete commands, options, kinds and names."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Final, Literal, get_args

from reconciler.cli.commands import COMPLETE_COMMAND, names

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

Shell = Literal["bash", "zsh", "fish"]

_SCRIPTS: Final[dict[Shell, str]] = {
    "bash": f"""\
_reconciler() {{
  local IFS=$'\\n'
  COMPREPLY=($(compgen -W "$(reconciler {COMPLETE_COMMAND} "${{COMP_WORDS[@]:1:COMP_CWORD}}" \\
    2>/dev/null)" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _reconciler reconciler
""",
    "zsh": f"""\
#compdef reconciler
_reconciler() {{
  local -a found
  found=("${{(@f)$(reconciler {COMPLETE_COMMAND} "${{words[@]:1:$((CURRENT-1))}}" 2>/dev/null)}}")
  compadd -a found
}}
compdef _reconciler reconciler
""",
    "fish": f"""\
complete -c reconciler -f -a \\
  '(reconciler {COMPLETE_COMMAND} (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}

_SEPARATOR: Final = "\x1f"
"""Ends each word passed to cyclopts, and begins its output lines that are not candidates."""


def completion(shell: Shell, /) -> int:
    """Print a completion script for a shell.

    The script completes commands, options, kinds and the names of resources,
    which it reads from the bus on each TAB. To enable it permanently, add the
    command for your shell below to your shell's startup file.

    For example:

        eval "$(reconciler completion bash)"
        eval "$(reconciler completion zsh)"
        reconciler completion fish | source

    Parameters
    ----------
    shell
        The shell that runs the script.
    """
    sys.stdout.write(_SCRIPTS[shell])
    return 0


def complete(words: Sequence[str]) -> int:
    """Print the candidates for the last word, one per line, but no errors.

    cyclopts finds the candidates, and calls the functions below for kinds and names.
    """
    *preceding, word = words or ("",)
    for each in sorted(set(_candidates(words) if preceding else names())):
        if each.startswith(word):
            sys.stdout.write(f"{each}\n")
    return 0


def _candidates(words: Sequence[str]) -> Iterable[str]:
    """Return the candidates that cyclopts prints after its ``begin`` line."""
    from reconciler.cli.app import build_app  # noqa: PLC0415 - not needed for the scripts

    if words[0] not in names():
        return []
    os.environ["CYCLOPTS_COMPLETION_WORDS"] = "".join(f"{word}{_SEPARATOR}" for word in words)
    with redirect_stdout(io.StringIO()) as printed:
        build_app(words[0])([COMPLETE_COMMAND])
    records = printed.getvalue().partition(f"{_SEPARATOR}begin\n")[2].splitlines()
    return (each.partition("\t")[0] for each in records if not each.startswith(_SEPARATOR))


# --- completers


def complete_kinds(_context: CompletionContext) -> Iterable[str]:
    """Return the installed kinds."""
    from reconciler.provider.kind import installed_kinds  # noqa: PLC0415

    return [*installed_kinds()]


def complete_outcomes(_context: CompletionContext) -> Iterable[str]:
    """Return all outcomes."""
    from events.log import OutcomeName  # noqa: PLC0415

    return get_args(OutcomeName)


def complete_events(_context: CompletionContext) -> Iterable[str]:
    """Return the types of the log's events."""
    from reconciler.cli.naming import event_names  # noqa: PLC0415

    return event_names()


def complete_namespaces(_context: CompletionContext) -> Iterable[str]:
    """Return the namespaces of the resources on the bus."""
    return {namespace for namespace, _, _ in _read_names()}


def complete_resources(context: CompletionContext) -> Iterable[str]:
    """Return kinds and names; only the kind's names after a kind, and keys after a slash."""
    from reconciler.cli.naming import is_same_kind  # noqa: PLC0415

    known = _read_names()
    kinds = {kind for _, kind, _ in known}
    if "/" in context.incomplete:
        return ["/".join(key) for key in known] + [f"{kind}/{name}" for _, kind, name in known]
    arguments = [
        each for each in context.arguments if each.parameter.completer is complete_resources
    ]
    value = next((token.value for each in arguments for token in each.tokens), None)
    if value is None:
        return [*kinds, *(name for _, _, name in known)]
    of_kind = [name for _, kind, name in known if is_same_kind(value, kind)]
    return of_kind or [name for _, _, name in known]


def _read_names() -> list[tuple[str, str, str]]:
    """Return each resource's namespace, kind and name, or nothing if the bus is unavailable."""
    from reconciler.cli.connection import DEFAULT_CONNECTION, bus, run_async  # noqa: PLC0415
    from reconciler.cli.folded_log import current_models  # noqa: PLC0415

    async def read() -> list[tuple[str, str, str]]:
        async with bus(DEFAULT_CONNECTION) as nc:
            rows = (await current_models(nc)).status.values()
            return [(row.namespace, row.kind, row.name) for row in rows]

    try:
        return run_async(read())
    except Exception:  # noqa: BLE001 - completion must not print errors
        return []
