"""What is allowed, where something that is declared is not: its values, or the closest names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect

_PATH: Final = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_UNKNOWN: Final = re.compile(r"unknown field `(?P<name>[^`]*)`")
_ENUM: Final = re.compile(r"Invalid enum value (?P<value>\S+)")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")
_SHOWN: Final = 20


def with_hint(error: msgspec.ValidationError, schema: Any) -> str:
    """Tell an error in the library's words, and what would be right instead."""
    text = str(error)
    at = _PATH.search(text)
    types = [*_at(inspect.type_info(schema), at["path"] if at else "")]
    if found := _UNKNOWN.search(text):
        names = {name for each in types for name in _field_names(each)}
        return text + _hint("the fields are", found["name"], names)
    if found := _ENUM.search(text):
        values = {str(value) for each in types for value in _values(each)}
        return text + _hint("one of", found["value"].strip("'"), values)
    return text


def closest(word: str, known: Iterable[str]) -> str:
    """Ask whether a known name was meant; empty where none is like the word."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def _hint(introduction: str, word: str, known: set[str]) -> str:
    if not known:
        return ""
    names = sorted(known)
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f": {introduction} {shown}{closest(word, known)}"


def _at(kind: inspect.Type, path: str) -> Iterator[inspect.Type]:
    """Return the types that may stand at a path of msgspec's, such as ``.ports[...].protocol``."""
    kinds = [kind]
    for step in _STEP.finditer(path):
        kinds = [inner for each in kinds for inner in _inner(each, step[1])]
    for each in kinds:
        yield from _plain(each)


def _inner(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    for each in _plain(kind):
        if isinstance(each, inspect.StructType) and name is not None:
            yield from (field.type for field in each.fields if field.encode_name == name)
        elif isinstance(each, inspect.DictType):
            yield each.value_type
        elif isinstance(each, (inspect.ListType, inspect.VarTupleType, inspect.SetType)):
            yield each.item_type


def _plain(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Return what a type may be: one of a union, and what is only annotated."""
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _plain(each)
    elif isinstance(kind, inspect.Metadata):
        yield from _plain(kind.type)
    else:
        yield kind


def _field_names(kind: inspect.Type) -> Iterator[str]:
    if isinstance(kind, inspect.StructType):
        yield from (field.encode_name for field in kind.fields)


def _values(kind: inspect.Type) -> Iterator[Any]:
    if isinstance(kind, inspect.LiteralType):
        yield from kind.values
    elif isinstance(kind, inspect.EnumType):
        yield from (each.value for each in kind.cls)
