"""Runs the nft program: each call is one kernel transaction, and each failure is classified.

It reads its script from an in-memory file that is complete before nft starts. If it read from a
pipe, it could execute a partial script from a killed process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec

from infra.providers.nftables.table_ref import FAMILY, TableRef
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
"""Limit on a provider's concurrent processes, each of which reads the names of all chains."""

_MAX_READS: Final = 5
"""Limit on attempts of a read, which the kernel interrupts if another client changes the rules."""

SEARCH_PATH: Final = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
"""Search path for nft, which includes /usr/sbin for users other than root."""

_NFT: Final = "nft"
_NAMESPACES: Final = "/run/netns"
_ENVIRONMENT: Final = {"LC_ALL": "C", "PATH": SEARCH_PATH}
_MAX_MESSAGE_CHARACTERS: Final = 1_000

_NOT_PERMITTED: Final = "Operation not permitted"
_NOT_SUPPORTED: Final = (
    "Protocol not supported",
    "Address family not supported",
    "Unable to initialize Netlink socket",
    "cache initialization failed: Invalid argument",
)
_MISSING: Final = "No such file or directory"
_EXISTS: Final = "File exists"
_IN_USE: Final = "Device or resource busy"
_INTERRUPTED: Final = "Interrupted system call"
_TEMPORARY: Final = (
    _INTERRUPTED,
    "Resource temporarily unavailable",
    "Cannot allocate memory",
    "No buffer space available",
    "cache initialization failed",
    "Too many open files",
)

_encoder = msgspec.json.Encoder()

MAX_OUTPUT_BYTES: Final = 32 * 1024 * 1024
"""Limit on a listing, because other programs may fill the table. 5,000 services take 10 MiB."""

_CHUNK_BYTES: Final = 64 * 1024


class MissingError(NotDoneError):
    """An object that a command names does not exist, so nothing was done."""


class ExistsError(NotDoneError):
    """An object that a command creates already exists, so nothing was done."""


class ProgramResult(NamedTuple):
    """The exit status of a program, and both of its outputs."""

    code: int
    output: bytes
    errors: bytes

    @property
    def error_text(self) -> str:
        """The first line of its error output."""
        lines = self.errors.decode(errors="replace").splitlines()
        return next((each for each in lines if each.strip()), "no output")[:_MAX_MESSAGE_CHARACTERS]


