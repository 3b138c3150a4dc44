"""Detect when a full disk has stopped a server, and when a restart would repair it.

After a failed write, JetStream (2.15) rejects all later requests to the stream, or disables
itself, even once the disk has space again. A restart repairs this, but reloading the configuration
does not. Acknowledged messages survive.
"""

from __future__ import annotations

import shutil
from typing import Final

import structlog

from infra.embedded.server import EmbeddedServer

ROOM_BYTES: Final = 64 * 1024**2
"""Free space required for a restart. With less, the disk would soon be full again."""

_NO_SPACE: Final = ("no space left on device", "disk quota exceeded")
_JETSTREAM_DISABLED: Final = "JetStream not enabled"
_logger = structlog.get_logger(__name__)


def is_full_disk_error(problem: str) -> bool:
    """Return whether a server's health report shows that a write failed for lack of space."""
    return any(words in problem for words in _NO_SPACE)


def is_jetstream_disabled(problem: str) -> bool:
    """Return whether a server has disabled JetStream because it could not write."""
    return _JETSTREAM_DISABLED in problem


class FullDiskWatch:
    """Monitors one server. Call `needs_restart` periodically."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._last_problem = ""

    async def needs_restart(self) -> bool:
        """Log a change in the server's health, and return whether a restart would repair it now."""
        problem = await self._server.problem()
        if problem != self._last_problem:
            self._log_health(problem)
        self._last_problem = problem
        is_stuck = is_full_disk_error(problem) or is_jetstream_disabled(problem)
        return is_stuck and self._free_bytes() >= ROOM_BYTES

    def _log_health(self, problem: str) -> None:
        is_full = is_jetstream_disabled(problem) and self._free_bytes() < ROOM_BYTES
        if is_full or is_full_disk_error(problem):
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
