"""Read and check the manifests in a commit's files. One invalid manifest causes all to fail."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

import msgspec

from events.documents import SUFFIXES, ParsedManifest, Problem, Source, read_documents
from events.manifest import InvalidManifestError, Manifest
from events.names import InvalidNameError, ResourceKey, system_rank
from events.stored_content import Part, find_part_problem
from infra.providers.git.problems import GitError
from reconciler.errors import UnknownKindError
from reconciler.secrecy import Secrecy

Check = Callable[[Manifest], None]
"""Raises ``InvalidManifestError`` or ``UnknownKindError`` for a manifest that cannot be declared.
"""

MAX_REPORTED_PROBLEMS: Final = 5

_encoder = msgspec.json.Encoder()


def check_parts(
    reads: Sequence[ParsedManifest | Problem], parent: ResourceKey, check: Check
) -> list[Part]:
    """Return manifests as parts with their locations. Raises ``GitError`` with the problems.

    Manifests must be in the source's namespace, unless that is the system namespace.
    """
    problems: dict[Source, Problem] = {}
    declared: dict[ResourceKey, Source] = {}
    for read in sorted(reads, key=_rank):
        problem = _problem(read, parent, check, declared)
        if problem:
            problems[read.source] = Problem(read.source, problem)
        elif isinstance(read, ParsedManifest):
            declared[read.key] = read.source
    if problems:
        found = [problems[read.source] for read in reads if read.source in problems]
        messages = [f"{each.source.location}: {each.message}" for each in found]
        raise GitError("BadCommit", join_messages(messages), problems=found)
    if not reads:
        raise GitError(
            "BadCommit", f"no manifests: no file has one of the suffixes {', '.join(SUFFIXES)}"
        )
    return [
        Part(read.manifest, read.source.location)
        for read in reads
        if isinstance(read, ParsedManifest)
    ]


def join_messages(messages: Sequence[str]) -> str:
    """Return the messages of the first few problems, and the number of the others."""
    rest = len(messages) - MAX_REPORTED_PROBLEMS
    remainder = [f"{rest} more"] if rest > 0 else []
    return "; ".join([*messages[:MAX_REPORTED_PROBLEMS], *remainder])


def check_credential(read: ParsedManifest | Problem, secrecy: Secrecy) -> None:
    """Raise ``GitError`` if a server put the credential that it received into a manifest.

    The parsed manifest is searched, because YAML joins lines. Its file name is searched too,
    because the log records it as the origin of a part.
    """
    name = read.source.file
    if secrecy.is_in(name):
        raise GitError("BadCommit", "a file name contains this source's credential")
    if isinstance(read, ParsedManifest) and secrecy.is_in_json(_encoder.encode(read.manifest)):
        raise GitError("BadCommit", f"{name} contains this source's credential")


def documents_in(
    files: Mapping[str, bytes], namespace: str, *, is_rendered: bool = False
) -> Iterator[ParsedManifest | Problem]:
    """Read the manifests in a commit's files, each with its file and line."""
    for file, content in sorted(files.items()):
        if PurePosixPath(file).suffix.lower() not in SUFFIXES and not is_rendered:
            continue
        try:
            text = io.StringIO(content.decode(), newline=None).read()
        except UnicodeDecodeError as error:
            yield Problem(Source(file, 1), f"not UTF-8 text: {error.reason}")
            continue
        yield from read_documents(file, text, namespace)


def _rank(read: ParsedManifest | Problem) -> int:
    """Return a document's rank for checking: definitions precede the resources of their kinds."""
    return system_rank(read.key.kind) if isinstance(read, ParsedManifest) else 0


def _problem(
    read: ParsedManifest | Problem,
    parent: ResourceKey,
    check: Check,
    declared: Mapping[ResourceKey, Source],
) -> str:
    if isinstance(read, Problem):
        return read.message
    key = read.key
    if key in declared:
        return f"{key} is already declared in {declared[key].location}; remove one of the two"
    if problem := find_part_problem(parent, key):  # first, because checking a definition is slow
        return problem
    try:
        check(read.manifest)
    except (InvalidManifestError, InvalidNameError, UnknownKindError) as error:
        return f"{key}: {error}"
    return ""
