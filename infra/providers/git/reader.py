"""The process that reads a repository, so that hostile data cannot exhaust the caller's memory.

It reads a request from standard input and writes a reply to standard output. It exits at its time
limit, and its memory is limited where the system supports that (ADR 0057).
"""

from __future__ import annotations

import errno
import signal
import sys
import tempfile
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import msgspec

from events.documents import ParsedManifest
from infra.providers.git.checks import check_credential, documents_in
from infra.providers.git.commit_tree import IGNORE_FILE, is_manifest
from infra.providers.git.origins import find_origins
from infra.providers.git.problems import GitError
from infra.providers.git.reader_process import Document, Failure, Reply, Request
from infra.providers.git.rendering import read_renderers, run_renderer
from infra.providers.git.repository import Checkout, Remote, fetch, find_commit
from infra.providers.git.signatures import check_signature
from reconciler.composites.git_source import describe_revision
from reconciler.errors import ConfigurationError
from reconciler.response_budget import MAX_RESPONSE_BYTES, decoded_bytes
from reconciler.secrecy import Secrecy

_MIB: Final = 1024 * 1024

MAX_REFS_MEMORY_BYTES: Final = 256 * _MIB
"""Memory limit while finding a commit, which is enough for more than 500,000 refs."""

MAX_MEMORY_BYTES: Final = 768 * _MIB
"""Memory limit including mapped files, for a pack of 128 MiB and a few copies of an object."""

MAX_REPLY_BYTES: Final = 32 * _MIB
"""Limit on the manifests of a commit: twice the limit on their files."""

MAX_MESSAGE_CHARACTERS: Final = 8_000
"""Limit on an error message, because a server, a file name or a manifest may cause megabytes of
text."""

_MAX_TRACE_CHARACTERS: Final = 16_000

_REPEAT_SECONDS: Final = 0.5

_encoder = msgspec.msgpack.Encoder()
_json_encoder = msgspec.json.Encoder()


class _TimeLimitError(BaseException):
    """The time limit was exceeded. No library catches this class."""


def main() -> None:
    """Read a request, and write the reply."""
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Request)
    tempfile.tempdir = request.folder
    with _time_limit(request.seconds):
        reply = _reply(request)
    sys.stdout.buffer.write(_encoder.encode(reply))


def _reply(request: Request) -> Reply:
    try:
        return _read(request)
    except _TimeLimitError:
        failure = Failure(
            "Unreachable", f"{request.source['url']}: no result within {request.seconds:g} s"
        )
    except Exception as error:  # noqa: BLE001 - a repository may be damaged in any way
        failure = _failure(error, request.source["url"])
    # The parent process serves all tenants, and searches these strings for secrets.
    message = failure.message[:MAX_MESSAGE_CHARACTERS]
    trace = failure.trace[-_MAX_TRACE_CHARACTERS:]
    return Reply(failure=msgspec.structs.replace(failure, message=message, trace=trace))


def _failure(error: Exception, url: str) -> Failure:
    if _is_memory_error(error):
        limit_mib = _memory_limit()[0] // _MIB
        return Failure(
            "Unreachable", f"{url}: reading it requires more than {limit_mib} MiB of memory"
        )
    match error:
        case GitError():
            return Failure(error.reason, error.message, error.revision)
        case ConfigurationError():
            return Failure("Unreachable", str(error))
        case _:
            message = f"it could not be read: {type(error).__name__}: {error}"
            return Failure("Unreachable", message, trace="".join(traceback.format_exception(error)))


def _read(request: Request) -> Reply:
    source = request.source
    remote = Remote(str(source["url"]), request.credential, request.timeout_seconds, request.allow)
    if request.explained:
        _limit_memory(MAX_MEMORY_BYTES)
        with fetch(remote, request.explained) as checkout:
            return Reply(origins=find_origins(checkout, request.problems, request.namespace))
    _limit_memory(MAX_REFS_MEMORY_BYTES)
    resolved = find_commit(remote, source.get("ref") or {})
    if not request.read_content or resolved.commit in request.known:
        return Reply(resolved.ref, resolved.commit)
    _limit_memory(MAX_MEMORY_BYTES)
    with fetch(remote, resolved.commit) as checkout:
        revision = {**checkout.revision, "ref": resolved.ref, "of": request.source_digest}
        previous_commit = request.declared
        if previous_commit and not checkout.has_ancestor(previous_commit):
            revision["rewritten"] = f"{previous_commit[:12]} is not an ancestor"
        try:
            if source.get("signers"):
                check_signature(checkout.folder, resolved.commit, str(source["signers"]))
            path, render = str(source.get("path", "")), str(source.get("render", ""))
            files = checkout.tree.files("" if render else path, is_rendered=bool(render))
            if render:
                renderers = {
                    name: command
                    for name, command in read_renderers().items()
                    if request.allow.permits("renderers", name)
                }
                files = run_renderer(renderers, render, files, path)
            documents = _documents(files, request, is_rendered=bool(render))
            if not render:
                _check_lost_manifests(checkout, request, documents)
        except GitError as error:
            message = f"{describe_revision(revision)}: {error.message}"
            raise GitError(error.reason, message, revision) from None
    return Reply(resolved.ref, resolved.commit, revision, documents)


