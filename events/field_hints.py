"""Error messages for declared fields: path, problem, and the allowed values or closest names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect

_PATH: Final = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_ENUM: Final = re.compile(r"Invalid enum value (?P<value>.+)", re.DOTALL)
_TYPE: Final = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<found>[^`]*)`")
_BOUND: Final = re.compile(
    r"Expected `[^`]*` (?P<of_length>of length )?(?P<sign><=|>=|<|>) (?P<limit>.+)"
)
_TYPES: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
}
_SIGNS: Final = {"<=": "at most", ">=": "at least", "<": "less than", ">": "greater than"}
_QUOTE: Final = "'"
_WITHOUT_QUOTES: Final = ("int", "float", "bool")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")
_MAX_LISTED: Final = 20


def field_error(error: msgspec.ValidationError, schema: Any, prefix: str = "") -> str:
    """Return the message of a validation error.

    ``prefix`` is the path of the value, such as ``spec``.
    """
    text = str(error)
    at = _PATH.search(text)
    path = at["path"] if at else ""
    text = text[: at.start()] if at else text
    types = [*_types_at(inspect.type_info(schema), path)]
    if found := _UNKNOWN.fullmatch(text):
        names = {name for each in types for name in _field_names(each)}
        return unknown_field(_join(prefix, f"{path}.{found['name']}"), found["name"], names)
    if found := _MISSING.fullmatch(text):
        return f"{_join(prefix, f'{path}.{found[1]}')}: required"
    if found := _ENUM.fullmatch(text):
        values = {str(value) for each in types for value in _values(each)}
        text = f"{found['value']} is not allowed{_hint(found['value'].strip(_QUOTE), values)}"
    elif found := _TYPE.fullmatch(text):
        text = _wrong_type(found["wanted"].split(" | "), found["found"])
    elif found := _BOUND.fullmatch(text):
        subject = "the length must be" if found["of_length"] else "must be"
        text = f"{subject} {_SIGNS[found['sign']]} {found['limit']}"
    else:
        text = text.replace("Expected `str` matching regex", "must match the regular expression")
    location = _join(prefix, path)
    return f"{location}: {text}" if location else text


def unknown_field(location: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown field, with the known fields."""
    return f"{location}: unknown field{_hint(name, set(known))}"


def _join(prefix: str, path: str) -> str:
    return f"{prefix}{path}" if prefix else path.removeprefix(".")


def _wrong_type(wanted: list[str], found: str) -> str:
    allowed = " or ".join(_TYPES.get(each, each) for each in wanted)
    actual = "a decimal number" if found == "float" else _TYPES.get(found, found)
    quotes = "; put it in quotes" if "str" in wanted and found in _WITHOUT_QUOTES else ""
    return f"must be {allowed}, not {actual}{quotes}"


def closest_hint(word: str, known: Iterable[str]) -> str:
    """Return a hint that suggests the closest known name; empty if none is similar."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def _hint(word: str, known: set[str]) -> str:
    if not known:
        return ""
    names = sorted(known)
    first = ", ".join(names[:_MAX_LISTED]) + (", ..." if len(names) > _MAX_LISTED else "")
    return f"; use one of {first}{closest_hint(word, known)}"


def _types_at(type_: inspect.Type, path: str) -> Iterator[inspect.Type]:
    """Return the possible types at a msgspec path, such as ``.ports[...].protocol``."""
    types = [type_]
    for step in _STEP.finditer(path):
        types = [inner for each in types for inner in _inner_types(each, step[1])]
    for each in types:
        yield from _plain_types(each)


def _inner_types(type_: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    for member in _plain_types(type_):
        if isinstance(member, inspect.StructType) and name is not None:
            yield from (field.type for field in member.fields if field.encode_name == name)
        elif isinstance(member, inspect.DictType):
            yield member.value_type
        elif isinstance(member, (inspect.ListType, inspect.VarTupleType, inspect.SetType)):
            yield member.item_type


def _plain_types(type_: inspect.Type) -> Iterator[inspect.Type]:
    """Return the members of a union, without annotations."""
    if isinstance(type_, inspect.UnionType):
        for each in type_.types:
            yield from _plain_types(each)
    elif isinstance(type_, inspect.Metadata):
        yield from _plain_types(type_.type)
    else:
        yield type_


def _field_names(type_: inspect.Type) -> Iterator[str]:
    if isinstance(type_, inspect.StructType):
        yield from (field.encode_name for field in type_.fields)


def _values(type_: inspect.Type) -> Iterator[Any]:
    if isinstance(type_, inspect.LiteralType):
        yield from type_.values
    elif isinstance(type_, inspect.EnumType):
        yield from (each.value for each in type_.cls)
