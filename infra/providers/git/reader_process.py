"""Starting the process that reads one repository, and ending it in time (ADR 0057).

What it is sent can fill only its own memory, which is limited; what hangs ends with it.
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
from events.documents import Problem, Read, Source
from events.manifest import Fields, Manifest
from infra.providers.git.problems import GitError, Reason

_COMMAND: Final = (sys.executable, "-I", "-m", "infra.providers.git.reader")
_GRACE_SECONDS: Final = 5.0
"""The process ends by itself at its time limit; after so much longer it is killed."""

_encoder = msgspec.msgpack.Encoder()


class Request(msgspec.Struct, frozen=True):
    """What is to be read: a source, within ``seconds``; ``allow``: what of the host it may use.

    ``known``: commits that need not be read again; ``declared``: the commit that is declared.
    ``made_from`` goes into the revision. Unless it ``reads``, only the commit is found.
    ``former``: credentials that the server may know, too.
    """

    source: Fields
    namespace: str
    credential: str
    timeout_seconds: float
    seconds: float
    allow: Allow
    reads: bool = True
    known: list[str] = []
    declared: str = ""
    made_from: str = ""
    former: list[str] = []
    folder: str = ""


class Document(msgspec.Struct, frozen=True, array_like=True):
    """A document of a commit: a manifest, or what is wrong with it."""

    file: str
    number: int
    line: int
    manifest: Manifest | None
    problem: str = ""

    @property
    def as_read(self) -> Read | Problem:
        """The document as ``checked_parts`` takes it."""
        source = Source(self.file, self.number, self.line)
        if self.manifest is None:
            return Problem(source, self.problem)
        return Read(source, self.manifest, self.manifest.key)


class Failure(msgspec.Struct, frozen=True):
    """Why nothing can be declared; ``trace`` is of a failure that no code has foreseen."""

    reason: Reason
    message: str
    revision: Fields | None = None
    trace: str = ""


class Reply(msgspec.Struct, frozen=True):
    """The commit that a ref stands for, and what was read of it; of a known one, nothing."""

    ref: str = ""
    commit: str = ""
    revision: Fields | None = None
    documents: list[Document] = []
    failure: Failure | None = None


_decoder = msgspec.msgpack.Decoder(Reply)


async def read_source(request: Request) -> Reply:
    """Read a source in a process of its own; raises ``GitError`` if the process fails."""
    with tempfile.TemporaryDirectory(
        prefix="reconciler-git-", ignore_cleanup_errors=True
    ) as folder:
        written = _encoder.encode(msgspec.structs.replace(request, folder=folder))
        output = await _output_of(written, request.seconds + _GRACE_SECONDS)
    try:
        return await asyncio.to_thread(_decoder.decode, output)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GitError(
            "Unreachable", f"the output of its reader process is invalid: {error}"
        ) from None


async def _output_of(written: bytes, seconds: float) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # with what it starts, such as ssh
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate(written)
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