def _documents(files: dict[str, bytes], request: Request, *, is_rendered: bool) -> list[Document]:
    documents: list[Document] = []
    size = memory = 0
    secrecy = Secrecy(request.credential)
    for each in request.former_credentials:
        secrecy.add(each)
    for read in documents_in(files, request.namespace, is_rendered=is_rendered):
        check_credential(read, secrecy)
        source = read.source
        location = (source.file, source.number, source.line)
        document = (
            Document(*location, read.manifest)
            if isinstance(read, ParsedManifest)
            else Document(*location, None, read.message)
        )
        size += len(_encoder.encode(document))
        memory += decoded_bytes(_json_encoder.encode(document))
        if memory > MAX_RESPONSE_BYTES:
            raise GitError(
                "BadCommit",
                f"its manifests exceed the limit of {MAX_RESPONSE_BYTES // _MIB} MiB of memory",
            )
        if size > MAX_REPLY_BYTES:
            raise GitError(
                "BadCommit", f"its manifests exceed the limit of {MAX_REPLY_BYTES // _MIB} MiB"
            )
        documents.append(document)
    return documents


def _check_lost_manifests(
    checkout: Checkout, request: Request, documents: Sequence[Document]
) -> None:
    """Raise `GitError` for a file of the declared commit that still exists without its manifests.

    Only a removed or ignored file withdraws its resources. An emptied file, or a link in its place,
    may be an error.
    """
    previous = checkout.tree_of(request.declared)
    if previous is None:
        return
    path, found = str(request.source.get("path", "")), {each.file for each in documents}
    try:
        earlier = [
            (name, sha)
            for name, sha in previous.entries(path)
            if name not in found and is_manifest(name)
        ]
    except GitError:
        return  # an earlier release declared it by other rules
    for name, sha in earlier:
        now = checkout.tree.describe(name)
        if now is None or checkout.tree.is_ignored(name, path):
            continue
        if not _has_manifests(name, previous.read(sha), request.namespace):
            continue
        raise GitError(
            "BadCommit",
            f"{name} {now}, but {request.declared[:12]} declared resources in it; to withdraw "
            f"them, remove the file or list it in {IGNORE_FILE}",
        )


def _has_manifests(name: str, content: bytes, namespace: str) -> bool:
    reads = documents_in({name: content}, namespace)
    return any(isinstance(each, ParsedManifest) for each in reads)


def _is_memory_error(error: BaseException | None) -> bool:
    """Return whether the memory limit caused an error, directly or through another error."""
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        error = error.__cause__ or error.__context__
    return False


def _limit_memory(size: int) -> None:
    """Limit the memory of this process.

    Programs that it starts may use more, up to their own limits.
    """
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 - does not exist on Windows

    limit_bytes = _memory_limit()[1]
    limit = size if limit_bytes == resource.RLIM_INFINITY else min(size, limit_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit_bytes))


def _memory_limit() -> tuple[int, int]:
    """Return the memory limit, and the maximum to which it can be raised."""
    if sys.platform == "win32":
        return MAX_MEMORY_BYTES, MAX_MEMORY_BYTES
    import resource  # noqa: PLC0415 - as above

    return resource.getrlimit(resource.RLIMIT_AS)


@contextmanager
def _time_limit(seconds: float) -> Generator[None]:
    """Raise ``_TimeLimitError`` in a block that exceeds the limit, even while it waits."""
    if sys.platform == "win32":
        yield
        return

    def end(_signal: int, _frame: FrameType | None) -> Any:
        raise _TimeLimitError

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
