"""Check after each lost connection that the log is still the one that this process read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

import structlog
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from events.log import LogEvent
from infra.bus.removals import LOG_REPLACED_REMEDY
from infra.bus.streams import LOG, find_lost_beginning
from infra.jetstream.connection import is_clustered
from infra.jetstream.errors import (
    BusUnavailableError,
    IncompatibleStreamError,
    NotFoundOnBusError,
    StreamReplacedError,
)
from infra.jetstream.reads import StreamState, message_from_leader, stream_state
from infra.jetstream.wire import on_loss

PERSISTENCE_SECONDS: Final = 15.0
"""How long a cluster must report a different log before the process stops.

An isolated leader takes about ten seconds to resign, and may lack newer events until then.
"""

_RETRY_SECONDS: Final = 0.1
_LOG_OLDER: Final = (
    "the server came back with older data. This process is stopping, because it has read events "
    "that the log no longer contains; restore the newer data, or restore the log from a backup, "
    "then start the process again"
)
_logger = structlog.get_logger(__name__)


class JetStreamLogWatch:
    """Implements ``reconciler.ports.LogWatch``. Create it with ``watch_log``.

    A server may restart with different data: an older copy, an empty directory, or another log. In
    that case, the log has a different creation time, is shorter, or has a different event at the
    last position read. From the loss of a connection until a check succeeds, the log is uncertain.
    """

    def __init__(
        self, nc: Client, state: StreamState, event_id: str, checked_connection: int
    ) -> None:
        self._nc = nc
        self._created = state.created
        self._position = state.last_seq
        self._event_id = event_id
        self._checked_connection = checked_connection
        self._lost = asyncio.Event()
        self._certain = asyncio.Event()
        self._problem_since: float | None = None

    @property
    def is_certain(self) -> bool:
        """Whether the connection has held since the last successful check."""
        return self._nc.is_connected and self._nc.stats["reconnects"] == self._checked_connection

    async def wait_until_certain(self, seconds: float) -> bool:
        """Wait until the log is certain, for at most `seconds`. Return whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.is_certain:
                    self._certain.clear()
                    self._lost.set()
                    await self._certain.wait()
        return self.is_certain

    def record_read(self, position: int, event: LogEvent) -> None:
        """Record the newest event that was read."""
        if position > self._position:
            self._position, self._event_id = position, event.id

    async def run(self) -> None:
        """Check after every lost connection.

        Raises:
            StreamReplacedError: the log is a different one.
        """
        with on_loss(self._nc, self._lost.set):
            while True:
                await self._lost.wait()
                self._lost.clear()
                while not self.is_certain:
                    if not await self._check():
                        await asyncio.sleep(_RETRY_SECONDS)

    async def _check(self) -> bool:
        """Check once. Return whether the log is the same.

        Raises:
            StreamReplacedError: the log is a different one.
        """
        if not self._nc.is_connected:
            return False
        reconnects = self._nc.stats["reconnects"]
        try:
            problem = await self._problem()
        except BusUnavailableError as error:
            _logger.debug("could not yet verify that the log is the same", reason=str(error))
            return False
        if problem:
            self._raise_if_persistent(problem)
            return False
        self._problem_since = None
        self._checked_connection = reconnects
        self._certain.set()
        return True

    def _raise_if_persistent(self, problem: str) -> None:
        """Raise the problem; in a cluster, only if it persists for `PERSISTENCE_SECONDS`."""
        if is_clustered(self._nc):
            now = time.monotonic()
            self._problem_since = self._problem_since or now
            if now - self._problem_since < PERSISTENCE_SECONDS:
                return
        raise StreamReplacedError(problem)

    async def _problem(self) -> str:
        """Describe how the log differs from the one that this process read, or return ""."""
        position, event_id = (
            self._position,
            self._event_id,
        )  # it may advance during the check
        try:
            state = await stream_state(self._nc, LOG)
        except NotFoundOnBusError:
            return f"stream {LOG} was deleted while this process read it; {LOG_REPLACED_REMEDY}"
        if state.created != self._created:
            return (
                f"stream {LOG} was deleted and recreated while this process read it (created "
                f"{state.created}, previously {self._created}), so positions in the old stream are "
                f"invalid; {LOG_REPLACED_REMEDY}"
            )
        if state.last_seq < position:
            return (
                f"stream {LOG} ends at {state.last_seq}, but this process has read it up to "
                f"{position}; {_LOG_OLDER}"
            )
        current_id = await _event_id_at(self._nc, position)
        if current_id and event_id and current_id != event_id:
            return (
                f"stream {LOG} has a different event at position {position} than when this process "
                f"read it; {_LOG_OLDER}"
            )
        return ""


async def watch_log(nc: Client) -> JetStreamLogWatch:
    """Return a watch for the log in its current state.

    Raises:
        NotFoundOnBusError: there is no log.
        IncompatibleStreamError: the log's first events were removed.
    """
    reconnects = nc.stats["reconnects"]
    state = await stream_state(nc, LOG)
    if problem := find_lost_beginning(state):
        raise IncompatibleStreamError(f"{problem}; restore the log from a backup")
    newest = await _event_id_at(nc, state.last_seq)
    return JetStreamLogWatch(nc, state, newest, reconnects)


async def _event_id_at(nc: Client, position: int) -> str:
    """Return an event's id, or "" if it is missing or unreadable (log readers report that)."""
    message = await message_from_leader(nc, LOG, position) if position else None
    if message is None:
        return ""
    with contextlib.suppress(InvalidMessageError):
        return decode_log(message.payload).id
    return ""
