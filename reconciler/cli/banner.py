"""The output of `up` when it is ready."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.table import Table

from infra.bus.streams import PARTITIONS
from reconciler.cli.connection import DATA_DIRECTORY
from reconciler.cli.console import console
from reconciler.cli.init_example import (
    COMMAND_VARIABLE,
    EXAMPLE_DIRECTORY,
    FILE_MANIFEST,
    SHAPE_MANIFEST,
)
from reconciler.cli.stack import Stack


def print_banner(stack: Stack, roles: Sequence[str], seconds: float) -> None:
    """Print the address of each server, and the next commands to try."""
    out = console()
    out.print(f"reconciler is ready ({seconds:.1f} s)", style="bold green")
    out.print()
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")  # an endpoint must not be truncated
    kind = "embedded" if stack.server is not None else "external"
    table.add_row("  NATS server", f"{stack.display_url} ({kind}, {PARTITIONS} partitions)")
    if stack.api_url is not None:
        table.add_row("  example API", f"{stack.api_url}/shapes")
    for name, component in stack.components.items():
        table.add_row(f"  {name}", component.endpoint)
    table.add_row("  roles", ", ".join(roles) or "none")
    table.add_row("  data", str(stack.data.resolve()))
    out.print(table)
    for note in stack.notes:
        out.print(f"  note: {note}", style="yellow")
    option = "" if stack.data == DATA_DIRECTORY else f" --nats-url {stack.display_url}"
    out.print()
    out.print("Try, in another terminal in this directory:" if not option else "Try:")
    program = os.environ.get(COMMAND_VARIABLE, "reconciler")
    out.print(f"  {program} init-example")
    manifest = EXAMPLE_DIRECTORY / (FILE_MANIFEST if stack.api_url is None else SHAPE_MANIFEST)
    for command in (f"apply -f {manifest} --wait", "get", "history NAME", "doctor"):
        out.print(f"  {program} {command}{option}")
    out.print()
    out.print("Press Ctrl-C to stop. All data stays in the data directory.")
