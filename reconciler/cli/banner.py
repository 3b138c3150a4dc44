"""The output of `up` when it is ready."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.table import Table

from infra.bus.streams import PARTITIONS
from reconciler.cli.connection import DATA_FOLDER
from reconciler.cli.console import console
from reconciler.cli.init_example import COMMAND_VARIABLE, EXAMPLE_FOLDER, FILE_FILE, SHAPE_FILE
from reconciler.cli.stack import Stack


def print_banner(stack: Stack, roles: Sequence[str], seconds: float) -> None:
    """Print where each part runs, and the next commands to try."""
    out = console()
    out.print(f"reconciler is ready ({seconds:.1f} s)", style="bold green")
    out.print()
    places = Table.grid(padding=(0, 2))
    places.add_column()
    places.add_column(overflow="fold")  # an endpoint must not be shortened
    kind = "embedded" if stack.server is not None else "external"
    places.add_row("  NATS server", f"{stack.shown_url} ({kind}, {PARTITIONS} partitions)")
    if stack.api_url is not None:
        places.add_row("  example API", f"{stack.api_url}/shapes")
    for name, component in stack.components.items():
        places.add_row(f"  {name}", component.endpoint)
    places.add_row("  roles", ", ".join(roles) or "none")
    places.add_row("  data", str(stack.data.resolve()))
    out.print(places)
    for note in stack.notes:
        out.print(f"  note: {note}", style="yellow")
    option = "" if stack.data == DATA_FOLDER else f" --nats-url {stack.shown_url}"
    out.print()
    out.print("Try, in another terminal in this directory:" if not option else "Try:")
    program = os.environ.get(COMMAND_VARIABLE, "reconciler")
    out.print(f"  {program} init-example")
    manifest = EXAMPLE_FOLDER / (FILE_FILE if stack.api_url is None else SHAPE_FILE)
    for command in (f"apply -f {manifest} --wait", "get", "history NAME", "doctor"):
        out.print(f"  {program} {command}{option}")
    out.print()
    out.print("Press Ctrl-C to stop. The data directory keeps all data.")
