"""Leave to call an external API: whoever makes a provider call gives it, each request asks."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from reconciler.errors import NotCalledError


class CallPermit(Protocol):
    """Says when the external API may be called: asked before each request."""

    @property
    def is_free(self) -> bool:
        """Whether the next request may be sent at once."""
        ...

    @property
    def pace_seconds(self) -> float:
        """How far apart a rate limit keeps two requests; 0.0 without one."""
        ...

    async def wait(self, *, goes_first: bool = False) -> None:
        """Wait until the next request may be sent: before all others that wait, or behind them.

        Raises ``NotCalledError`` when that is too long.
        """
        ...


CALL_PERMIT: ContextVar[CallPermit | None] = ContextVar("call_permit", default=None)
"""Set by whoever calls a provider; without one, nothing is waited for."""


READ_IS_GOOD_SECONDS = 3.0
"""So long a write may rely on what was read before it, and two paces of a rate limit longer: less
than a lease, so that a worker that stood still in between does not act on what others know better.
"""


class CallRecord:
    """What the requests of one action did: a failure after one of them does not undo it."""

    __slots__ = ("has_written",)

    def __init__(self) -> None:
        self.has_written = False


CALL_RECORD: ContextVar[CallRecord | None] = ContextVar("call_record", default=None)
"""Set by a worker for each action that it executes."""


def record_write() -> None:
    """Record that a request of the action changed the API, or may have.

    A client calls it after each request that writes, unless the API refused that one. From then on,
    every failure of the action that reports that nothing was done has an unknown result.
    """
    record = CALL_RECORD.get()
    if record is not None:
        record.has_written = True


@contextmanager
def unrecorded() -> Generator[None]:
    """Make writes that are no part of the effect of the action."""
    token = CALL_RECORD.set(None)
    try:
        yield
    finally:
        CALL_RECORD.reset(token)


async def may_call(*, read_at: float | None = None) -> None:
    """Wait until the API may be called; a provider awaits it before each request that it sends.

    ``read_at``: when what the request relies on was read, by ``time.monotonic``. It goes before
    others, for the object can become another one meanwhile.

    Raises ``NotCalledError`` when that is too long.
    """
    permit = CALL_PERMIT.get()
    if permit is not None and not permit.is_free:
        await permit.wait(goes_first=read_at is not None)
    if read_at is None:
        return
    age, pace = time.monotonic() - read_at, 0.0 if permit is None else permit.pace_seconds
    if age > READ_IS_GOOD_SECONDS + 2 * pace:
        raise NotCalledError(
            f"not called: the read that the request depends on is {age:.0f} s old",
            retry_after_seconds=0.0,
        )
