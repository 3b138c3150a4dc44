"""`reconciler completion`: what a shell needs to complete commands, options, kinds and names."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, get_args, get_origin

from reconciler.cli.commands import COMPLETE, names

Shell = Literal["bash", "zsh", "fish"]

_SCRIPTS: Final[dict[Shell, str]] = {
    "bash": f"""\
_reconciler() {{
  local IFS=$'\\n'
  COMPREPLY=($(compgen -W "$(reconciler {COMPLETE} "${{COMP_WORDS[@]:1:COMP_CWORD}}" \\
    2>/dev/null)" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _reconciler reconciler
""",
    "zsh": f"""\
#compdef reconciler
_reconciler() {{
  local -a found
  found=("${{(@f)$(reconciler {COMPLETE} "${{words[@]:1:$((CURRENT-1))}}" 2>/dev/null)}}")
  compadd -a found
}}
compdef _reconciler reconciler
""",
    "fish": f"""\
complete -c reconciler -f -a \\
  '(reconciler {COMPLETE} (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}

_OF_RESOURCES: Final = frozenset(
    {
        "approve",
        "delete",
        "describe",
        "diff",
        "finalizer",
        "get",
        "history",
        "logs",
        "pause",
        "reconcile",
        "reject",
        "release",
        "resume",
        "rollback",
        "wait",
        "watch",
        "why",
    }
)
_OF_KINDS: Final = frozenset({"explain"})


def completion(shell: Shell, /) -> int:
    """Print a completion script for a shell.

    It completes commands, options, kinds and names of resources, which it
    reads from the bus on each TAB. To enable it in every shell, add the
    command below to the startup file of your shell.

    For example:

        eval "$(reconciler completion bash)"
        eval "$(reconciler completion zsh)"
        reconciler completion fish | source

    Parameters
    ----------
    shell
        The shell to print it for.
    """
    sys.stdout.write(_SCRIPTS[shell])
    return 0


def complete(words: Sequence[str]) -> int:
    """Print what may stand in the place of the last word, one a line; never an error."""
    *before, word = words or ("",)
    for each in sorted(set(_candidates(before, word))):
        if each.startswith(word):
            sys.stdout.write(f"{each}\n")
    return 0


def _candidates(before: Sequence[str], word: str) -> Iterable[str]:
    if not before:
        return names()
    command, *rest = before
    previous = rest[-1] if rest else ""
    if word.startswith("-"):
        return _options(command)
    if previous.startswith("-") and (hint := _options(command).get(previous, bool)) is not bool:
        return _values(previous, hint)
    if command in _OF_KINDS:
        return _kinds()
    if command not in _OF_RESOURCES:
        return ()
    return _resources(_positional(command, rest), word)


def _positional(command: str, words: Sequence[str]) -> list[str]:
    """Leave out options, and the values behind them."""
    if not any(each.startswith("-") for each in words):
        return list(words)
    options, found = _options(command), list[str]()
    is_value = False
    for each in words:
        if not is_value and not each.startswith("-"):
            found.append(each)
        is_value = each.startswith("-") and options.get(each, bool) is not bool
    return found


def _options(command: str) -> Mapping[str, Any]:
    """Return a command's options, and the type of each."""
    if command not in names():
        return {}
    from reconciler.cli.app import build_app  # noqa: PLC0415 - the scripts go without

    arguments = build_app(command)[command].assemble_argument_collection()
    return {
        name: argument.hint
        for argument in arguments
        for name in argument.names
        if name.startswith("-") and not name.startswith("--no-")
    }


def _values(option: str, hint: Any) -> Iterable[str]:
    if get_origin(hint) is Literal:
        return map(str, get_args(hint))
    if option in ("-n", "--namespace"):
        return {key[0] for key in _known()}
    if option == "--outcome":
        from events.log import OutcomeName  # noqa: PLC0415

        return get_args(OutcomeName)
    if option == "--event":
        from reconciler.cli.naming import event_names  # noqa: PLC0415

        return event_names()
    return ()


def _kinds() -> Iterable[str]:
    from reconciler.provider.kind import installed_kinds  # noqa: PLC0415

    return [*installed_kinds()]


def _resources(given: Sequence[str], word: str) -> Iterable[str]:
    """Return names, behind a kind those of that kind; and whole keys, once there is a slash."""
    from reconciler.cli.naming import same_kind  # noqa: PLC0415

    known = _known()
    kinds = {kind for _, kind, _ in known}
    if "/" in word:
        return ["/".join(key) for key in known] + [f"{kind}/{name}" for _, kind, name in known]
    if not given:
        return [*kinds, *(name for _, _, name in known)]
    if any(same_kind(given[0], kind) for kind in kinds):
        return [name for _, kind, name in known if same_kind(given[0], kind)]
    return [name for _, _, name in known]


def _known() -> list[tuple[str, str, str]]:
    """Return namespace, kind and name of every resource, or nothing where no bus answers."""
    from reconciler.cli.connection import HERE, bus, run_async  # noqa: PLC0415
    from reconciler.cli.folded_log import current_models  # noqa: PLC0415

    async def read() -> list[tuple[str, str, str]]:
        async with bus(HERE) as nc:
            rows = (await current_models(nc)).status.values()
            return [(row.namespace, row.kind, row.name) for row in rows]

    try:
        return run_async(read())
    except Exception:  # noqa: BLE001 - whoever types must not be disturbed
        return []
