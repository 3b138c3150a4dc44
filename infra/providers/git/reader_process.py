"""Start the process that reads a repository, and kill it after a timeout (ADR 0057).

Hostile data can exhaust only the memory of that process, which is limited. Killing the process also
ends a hanging transfer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from typing import Final

import msgspec

from events.allow import Allow
from events.documents import ParsedManifest, Problem, Source
from events.manifest import Fields, Manifest
from infra.providers.git.problems import GitError, Reason

_COMMAND: Final = (sys.executable, "-I", "-m", "infra.providers.git.reader")
_GRACE_SECONDS: Final = 5.0
"""Grace period after the time limit, before the process is killed."""

_encoder = msgspec.msgpack.Encoder()


class Request(msgspec.Struct, frozen=True):
    """A request to read a source within ``seconds``.

    ``allow`` lists the permitted uses of the host. ``known`` lists commits that need not be read
    again, and ``declared`` is the declared commit. ``source_digest`` is recorded in the revision.
    If ``read_content`` is false, only the commit is resolved. ``former_credentials`` lists
    credentials that the server may also have received. If ``explained`` names a commit, only the
    origins of its ``problems`` are found.
    """

    source: Fields
    namespace: str
    credential: str
    timeout_seconds: float
    seconds: float
    allow: Allow
    read_content: bool = True
    known: list[str] = []
    declared: str = ""
    source_digest: str = ""
    former_credentials: list[str] = []
    folder: str = ""
    explained: str = ""
    problems: list[Document] = []


class Document(msgspec.Struct, frozen=True, array_like=True):
    """A document in a commit: a manifest, or a problem."""

    file: str
    number: int
    line: int
    manifest: Manifest | None
    problem: str = ""

    @property
    def read_result(self) -> ParsedManifest | Problem:
        """The document in the format that ``check_parts`` accepts."""
        source = Source(self.file, self.number, self.line)
        if self.manifest is None:
            return Problem(source, self.problem)
        return ParsedManifest(source, self.manifest, self.manifest.key)


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """The line of a problem's field, and a description of the commit that wrote its value.

    The description is empty if that commit is unknown, or is the newest one.
    """

    line: int
    commit: str = ""


class Failure(msgspec.Struct, frozen=True):
    """The reason why nothing can be declared; only an unexpected failure has a ``trace``."""

    reason: Reason
    message: str
    revision: Fields | None = None
    trace: str = ""


class Reply(msgspec.Struct, frozen=True):
    """The commit of a ref, and its content unless the commit is known."""

    ref: str = ""
    commit: str = ""
    revision: Fields | None = None
    documents: list[Document] = []
    origins: list[Origin] = []
    failure: Failure | None = None


_decoder = msgspec.msgpack.Decoder(Reply)


async def read_source(request: Request) -> Reply:
    """Read a source in a separate process. Raises ``GitError`` if the process fails."""
    with tempfile.TemporaryDirectory(
        prefix="reconciler-git-", ignore_cleanup_errors=True
    ) as folder:
        encoded = _encoder.encode(msgspec.structs.replace(request, folder=folder))
        output = await _run_reader(encoded, request.seconds + _GRACE_SECONDS)
    try:
        return await asyncio.to_thread(_decoder.decode, output)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GitError(
            "Unreachable", f"the output of its reader process is invalid: {error}"
        ) from None


async def _run_reader(encoded: bytes, seconds: float) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # so that programs it starts, such as ssh, are killed with it
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate(encoded)
    except TimeoutError:
        raise GitError(
            "Unreachable", "its reader process did not exit before the timeout and was killed"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise GitError("Unreachable", f"its reader process exited with status {process.returncode}")
    return output
