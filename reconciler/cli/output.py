"""Output for programs: JSON and YAML; what is for people is in ``console``."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

Format = Literal["table", "json", "yaml"]
WideFormat = Literal["table", "wide", "json", "yaml"]

TABLES: Final = ("table", "wide")
"""Values of ``--output`` that print a table."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """Show control characters as escapes: what others wrote must not steer a terminal."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def single_line(text: str) -> str:
    """Return a text with each line break and run of spaces replaced by one space."""
    return " ".join(text.split())


def time_text(at: datetime | None) -> str:
    """Return a time in ISO 8601, in UTC and whole seconds; nothing for none."""
    if at is None:
        return ""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def print_structured(thing: object, output: WideFormat) -> None:
    """Print structs, dicts and lists as YAML if that is asked for, else as JSON."""
    plain = msgspec.to_builtins(thing, str_keys=True)
    sys.stdout.write(as_yaml(plain) if output == "yaml" else as_json(plain) + "\n")


def print_json_line(thing: object) -> None:
    """Print one thing as one line of JSON, at once."""
    sys.stdout.write(msgspec.json.encode(thing).decode() + "\n")
    sys.stdout.flush()


def as_json(plain: Any) -> str:
    """Give readable JSON."""
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()


def as_yaml(plain: Any) -> str:
    """Give YAML in the order that things have."""
    import yaml  # noqa: PLC0415 - only for YAML

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # in C it takes a tenth of the time
    return yaml.dump(
        plain, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
