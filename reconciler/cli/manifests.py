"""Read manifests from files, directories and standard input."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from events.documents import SUFFIXES, ParsedManifest, Problem, Source, read_documents
from events.names import ResourceKey, system_rank
from infra.named_files import check_size, read_at_most
from reconciler.cli.errors import CommandError

STANDARD_INPUT: Final = "-"

MAX_MANIFEST_BYTES: Final = 64 << 20
"""Limit on the size of a file, enough for 60,000 manifests."""


@dataclass(slots=True)
class Documents:
    """The valid documents in files, and the problems with the others."""

    good: list[ParsedManifest] = field(default_factory=list[ParsedManifest])
    bad: list[Problem] = field(default_factory=list[Problem])

    def sort_by_dependency(self) -> None:
        """Sort the documents by their dependencies, and otherwise keep their order."""
        self.good.sort(key=lambda document: system_rank(document.key.kind))

    def problems(self) -> list[str]:
        """Return the problems in the order of the files."""
        ordered = sorted(self.bad, key=lambda bad: (bad.source.file, bad.source.number))
        return [str(problem) for problem in ordered]


def read_all(paths: Sequence[str], namespace: str) -> Documents:
    """Read every document in files, directories and ``-``; raises ``CommandError``, ``OSError``."""
    documents = Documents()
    first: dict[ResourceKey, Source] = {}
    for file, text in _read_texts(paths):
        for document in read_documents(file, text, namespace):
            if isinstance(document, ParsedManifest) and document.key in first:
                conflict = f"{document.key} is already declared in {first[document.key]}"
                documents.bad.append(Problem(document.source, f"{conflict}; remove one of the two"))
            elif isinstance(document, Problem):
                documents.bad.append(document)
            else:
                first[document.key] = document.source
                documents.good.append(document)
    if not documents.good and not documents.bad:
        names = ", ".join("standard input" if each == STANDARD_INPUT else each for each in paths)
        raise CommandError(f"{names}: no documents found; name files with manifests")
    documents.sort_by_dependency()
    return documents


def _read_texts(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        if path == STANDARD_INPUT:
            content = sys.stdin.buffer.read(MAX_MANIFEST_BYTES + 1)
            yield (
                "standard input",
                _decode(
                    "standard input", check_size(content, MAX_MANIFEST_BYTES, "standard input")
                ),
            )
            continue
        if not path:  # from an empty shell variable; it does not mean the current directory
            raise CommandError("--file '': name a file, a directory, or - for standard input")
        for file in _find_files(Path(path)):
            yield str(file), _decode(str(file), read_at_most(file, MAX_MANIFEST_BYTES))


def _decode(file: str, content: bytes) -> str:
    """Return a file's text; raises ``CommandError`` if it is not UTF-8."""
    try:
        return io.StringIO(content.decode(), newline=None).read()
    except UnicodeDecodeError as error:
        raise CommandError(
            f"{file}: not UTF-8 text (byte {error.start + 1} is {content[error.start]:#04x}); save "
            "it as UTF-8"
        ) from None


def _find_files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        raise CommandError(f"{path} contains no files that end with {', '.join(SUFFIXES)}")
    # Dangling links are read too, so that the error names them.
    yield from (file for file in files if file.is_file() or not file.exists())
