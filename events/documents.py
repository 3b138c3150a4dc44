"""Manifests in files: YAML with several documents, lists, and JSON.

An invalid document does not affect the others. Each document becomes a manifest or a problem, with
its file, number and line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Any, Final, cast

import msgspec
import yaml

from events.check_manifest import check_manifest
from events.excerpt import shorten
from events.field_hints import field_error
from events.manifest import InvalidManifestError, Manifest
from events.names import InvalidNameError, ResourceKey, namespace_of_kind
from events.yaml_bounds import find_yaml_problem

SUFFIXES: Final = (".yaml", ".yml", ".json")

DOCUMENT: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LIST_KIND: Final = "List"
_TOO_DEEP: Final = "the document is nested too deeply"
_BLANK: Final = re.compile(r"(?:\s*(?:#.*|---.*)?\n)*")


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of a document. ``line`` is the line on which its content starts."""

    file: str
    number: int
    line: int = 1

    def __str__(self) -> str:
        return f"{self.file}, document {self.number}"

    @property
    def location(self) -> str:
        """The file and the line, in the form that compilers use."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class ParsedManifest:
    """A manifest and its origin."""

    source: Source
    manifest: Manifest
    key: ResourceKey


@dataclass(frozen=True, slots=True)
class Problem:
    """An invalid document, with the reason."""

    source: Source
    message: str

    def __str__(self) -> str:
        return f"{self.source}: {shorten(self.message)}"


def read_documents(file: str, text: str, namespace: str) -> Iterator[ParsedManifest | Problem]:
    """Read the documents in a file, skipping empty ones.

    ``namespace`` applies to documents without a namespace.
    """
    for source, document in _documents(file, text):
        yield document if isinstance(document, Problem) else _read(source, document, namespace)


def _documents(file: str, text: str) -> Iterator[tuple[Source, Any]]:
    """Yield each document in a file, or the problem with it, skipping empty ones."""
    number = 0
    for line, document in _parse(file, text):
        for item in [document] if isinstance(document, str) else _items(document):
            if item is None:
                continue
            number += 1
            source = Source(file, number, line)
            yield source, Problem(source, item) if isinstance(item, str) else item


def _parse(file: str, text: str) -> Iterator[tuple[int, Any]]:
    """Return each parsed document with its line. A string describes a problem."""
    if file.lower().endswith(".json"):
        try:
            yield 1, msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            yield 1, f"invalid JSON: {error}"
        except RecursionError:
            yield 1, _TOO_DEEP
        return
    starts = [0, *(match.start() for match in DOCUMENT.finditer(text)), len(text)]
    line = 1
    for start, end in pairwise(starts):
        document = text[start:end]
        if document.strip():
            blank = _BLANK.match(document)
            first = line + (0 if blank is None else blank.group().count("\n"))
            yield first, _parse_yaml(document, line)
        line += document.count("\n")


def _parse_yaml(text: str, first_line: int) -> Any:
    try:
        problem = find_yaml_problem(text, YAML_LOADER)
        if problem is not None:
            return f"line {first_line + problem[0]}: {problem[1]}"
        parsed: Any = yaml.load(text, Loader=YAML_LOADER)  # noqa: S506 - the safe loader, in C
    except yaml.YAMLError as error:
        return f"invalid YAML: {_describe_yaml_error(error, first_line)}"
    except RecursionError:
        return _TOO_DEEP
    except Exception as error:  # noqa: BLE001 - an invalid date, number or tag
        is_too_long = "integer string conversion" in str(error)
        return f"invalid value in YAML: {'a number is too long' if is_too_long else error}"
    return "a manifest must be a mapping, not a string" if isinstance(parsed, str) else parsed


def _describe_yaml_error(error: yaml.YAMLError, first_line: int) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    return f"line {first_line + mark.line}, column {mark.column + 1}: {error.problem}"


def _items(document: Any) -> Sequence[Any]:
    """Return the items of a list or of ``kind: List``, or else the document itself."""
    if isinstance(document, list):
        return cast("list[Any]", document)
    if isinstance(document, dict):
        mapping = cast("dict[str, Any]", document)
        items = mapping.get("items")
        if mapping.get("kind") == _LIST_KIND and isinstance(items, list):
            return cast("list[Any]", items)
    return [document]


def _read(source: Source, document: Any, namespace: str) -> ParsedManifest | Problem:
    if not isinstance(document, dict):
        return Problem(source, f"a manifest must be a mapping, not {type(document).__name__}")
    try:
        plain = _complete_metadata(cast("dict[str, Any]", _plain(document)), namespace)
        manifest = check_manifest(msgspec.convert(plain, Manifest))
    except msgspec.ValidationError as error:
        return Problem(source, field_error(error, Manifest))
    except (InvalidManifestError, InvalidNameError) as error:
        return Problem(source, str(error))
    except RecursionError:
        return Problem(source, _TOO_DEEP)
    return ParsedManifest(source, manifest, manifest.key)


def _complete_metadata(document: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Return a document without the status that `get -o yaml` adds, and with a namespace."""
    document = {name: value for name, value in document.items() if name != "status"}
    metadata: Any = document.get("metadata")
    if not isinstance(metadata, Mapping):
        return document
    default_namespace = namespace_of_kind(str(document.get("kind")), namespace)
    completed = {"namespace": default_namespace, **cast("Mapping[str, Any]", metadata)}
    completed.pop("generation", None)
    return {**document, "metadata": completed}


def _plain(value: Any) -> Any:
    """Convert dates parsed from YAML back to strings, as in JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidManifestError(
            "a manifest must not contain .inf or .nan, which JSON cannot represent"
        )
    return value.isoformat() if isinstance(value, date) else value