class Nft:
    """Runs nft for a table. ``TableRef`` has validated all arguments of the process."""

    def __init__(self, table_ref: TableRef, timeout_seconds: float, permit: CallPermit) -> None:
        self.permit = permit
        self.table_ref = table_ref
        self.program = _program(table_ref)
        self._prefix = self.program[:-1]
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(MAX_PROCESSES)

    async def apply(self, commands: Sequence[Command], *, read_at: float | None = None) -> None:
        """Execute all commands or none, in one transaction."""
        script = _encoder.encode({"nftables": commands})
        await self._run(["-j"], script, read_at=read_at, writes=True)
        self.permit.record_write()

    async def show(
        self, object_type: str, name: str | None = None, *, table: str | None = None
    ) -> bytes:
        """List a chain or map of the table, or the whole table, as JSON. Raises ``MissingError``.

        One object per call, because nft 1.0.6 returns only the last of several chains. ``table``
        selects another table of the namespace.
        """
        table = table or self.table_ref.table
        identity: Command = {"family": FAMILY, "name": table}
        if name is not None:
            identity = {"family": FAMILY, "table": table, "name": name}
        return await self._run(
            ["-j"], _encoder.encode({"nftables": [{"list": {object_type: identity}}]})
        )

    async def show_maps(self) -> bytes:
        """List the maps of all tables, without their elements, as JSON."""
        return await self._run(["-j", "-t"], f"list maps {FAMILY}".encode())

    async def query(self, script: str, *options: str) -> str:
        """Run a query without JSON output. The caller has validated each word of the script."""
        return (await self._run(list(options), script.encode())).decode()

    async def execute(
        self,
        name: str,
        arguments: Sequence[str],
        script: bytes = b"",
        *,
        read_at: float | None = None,
        writes: bool = False,
        keeps_line: Callable[[bytes], bool] | None = None,
    ) -> ProgramResult:
        """Run a program in the table's network namespace, until it exits.

        ``keeps_line`` receives each line of the output, and selects those that are returned.
        """
        async with self._slots:
            await self.permit.before_request(read_at=read_at)
            process = await self._start_process(name, arguments, script)
            error_class = UnknownResultError if writes else NotDoneError
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    output, errors = await _outputs(process, keeps_line)
                    take_memory(output)
            except TimeoutError:
                raise error_class(
                    f"{name} did not exit within {self._timeout_seconds:g} s"
                ) from None
            except MemoryLimitError as error:
                raise error_class(
                    f"the output of {name} is unusable: {error}", responded=True
                ) from None
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        assert process.returncode is not None
        if process.returncode < 0:
            raise error_class(f"{name} was killed by signal {-process.returncode}")
        return ProgramResult(process.returncode, output, errors)

    async def _run(
        self,
        options: list[str],
        script: bytes,
        *,
        read_at: float | None = None,
        writes: bool = False,
    ) -> bytes:
        for attempt in range(1, _MAX_READS + 1):  # reads only
            result = await self.execute(
                _NFT, [*options, "-f", "-"], script, read_at=read_at, writes=writes
            )
            if result.code == 0:
                return result.output
            errors = result.errors.decode(errors="replace")
            if writes or _INTERRUPTED not in errors or attempt == _MAX_READS:
                raise self._reject(errors)
        raise AssertionError

    async def _start_process(
        self, name: str, arguments: Sequence[str], script: bytes
    ) -> asyncio.subprocess.Process:
        file = os.memfd_create("script")
        try:
            with os.fdopen(os.dup(file), "wb") as writer:
                writer.write(script)
            os.lseek(file, 0, os.SEEK_SET)
            return await asyncio.create_subprocess_exec(
                *(self.program if name == _NFT else (*self._prefix, name)),
                *arguments,
                stdin=file,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=_ENVIRONMENT,
            )
        except OSError as error:
            raise NotDoneError(f"cannot start {name}: {error.strerror}") from None
        finally:
            os.close(file)

    def _reject(self, error_output: str) -> ProviderError:
        """Classify nft's error. Raises ``ConfigurationError`` if every call would fail."""
        first_line = next((line for line in error_output.splitlines() if line.strip()), "no output")
        text = f"nft: {first_line.partition('Error: ')[2] or first_line}"[:_MAX_MESSAGE_CHARACTERS]
        if error_output.startswith("nsenter:") and _MISSING in error_output:
            return NotDoneError(
                f"network namespace {self.table_ref.namespace!r} does not exist; create it with ip "
                "netns add"
            )
        if _NOT_PERMITTED in error_output or "must be root" in error_output:
            raise ConfigurationError(
                f"{text}; run the roles as root, or with CAP_NET_ADMIN in the namespace"
            )
        if any(each in error_output for each in _NOT_SUPPORTED):
            raise ConfigurationError(
                f"{text}; this kernel does not support nftables (nf_tables), or its {FAMILY} "
                "address family; load the module, or run the roles on another machine"
            )
        if _MISSING in error_output:
            return MissingError(text, status=HTTPStatus.CONFLICT)
        if _EXISTS in error_output:
            return ExistsError(text, status=HTTPStatus.CONFLICT)
        if _IN_USE in error_output:
            return NotDoneError(
                f"{text}; another program's rule or element refers to it",
                status=HTTPStatus.CONFLICT,
            )
        if any(each in error_output for each in _TEMPORARY):
            return NotDoneError(text)
        return RefusedError(text)


def _program(table_ref: TableRef) -> tuple[str, ...]:
    """Return the command that runs nft. Raises ``ConfigurationError`` if it is not installed."""
    problem = nft_problem()
    if problem is not None:
        raise ConfigurationError(problem)
    nft, nsenter = (shutil.which(each, path=SEARCH_PATH) for each in ("nft", "nsenter"))
    assert nft is not None
    if table_ref.namespace is None:
        return (nft,)
    if nsenter is None:
        raise ConfigurationError(
            "the nsenter program is not installed; install the util-linux package"
        )
    return (nsenter, f"--net={_NAMESPACES}/{table_ref.namespace}", nft)


def nft_problem() -> str | None:
    """Describe why nft cannot run on this machine; None if it can."""
    if sys.platform != "linux":
        return "services require nftables, which exists only on Linux"
    if shutil.which("nft", path=SEARCH_PATH) is None:
        return "the nft program is not installed; install the nftables package"
    return None


async def _outputs(
    process: asyncio.subprocess.Process, keeps_line: Callable[[bytes], bool] | None
) -> tuple[bytes, bytes]:
    """Read both outputs until the process exits. Raises ``MemoryLimitError``."""
    reads = [
        asyncio.create_task(_read(process.stdout, keeps_line)),
        asyncio.create_task(_read(process.stderr)),
    ]
    try:
        output, errors = await asyncio.gather(*reads)
    finally:
        for each in reads:
            each.cancel()
    await process.wait()
    return output, errors


async def _read(
    output: asyncio.StreamReader | None, keeps_line: Callable[[bytes], bool] | None = None
) -> bytes:
    """Read an output of a program. Raises ``MemoryLimitError``."""
    assert output is not None
    content, partial_line = bytearray(), b""
    while chunk := await output.read(_CHUNK_BYTES):
        if keeps_line is not None:
            *lines, partial_line = (partial_line + chunk).split(b"\n")
            chunk = b"".join(each + b"\n" for each in lines if keeps_line(each))
        content += chunk
        if len(content) > MAX_OUTPUT_BYTES:
            raise MemoryLimitError(f"it is longer than {MAX_OUTPUT_BYTES // 1024**2} MiB")
    return bytes(content)
