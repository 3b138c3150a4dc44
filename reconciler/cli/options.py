"""Options that several commands share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, get_origin

from cyclopts import Parameter

from reconciler.cli.completion import complete_namespaces, complete_resources
from reconciler.cli.errors import UsageError
from reconciler.cli.output import Format, WideFormat

# --- resources: names, namespaces and labels

_NAME_FORMS: Final = "NAME, KIND/NAME or NAMESPACE/KIND/NAME"

ResourceWord = Annotated[str, Parameter(completer=complete_resources)]
"""A command-line word that names resources: a kind, a name, or both with slashes."""

Kind = Annotated[
    ResourceWord, Parameter(help=f"Kind of the names that follow; or a resource: {_NAME_FORMS}.")
]
Names = Annotated[ResourceWord, Parameter(help=f"{_NAME_FORMS}.")]
Resource = Annotated[
    ResourceWord, Parameter(help=f"{_NAME_FORMS}; or a kind, followed by the name.")
]
Name = Annotated[ResourceWord | None, Parameter(help="The name, after a kind.")]
Words = Annotated[
    ResourceWord,
    Parameter(name="RESOURCE", help=f"{_NAME_FORMS}; or a kind, followed by names."),
]
WordsOrKind = Annotated[
    Words, Parameter(help="NAME, KIND [NAME ...], KIND/NAME or NAMESPACE/KIND/NAME.")
]
Namespace = Annotated[
    str | None,
    Parameter(
        name=("--namespace", "-n"),
        help="Namespace of the resources.",
        completer=complete_namespaces,
    ),
]
AllNamespaces = Annotated[
    bool, Parameter(name=("--all-namespaces", "-A"), help="Select resources in all namespaces.")
]
Labels = Annotated[
    str,
    Parameter(
        name=("--selector", "-l"),
        metavar="LABELS",
        allow_leading_hyphen=True,
        help="Only resources with these labels: team=payments,tier!=web,env in (a,b),!old.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Filter:
    """The namespace and labels of the selected resources."""

    namespace: Namespace = None
    all_namespaces: AllNamespaces = False
    labels: Labels = ""


UNFILTERED: Final = Filter()

# --- input and output

Output = Annotated[Format, Parameter(name=("--output", "-o"), help="Output format.")]
WideOutput = Annotated[
    WideFormat,
    Parameter(name=("--output", "-o"), help="Output format. `wide` is a table with more columns."),
]
Files = Annotated[
    tuple[str, ...],
    Parameter(
        name=("--file", "-f"),
        metavar="FILE...",
        allow_leading_hyphen=True,
        help="A file, a directory with its subdirectories, or - for standard input. May be "
        "repeated.",
    ),
]

MAX_REASON_CHARACTERS: Final = 1_000


def _check_reason(_type: Any, reason: str) -> None:
    """Raise ``UsageError`` for a long reason, because the log keeps it permanently."""
    if len(reason) > MAX_REASON_CHARACTERS:
        raise UsageError(
            f"--reason: has {len(reason)} characters, but must have at most {MAX_REASON_CHARACTERS}"
        )


Reason = Annotated[
    str,
    Parameter(
        help="Your reason. The log keeps it, and `history` and `why` show it.",
        validator=_check_reason,
    ),
]


def _convert_path(_type: Any, tokens: Any) -> Path:
    """Convert the name of a file or directory; raises ``UsageError`` if it is empty.

    An empty name, for example from an empty shell variable, would mean the current directory.
    """
    if not tokens[0].value:
        raise UsageError(f"{tokens[0].keyword or 'FILE'} '': name a file or a directory")
    return Path(tokens[0].value)


NamedPath = Annotated[Path, Parameter(converter=_convert_path)]

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_MAX_SHOWN_CHARACTERS = 80


def _convert_integers(hint: Any, tokens: Any) -> int | tuple[int, ...]:
    """Convert integers. 1.5 is an error, but cyclopts would round it to 2."""
    for token in tokens:
        if _INTEGER.fullmatch(token.value) is None:
            option = token.keyword or "NUMBER"
            value = token.value[:_MAX_SHOWN_CHARACTERS]
            raise UsageError(f"{option} {value!r}: must be an integer with at most 18 digits")
    integers = tuple(int(each.value) for each in tokens)
    return integers if get_origin(hint) is tuple else integers[0]


Integer = Annotated[int, Parameter(converter=_convert_integers)]

MAX_LIMIT = 1_000_000_000
"""More than the number of events in any log."""


def check_limit(limit: int, *, at_least: int = 1) -> None:
    """Raise ``UsageError`` for an invalid --limit."""
    if limit < at_least:
        raise UsageError(f"--limit {limit}: must be at least 1")
    if limit > MAX_LIMIT:
        raise UsageError(f"--limit: must be at most {MAX_LIMIT}")


# --- durations: 30s, 2m, 1h, or seconds without a unit

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MAX_DURATION_HOURS = 87_600
"""Ten years. Adding a longer duration to a date may overflow."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")


def parse_duration(text: str) -> float:
    """Parse a duration, in seconds; raises ``UsageError``."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a duration; use a value such as 500ms, 30s, 2m or 1h")
    seconds = float(match[1]) * _UNITS[match[2] or "s"]
    if seconds > MAX_DURATION_HOURS * 3_600:
        raise UsageError(f"{text[:_MAX_SHOWN_CHARACTERS]!r}: must be at most {MAX_DURATION_HOURS}h")
    return seconds


def _convert_duration(_type: Any, tokens: Any) -> float:
    return parse_duration(tokens[0].value)


def _format_seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:g}s"


Duration = Annotated[
    float, Parameter(converter=_convert_duration, metavar="DURATION", show_default=_format_seconds)
]
ReplyTimeout = Annotated[
    Duration,
    Parameter(help="Maximum time to wait for the decider's replies: 500ms, 30s, 2m, 1h."),
]
WaitTimeout = Annotated[
    Duration,
    Parameter(
        help="Maximum time to wait: 500ms, 30s, 2m, 1h. Reconciler continues after a timeout."
    ),
]


_MAX_REPLICAS: Final = 5


def check_replicas(replicas: int | None) -> None:
    """Raise ``UsageError`` for an invalid number of replicas."""
    if replicas is not None and not 1 <= replicas <= _MAX_REPLICAS:
        raise UsageError(f"--replicas {replicas}: must be 1 to {_MAX_REPLICAS}")
