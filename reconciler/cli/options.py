"""Options that several commands have, each defined once."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from reconciler.cli.output import Format

Namespace = Annotated[
    str | None, Parameter(name=("--namespace", "-n"), help="Namespace to look in.")
]
AllNamespaces = Annotated[bool, Parameter(name=("--all-namespaces", "-A"), help="All namespaces.")]
Output = Annotated[
    Format, Parameter(name=("--output", "-o"), help="A table for people, or for programs.")
]
Files = Annotated[
    tuple[str, ...],
    Parameter(
        name=("--file", "-f"),
        allow_leading_hyphen=True,
        help="A file, a folder with all below it, or - for standard input; may be repeated.",
    ),
]
