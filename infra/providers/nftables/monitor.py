"""Use nftables events as hints that a client has changed the table."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from pathlib import Path
from typing import Final

from infra.embedded.child import bind_to_parent
from infra.providers.nftables.nft import Nft
from reconciler.errors import NotDoneError

MAX_WAIT_SECONDS: Final = 30.0
MAX_WAIT_FRACTION: Final = 0.5
"""Fraction of the request timeout to wait for an event before reporting no change."""

_POLL_SECONDS: Final = 0.01
_CHUNK_BYTES: Final = 65_536
_MAX_LINE_BYTES: Final = 1024 * 1024
_MAX_MESSAGE_BYTES: Final = 200
_NETFILTER: Final = 12
_NFTABLES_GROUP_BIT: Final = 1 << 6
"""Bit of NFNLGRP_NFTABLES in a socket's group mask."""


class Monitor:
    """Follows ``nft monitor``, started on first use. A mark counts the events so far."""

    def __init__(self, nft: Nft, timeout_seconds: float) -> None:
        self._nft = nft
        self._program = nft.program
        table = re.escape(nft.table_ref.table.encode())
        # Events about elements and rules have a table field; events about a table have its name.
        self._own_event = re.compile(rb'"(?:table|name)": ?"' + table + rb'"')
        self._wait_seconds = min(timeout_seconds * MAX_WAIT_FRACTION, MAX_WAIT_SECONDS)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._run = ""
        self._count = 0
        self._last_message = b""

    async def changes(self, after: str | None) -> str:
        """Wait a limited time for an event after the mark ``after``, and return the newest mark."""
        await self._nft.permit.before_request()
        if self._reader is None or self._reader.done():
            if self._reader is not None:
                await self.close()
                last = self._last_message.decode(errors="replace").strip()
                raise NotDoneError(f"nft monitor exited: {last or 'no output'}")
            await self._start()
        if after == self._mark:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_seconds):
                    await self._changed.wait()
        return self._mark

    async def close(self) -> None:
        """Stop the process."""
        process, self._process = self._process, None
        reader, self._reader = self._reader, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if process is not None:
            await process.wait()

    @property
    def _mark(self) -> str:
        return f"{self._run}.{self._count}"

    async def _start(self) -> None:
        command = bind_to_parent([*self._program, "-j", "monitor"])
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,  # reports lost events
            )
        except OSError as error:
            raise NotDoneError(f"cannot start nft monitor: {error.strerror}") from None
        self._process, self._run, self._count = process, uuid.uuid4().hex[:12], 0
        self._reader = asyncio.create_task(self._follow(process))
        # The listing that follows the first mark must not start before the monitor listens.
        for _ in range(round(self._wait_seconds / _POLL_SECONDS)):
            if self._reader.done() or _is_listening(process.pid):
                break
            await asyncio.sleep(_POLL_SECONDS)

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        buffer = b""
        try:
            while chunk := await process.stdout.read(_CHUNK_BYTES):
                *lines, buffer = (buffer + chunk).split(b"\n")
                buffer = buffer[-_MAX_LINE_BYTES:]
                for line in lines:
                    self._handle_line(line)
        finally:
            self._changed.set()

    def _handle_line(self, line: bytes) -> None:
        is_event = line.startswith(b"{")
        if not is_event:
            self._last_message = line[:_MAX_MESSAGE_BYTES]
        # A line that is not an event is a warning that events were lost or not understood.
        if (line and not is_event) or self._own_event.search(line):
            self._count += 1
            self._changed.set()


def _is_listening(pid: int) -> bool:
    """Return whether a process has a socket that receives nftables events."""
    try:
        sockets = Path(f"/proc/{pid}/net/netlink").read_text().splitlines()[1:]
    except OSError:
        return False
    for line in sockets:
        _, family, port, groups, *_ = line.split()
        if (int(family), int(port)) == (_NETFILTER, pid) and int(groups, 16) & _NFTABLES_GROUP_BIT:
            return True
    return False
