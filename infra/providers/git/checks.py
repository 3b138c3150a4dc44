"""Files of a commit, read as manifests: all of them are usable, or none is."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Final

from events.documents import SUFFIXES, Problem, Read, Source, read_documents
from events.manifest import InvalidManifestError, Manifest
from events.names import InvalidNameError, ResourceKey
from events.stored_content import Part, problem_of_part
from infra.providers.git.problems import GitError
from reconciler.errors import UnknownKindError

Check = Callable[[Manifest], None]
"""Raises ``InvalidManifestError`` or ``UnknownKindError`` for what could not be declared."""

_MAX_NAMED: Final = 5


def checked_parts(
    files: Mapping[str, bytes], namespace: str, check: Check, *, is_rendered: bool = False
) -> list[Part]:
    """Read manifests, each with its file and line; raises ``GitError`` with what is wrong.

    They may be in the source's own namespace only, unless that is the system's.
    """
    parts: list[Part] = []
    wrong: list[str] = []
    first: dict[ResourceKey, Source] = {}
    for file, content in sorted(files.items()):
        if PurePosixPath(file).suffix.lower() not in SUFFIXES and not is_rendered:
            continue
        try:
            text = io.StringIO(content.decode(), newline=None).read()
        except UnicodeDecodeError as error:
            wrong.append(f"{file}: not UTF-8 text: {error.reason}")
            continue
        for read in read_documents(file, text, namespace):
            problem = _problem(read, namespace, check, first)
            if problem:
                wrong.append(f"{read.source.place}: {problem}")
            elif isinstance(read, Read):
                first[read.key] = read.source
                parts.append(Part(read.manifest, read.source.place))
    if wrong:
        rest = len(wrong) - _MAX_NAMED
        more = [f"{rest} more"] if rest > 0 else []
        raise GitError("BadCommit", "; ".join([*wrong[:_MAX_NAMED], *more]))
    if not parts:
        raise GitError("BadCommit", f"no manifests: no file that ends with {', '.join(SUFFIXES)}")
    return parts


def _problem(
    read: Read | Problem, namespace: str, check: Check, first: Mapping[ResourceKey, Source]
) -> str:
    if isinstance(read, Problem):
        return read.message
    key = read.key
    if key in first:
        return f"{key} is declared already in {first[key].place}"
    try:
        check(read.manifest)
    except (InvalidManifestError, InvalidNameError, UnknownKindError) as error:
        return f"{key}: {error}"
    return problem_of_part(namespace, key)
