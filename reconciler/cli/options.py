"""Options that several commands have, each defined once."""

from __future__ import annotations

import re
from typing import Annotated, Any

from cyclopts import Parameter

from reconciler.cli.errors import UsageError
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

Reason = Annotated[str, Parameter(help="Why; it is kept in the log, and shown by history and why.")]

# --- durations as people write them: 30s, 2m, 1h, or bare seconds

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FORM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")


def parse_duration(text: str) -> float:
    """Read a duration into seconds; raises ``UsageError``."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a duration: write 500ms, 30s, 2m or 1h")
    return float(match[1]) * _UNITS[match[2] or "s"]


def _convert(_type: Any, tokens: Any) -> float:
    return parse_duration(tokens[0].value)


Duration = Annotated[float, Parameter(converter=_convert)]
