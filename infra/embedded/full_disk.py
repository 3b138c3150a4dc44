"""A server that has met a full disk, and is to be started again as soon as there is space.

JetStream (2.15) keeps the first failed write of a stream and answers nothing more for it, or turns
itself off as a whole, whatever becomes of the disk; a reload of its configuration changes nothing
about that, a new start does. What it acknowledged is there then.
"""

from __future__ import annotations

import shutil
from typing import Final

import structlog

from infra.embedded.server import EmbeddedServer

ROOM_BYTES: Final = 64 * 1024**2
"""So much space there must be again: with less it would soon be full once more."""

_NO_SPACE: Final = ("no space left on device", "disk quota exceeded")
_TURNED_OFF: Final = "JetStream not enabled"
_logger = structlog.get_logger(__name__)


def means_full_disk(problem: str) -> bool:
    """Whether a server's own words about its health mean that a write found no space."""
    return any(words in problem for words in _NO_SPACE)


def has_turned_off(problem: str) -> bool:
    """Whether a server that had JetStream says that it has none: it found no way to write."""
    return _TURNED_OFF in problem


class FullDiskWatch:
    """Looks after one server; to be asked now and then."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._told = ""

    async def needs_restart(self) -> bool:
        """Tell what the server says of itself; gives whether a new start would help it now."""
        problem = await self._server.problem()
        if problem != self._told:
            self._tell(problem)
        self._told = problem
        is_stuck = means_full_disk(problem) or has_turned_off(problem)
        return is_stuck and self._free_bytes() >= ROOM_BYTES

    def _tell(self, problem: str) -> None:
        is_full = has_turned_off(problem) and self._free_bytes() < ROOM_BYTES
        if is_full or means_full_disk(problem):
            _logger.error(
                "the disk is full; the server stores nothing until there is space",
                folder=str(self._server.data_dir),
                needed_megabytes=ROOM_BYTES // 1024**2,
                problem=problem,
            )
        elif problem:
            _logger.error("nats-server is unhealthy", problem=problem)
        else:
            _logger.info("nats-server is healthy again")

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._server.data_dir).free
