"""The program nft: each call is one transaction of the kernel, each failure is classified.

It reads a file in memory that is complete before it starts. From a pipe, it would take the half
that a killed process has written for the whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from infra.providers.nftables.place import FAMILY, Place
from reconciler.errors import (
    ConfigurationError,
    NotDoneError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.response_budget import MemoryLimitError, take_memory

Command = dict[str, object]
"""One command of a transaction, in nft's JSON."""

MAX_PROCESSES: Final = 4
"""Of one provider at a time. Each reads the names of all chains."""

SEARCHED: Final = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
"""Where nft is searched, also for users other than root."""

_NAMESPACES: Final = "/run/netns"
_ENVIRONMENT: Final = {"LC_ALL": "C", "PATH": SEARCHED}
_MESSAGE_CHARACTERS: Final = 1_000

_NO_RIGHT: Final = "Operation not permitted"
_NO_KERNEL: Final = (
    "Protocol not supported",
    "Address family not supported",
    "Unable to initialize Netlink socket",
    "cache initialization failed: Invalid argument",
)
_MISSING: Final = "No such file or directory"
_EXISTS: Final = "File exists"
_IN_USE: Final = "Device or resource busy"
_LATER: Final = (
    "Interrupted system call",
    "Resource temporarily unavailable",
    "Cannot allocate memory",
    "No buffer space available",
    "cache initialization failed",
    "Too many open files",
)

_encoder = msgspec.json.Encoder()

MAX_OUTPUT_BYTES: Final = 32 * 1024 * 1024
"""Of one listing; other programs may have filled the table. 5,000 services have 10 MiB."""

_PIECE_BYTES: Final = 64 * 1024


class MissingError(NotDoneError):
    """An object that a command names does not exist. Nothing was done."""


class ExistsError(NotDoneError):
    """An object that a command creates exists. Nothing was done."""


