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

_UNUSUAL = re.compile(r"[^\t\n -~]")


def harmless(text: str) -> str:
    """Return a text in one line, with non-printable characters escaped.

    Tenants and APIs choose names, reasons and messages. Without the escapes, a line break could
    forge a line of output, and other characters could control the terminal or reorder the text.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def harmless_lines(text: str) -> str:
    """Return a text of several lines, each escaped as by ``harmless``."""
    return _UNUSUAL.sub(lambda found: harmless(found[0]), text)


def single_line(text: str) -> str:
    """Return a text with each line break and run of spaces replaced by one space."""
    return " ".join(text.split())


def harmless_json(text: str) -> str:
    """Return equivalent JSON with non-printable characters escaped."""
    return _UNUSUAL.sub(lambda found: _json_escape(found[0]), text)


def _json_escape(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be").hex()
    return "".join(rf"\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def time_text(at: datetime | None) -> str:
    """Return a time in ISO 8601, in UTC and whole seconds, or ""."""
    if at is None:
        return ""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def print_structured(thing: object, output: WideFormat) -> None:
    """Print structs, dicts and lists as YAML or JSON."""
    plain = msgspec.to_builtins(thing, str_keys=True)
    sys.stdout.write(as_yaml(plain) if output == "yaml" else as_json(plain) + "\n")


def print_json_line(thing: object) -> None:
    """Print an object as one line of JSON, and flush it."""
    sys.stdout.write(harmless_json(msgspec.json.encode(thing).decode()) + "\n")
    sys.stdout.flush()


def as_json(plain: Any) -> str:
    """Return formatted JSON."""
    return harmless_json(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode())


def as_yaml(plain: Any) -> str:
    """Return YAML with the keys in their original order."""
    import yaml  # noqa: PLC0415 - only for YAML

    # The version in C takes a tenth of the time.
    base = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper_class = cast("type[yaml.SafeDumper]", type("Dumper", (base,), {}))

    def represent(dumper: Any, value: str) -> Any:
        style = None if harmless_lines(value) == value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)

    # Quotes all strings that need an escape of YAML.
    dumper_class.add_representer(str, represent)
    text = yaml.dump(
        plain, Dumper=dumper_class, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
    return _UNUSUAL.sub(lambda found: _yaml_escape(found[0]), text)


def _yaml_escape(character: str) -> str:
    return character if character.isprintable() else rf"\U{ord(character):08x}"
