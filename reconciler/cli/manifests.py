"""Read manifests from files: YAML with many documents, JSON, folders, standard input.

One bad document does not spoil the others: each becomes a manifest or a problem, with its file and
its number in it.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import yaml

from events.field_hints import with_hint
from events.manifest import InvalidManifestError, Manifest
from events.names import InvalidNameError, ResourceKey, home_of, system_rank
from reconciler.cli.errors import CommandError
from reconciler.sdk.messages import checked_manifest

STANDARD_INPUT: Final = "-"
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_DOCUMENT: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_YAML: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LIST_KIND: Final = "List"
_TOO_DEEP = "it is nested too deep"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a document comes from."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}, document {self.number}"


@dataclass(frozen=True, slots=True)
class Read:
    """A manifest that was read, and where."""

    source: Source
    manifest: Manifest
    key: ResourceKey


@dataclass(frozen=True, slots=True)
class Problem:
    """A document that cannot be used, and why."""

    source: Source
    message: str

    def __str__(self) -> str:
        return f"{self.source}: {self.message}"


@dataclass(slots=True)
class Documents:
    """Everything that some files say: what can be used, what others need first, and what cannot."""

    good: list[Read] = field(default_factory=list[Read])
    bad: list[Problem] = field(default_factory=list[Problem])

    def put_configs_first(self) -> None:
        """Sort so that what others need comes first; the order is otherwise kept."""
        self.good.sort(key=lambda read: system_rank(read.key.kind))

    def problems(self) -> list[str]:
        """Return what cannot be used, in the order of the files."""
        ordered = sorted(self.bad, key=lambda bad: (bad.source.file, bad.source.number))
        return [str(problem) for problem in ordered]


def read_all(paths: Sequence[str], namespace: str) -> Documents:
    """Read every document of files, folders and ``-``; raises ``CommandError``, ``OSError``."""
    documents = Documents()
    first: dict[ResourceKey, Source] = {}
    for file, text in _texts(paths):
        for source, document in _documents(file, text):
            read = document if isinstance(document, Problem) else _read(source, document, namespace)
            if isinstance(read, Read) and read.key in first:
                read = Problem(source, f"{read.key} is declared already in {first[read.key]}")
            if isinstance(read, Problem):
                documents.bad.append(read)
            else:
                first[read.key] = source
                documents.good.append(read)
    documents.put_configs_first()
    return documents


def _texts(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        if path == STANDARD_INPUT:
            yield "standard input", _decoded("standard input", sys.stdin.buffer.read())
            continue
        for file in _files(Path(path)):
            yield str(file), _decoded(str(file), file.read_bytes())


def _decoded(file: str, content: bytes) -> str:
    """Return a file's text: Python's own standard input lets through what is no text."""
    try:
        return io.StringIO(content.decode(), newline=None).read()
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} is not UTF-8 text: {error}") from None


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES)
    if not found:
        raise CommandError(f"{path} has no files that end with {', '.join(_SUFFIXES)}")
    yield from (file for file in found if file.is_file())


def _documents(file: str, text: str) -> Iterator[tuple[Source, Any]]:
    """Return each document of a file, or the problem with it; empty ones are left out."""
    number = 0
    for document in _parsed(file, text):
        for item in [document] if isinstance(document, str) else _items(document):
            if item is None:
                continue
            number += 1
            source = Source(file, number)
            yield source, Problem(source, item) if isinstance(item, str) else item


def _parsed(file: str, text: str) -> Iterator[Any]:
    """Return each document as it was parsed; text stands for what is wrong with one."""
    if file.lower().endswith(".json"):
        try:
            yield msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            yield f"not JSON: {error}"
        except RecursionError:
            yield _TOO_DEEP
        return
    starts = [0, *(match.start() for match in _DOCUMENT.finditer(text)), len(text)]
    line = 1
    for start, end in pairwise(starts):
        document = text[start:end]
        if document.strip():
            yield _parse_yaml(document, line)
        line += document.count("\n")


def _parse_yaml(text: str, first_line: int) -> Any:
    try:
        parsed: Any = yaml.load(text, Loader=_YAML)  # noqa: S506 - the safe loader, in C
    except yaml.YAMLError as error:
        return f"not YAML: {_where(error, first_line)}"
    except RecursionError:
        return _TOO_DEEP
    return "a manifest is a mapping, this is text" if isinstance(parsed, str) else parsed


def _where(error: yaml.YAMLError, first_line: int) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    return f"line {first_line + mark.line}, column {mark.column + 1}: {error.problem}"


def _items(document: Any) -> Sequence[Any]:
    """Take lists apart: a JSON or YAML list, and ``kind: List``."""
    if isinstance(document, list):
        return cast("list[Any]", document)
    if isinstance(document, dict):
        mapping = cast("dict[str, Any]", document)
        items = mapping.get("items")
        if mapping.get("kind") == _LIST_KIND and isinstance(items, list):
            return cast("list[Any]", items)
    return [document]


def _read(source: Source, document: Any, namespace: str) -> Read | Problem:
    if not isinstance(document, dict):
        return Problem(source, f"a manifest is a mapping, this is {type(document).__name__}")
    try:
        plain = _declared(cast("dict[str, Any]", _plain(document)), namespace)
        manifest = checked_manifest(msgspec.convert(plain, Manifest))
    except msgspec.ValidationError as error:
        return Problem(source, _readable(with_hint(error, Manifest)))
    except (InvalidManifestError, InvalidNameError) as error:
        return Problem(source, _readable(str(error)))
    except RecursionError:
        return Problem(source, _TOO_DEEP)
    return Read(source, manifest, manifest.key)


def _readable(message: str) -> str:
    """Say the field first: ``metadata.name: Expected ...``."""
    text, found, rest = message.partition(" - at `$")
    path, _, hint = rest.partition("`")
    return f"{path.strip('.')}: {text}{hint}" if found and path else f"{text}{hint}"


def _declared(document: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Return what a document declares: without what `get -o yaml` tells, in a namespace."""
    document = {name: value for name, value in document.items() if name != "status"}
    metadata: Any = document.get("metadata")
    if not isinstance(metadata, Mapping):
        return document
    place = home_of(str(document.get("kind")), namespace)
    told = {"namespace": place, **cast("Mapping[str, Any]", metadata)}
    told.pop("generation", None)
    return {**document, "metadata": told}


def _plain(value: Any) -> Any:
    """Take back what YAML reads into dates: they are text in JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_plain(one) for one in cast("list[Any]", value)]
    return value.isoformat() if isinstance(value, date) else value
