"""The application with all commands. Each command is imported only when it is used."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from cyclopts import App, Group, Parameter
from cyclopts.help import DefaultFormatter

from reconciler.cli.commands import (
    BACKUP_GROUP,
    COMMAND_GROUPS,
    COMMANDS,
    HELP,
    INSPECT_GROUP,
    MANAGE_GROUP,
    RUN_GROUP,
    import_path,
)
from reconciler.shadowing import DISTRIBUTION

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

_GROUPS = {
    name: Group(name, sort_key=index)
    for index, name in enumerate((RUN_GROUP, MANAGE_GROUP, INSPECT_GROUP, BACKUP_GROUP))
}


class _HelpFormatter(DefaultFormatter):
    """Prints the description of each argument, option and command as one paragraph."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print a panel."""
        from rich.text import Text  # noqa: PLC0415 - only for help

        for entry in panel.entries:
            text = getattr(entry.description, "primary_renderable", None)
            if isinstance(text, Text):
                text.plain = " ".join(text.plain.split())
        super().__call__(console, options, panel)


def build_app(command_name: str = "", *, console: Console | None = None) -> App:
    """Build the application with all commands, without importing them.

    The help for ``command_name`` is its docstring; for other commands, it is their summary. Help
    is printed to ``console``.
    """
    app = App(
        name="reconciler",
        help=HELP,
        help_format="plaintext",
        help_formatter=_HelpFormatter(),
        version=installed_version,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        console=console,
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(negative="", show_default=_shown_default),
    )
    for name, group, summary in COMMANDS:
        if name in COMMAND_GROUPS:
            app.command(import_path(name), name=name)
            continue
        app.command(
            import_path(name),
            name=name,
            group=_GROUPS[group],
            help=None if name == command_name else summary,
            help_format="plaintext",
        )
    return app


def command_group(name: str, text: str) -> App:
    """Build a command whose subcommands inherit its settings."""
    return App(
        name=name,
        help=text,
        help_format="plaintext",
        default_parameter=Parameter(negative="", show_default=_shown_default),
        version_flags=[],
    )


def installed_version() -> str:
    """Return the version of the installed package."""
    return version(DISTRIBUTION)


def _shown_default(value: object) -> str | None:
    return None if value in (False, None, (), "") else str(value)