class Nft:
    """Runs nft for a place. ``Place`` has validated all arguments of the process."""

    def __init__(self, place: Place, timeout_seconds: float, permit: CallPermit) -> None:
        self.permit = permit
        self.place = place
        self.program = _program(place)
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(MAX_PROCESSES)

    async def apply(self, commands: Sequence[Command], *, read_at: float | None = None) -> None:
        """Execute all commands in one transaction, or none of them."""
        script = _encoder.encode({"nftables": commands})
        await self._run(["-j"], script, read_at=read_at, writes=True)
        self.permit.record_write()

    async def show(self, object_type: str, name: str | None = None) -> bytes:
        """List one chain or map of the table, or all of it, as JSON. Raises ``MissingError``.

        One object per call: of several chains, nft 1.0.6 returns only the last.
        """
        identity: Command = {"family": FAMILY, "name": self.place.table}
        if name is not None:
            identity = {"family": FAMILY, "table": self.place.table, "name": name}
        return await self._run(
            ["-j"], _encoder.encode({"nftables": [{"list": {object_type: identity}}]})
        )

    async def query(self, script: str, *options: str) -> str:
        """Run a query without JSON output. The caller has validated each word of the script."""
        return (await self._run(list(options), script.encode())).decode()

    async def _run(
        self,
        options: list[str],
        script: bytes,
        *,
        read_at: float | None = None,
        writes: bool = False,
    ) -> bytes:
        async with self._slots:
            await self.permit.before_request(read_at=read_at)
            process = await self._start_process(options, script)
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    output, errors = await _outputs(process)
                    take_memory(output)
            except TimeoutError:
                timeout_class = UnknownResultError if writes else NotDoneError
                raise timeout_class(
                    f"nft did not exit within {self._timeout_seconds:g} s"
                ) from None
            except MemoryLimitError as error:
                limit_class = UnknownResultError if writes else NotDoneError
                raise limit_class(f"the output of nft is unusable: {error}") from None
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        if process.returncode == 0:
            return output
        error_output = errors.decode(errors="replace")
        if process.returncode is not None and process.returncode < 0:
            signal_class = UnknownResultError if writes else NotDoneError
            raise signal_class(f"nft was killed by signal {-process.returncode}")
        raise self._refusal(error_output)

    async def _start_process(self, options: list[str], script: bytes) -> asyncio.subprocess.Process:
        file = os.memfd_create("script")
        try:
            with os.fdopen(os.dup(file), "wb") as writer:
                writer.write(script)
            os.lseek(file, 0, os.SEEK_SET)
            return await asyncio.create_subprocess_exec(
                *self.program,
                *options,
                "-f",
                "-",
                stdin=file,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=_ENVIRONMENT,
            )
        except OSError as error:
            raise NotDoneError(f"starting nft failed: {error.strerror}") from None
        finally:
            os.close(file)

    def _refusal(self, error_output: str) -> ProviderError:
        """Classify nft's error. Raises ``ConfigurationError`` for an error of every call."""
        first_line = next((line for line in error_output.splitlines() if line.strip()), "nothing")
        text = f"nft: {first_line.partition('Error: ')[2] or first_line}"[:_MESSAGE_CHARACTERS]
        if error_output.startswith("nsenter:") and _MISSING in error_output:
            return NotDoneError(
                f"network namespace {self.place.namespace!r} does not exist; create it with ip "
                "netns add"
            )
        if _NO_RIGHT in error_output or "must be root" in error_output:
            raise ConfigurationError(
                f"{text}; run the roles as root, or with CAP_NET_ADMIN in the namespace"
            )
        if any(each in error_output for each in _NO_KERNEL):
            raise ConfigurationError(
                f"{text}; this kernel has no nftables (nf_tables), or not for address family "
                f"{FAMILY}, so load the module, or run the roles on another machine"
            )
        if _MISSING in error_output:
            return MissingError(text, status=HTTPStatus.CONFLICT)
        if _EXISTS in error_output:
            return ExistsError(text, status=HTTPStatus.CONFLICT)
        if _IN_USE in error_output:
            return NotDoneError(
                f"{text}; a rule or an element of another program refers to it",
                status=HTTPStatus.CONFLICT,
            )
        if any(each in error_output for each in _LATER):
            return NotDoneError(text)
        return RefusedError(text)


def _program(place: Place) -> tuple[str, ...]:
    """Return the command. Raises ``ConfigurationError`` if nft is not installed."""
    problem = nft_problem()
    if problem is not None:
        raise ConfigurationError(problem)
    nft, nsenter = (shutil.which(each, path=SEARCHED) for each in ("nft", "nsenter"))
    assert nft is not None
    if place.namespace is None:
        return (nft,)
    if nsenter is None:
        raise ConfigurationError(
            "the program nsenter is not installed; install the package util-linux"
        )
    return (nsenter, f"--net={_NAMESPACES}/{place.namespace}", nft)


def nft_problem() -> str | None:
    """Describe why nft cannot run here; None if it can."""
    if sys.platform != "linux":
        return "services require nftables, which exists only on Linux"
    if shutil.which("nft", path=SEARCHED) is None:
        return "the program nft is not installed; install the package nftables"
    return None


async def _outputs(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Read both outputs until the process ends. Raises ``MemoryLimitError``."""
    reads = [asyncio.create_task(_read(each)) for each in (process.stdout, process.stderr)]
    try:
        output, errors = await asyncio.gather(*reads)
    finally:
        for each in reads:
            each.cancel()
    await process.wait()
    return output, errors


async def _read(output: asyncio.StreamReader | None) -> bytes:
    """Read an output of nft. Raises ``MemoryLimitError``."""
    assert output is not None
    content = bytearray()
    while piece := await output.read(_PIECE_BYTES):
        content += piece
        if len(content) > MAX_OUTPUT_BYTES:
            raise MemoryLimitError(f"it is longer than {MAX_OUTPUT_BYTES // 1024**2} MiB")
    return bytes(content)
