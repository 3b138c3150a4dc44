"""Output for programs: JSON and YAML. Output for users is in ``console``."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

import msgspec

Format = Literal["table", "json", "yaml"]
WideFormat = Literal["table", "wide", "json", "yaml"]

TABLES: Final = ("table", "wide")
"""Values of ``--output`` that print a table."""

_NEEDS_ESCAPE = re.compile(r"[^\t\n -~]")


def escape_text(text: str) -> str:
    """Return text as one line, with non-printable characters escaped.

    Tenants and APIs choose names, reasons and messages. Without escapes, a line break could forge a
    line of output, and other characters could control the terminal or reorder the text.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def escape_lines(text: str) -> str:
    """Return multi-line text with each line escaped, as by ``escape_text``."""
    return _NEEDS_ESCAPE.sub(lambda match: escape_text(match[0]), text)


def single_line(text: str) -> str:
    """Return text with each line break and run of spaces replaced by one space."""
    return " ".join(text.split())


def escape_json(text: str) -> str:
    """Return equivalent JSON with non-printable characters escaped."""
    return _NEEDS_ESCAPE.sub(lambda match: _json_escape(match[0]), text)


def _json_escape(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be").hex()
    return "".join(rf"\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def time_text(at: datetime | None) -> str:
    """Return a time in ISO 8601, in UTC and whole seconds, or "" for None."""
    if at is None:
        return ""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def print_structured(value: object, output: WideFormat) -> None:
    """Print structs, dicts and lists as YAML or JSON."""
    value = msgspec.to_builtins(value, str_keys=True)
    sys.stdout.write(as_yaml(value) if output == "yaml" else as_json(value) + "\n")


def print_json_line(value: object) -> None:
    """Print an object as one line of JSON, and flush standard output."""
    sys.stdout.write(escape_json(msgspec.json.encode(value).decode()) + "\n")
    sys.stdout.flush()


def as_json(value: Any) -> str:
    """Return formatted JSON."""
    return escape_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def as_yaml(value: Any) -> str:
    """Return YAML with the keys in their original order."""
    import yaml  # noqa: PLC0415 - only for YAML

    # The C implementation takes a tenth of the time.
    base = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper_class = cast("type[yaml.SafeDumper]", type("Dumper", (base,), {}))

    def represent(dumper: Any, value: str) -> Any:
        style = None if escape_lines(value) == value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)

    # Quote all strings that require a YAML escape.
    dumper_class.add_representer(str, represent)
    text = yaml.dump(
        value, Dumper=dumper_class, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
    return _NEEDS_ESCAPE.sub(lambda match: _yaml_escape(match[0]), text)


def _yaml_escape(character: str) -> str:
    return character if character.isprintable() else rf"\U{ord(character):08x}"
