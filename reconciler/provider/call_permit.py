"""Permission to call an external API. A provider awaits it before each request (ADR 0073)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

from reconciler.errors import NotCalledError

READ_VALID_SECONDS: Final = 3.0
"""Maximum age of a read that a write relies on, plus two intervals of a rate limit.

It is less than a lease, so that a worker does not act on an outdated read after a suspension.
"""


class CallGate(Protocol):
    """Decides when the next request of one action, listing or feed may be sent."""

    @property
    def may_send_now(self) -> bool:
        """Whether the next request may be sent immediately."""
        ...

    @property
    def interval_seconds(self) -> float:
        """Interval between two requests in seconds, or 0.0 if there is no rate limit."""
        ...

    async def wait(self, *, has_priority: bool = False) -> None:
        """Wait until the next request may be sent. With priority, it precedes waiting requests.

        Raises ``NotCalledError`` if the wait would be too long.
        """
        ...

    def record_status(self, status: int) -> None:
        """Record the status of a response as soon as its headers are complete."""
        ...


class CallRecord:
    """Whether a request of one action changed the API, which a later failure does not undo."""

    __slots__ = ("has_written",)

    def __init__(self) -> None:
        self.has_written = False


CALL_GATE: ContextVar[CallGate | None] = ContextVar("call_gate", default=None)
"""Gate for the requests of the current task. Roles set it. Without a gate, no request waits."""

CALL_RECORD: ContextVar[CallRecord | None] = ContextVar("call_record", default=None)
"""Record of the action that the current task executes. Workers set it."""

CALL_NAMESPACE: ContextVar[str] = ContextVar("call_namespace", default="")
"""Namespace of the resource that the current task calls an API for. Workers set it. It is empty for
a listing."""


class CallPermit:
    """One provider's permission to call its API.

    Concurrent calls share the permit. Reconciler routes each request through the gate of the action
    or listing that it belongs to.
    """

    __slots__ = ()

    @property
    def namespace(self) -> str:
        """The namespace that the current call is for, so that namespaces share a provider's slots.

        It is empty for a listing.
        """
        return CALL_NAMESPACE.get()

    async def before_request(self, *, read_at: float | None = None) -> None:
        """Wait until a request may be sent. Await it before each request of the provider.

        ``read_at``: ``time.monotonic()`` of the read that a write relies on. Such a request goes
        first, because the object may change in the meantime.

        Raises ``NotCalledError`` if the wait is too long or the read is outdated.
        """
        gate = CALL_GATE.get()
        if gate is not None and not gate.may_send_now:
            await gate.wait(has_priority=read_at is not None)
        if read_at is None:
            return
        age, interval = time.monotonic() - read_at, 0.0 if gate is None else gate.interval_seconds
        if age > READ_VALID_SECONDS + 2 * interval:
            raise NotCalledError(
                f"not called: the read that the request depends on is {age:.0f} s old",
                retry_after_seconds=0.0,
            )

    @property
    def record_status(self) -> Callable[[int], None]:
        """The function to call with the status of a response as soon as its headers are complete.

        It proves that the API responds, even if the body is too large or too slow. Another task may
        call it.
        """
        gate = CALL_GATE.get()
        return _ignore_status if gate is None else gate.record_status

    def record_write(self) -> None:
        """Record that a request changed the API, or may have.

        Call it after each request that writes, unless the API refused that request. From then on,
        every failure of the action has an unknown result.
        """
        record = CALL_RECORD.get()
        if record is not None:
            record.has_written = True

    @contextmanager
    def exclude_writes(self) -> Generator[None]:
        """Exclude writes that are not part of the action's effect, such as to shared chains."""
        token = CALL_RECORD.set(None)
        try:
            yield
        finally:
            CALL_RECORD.reset(token)


def _ignore_status(_status: int) -> None:
    pass
