"""The failpoint between two requests of one action, at which the action can be interrupted."""

from __future__ import annotations

from contextvars import Token
from typing import Self

from events.log import Operation
from reconciler.failpoints import Failpoint, reach
from reconciler.provider.call_permit import CALL_GATE, CallGate
from reconciler.roles.gate.api_gate import Calls


class CallFailpoint:
    """Permits the requests of one action, with the failpoint before each except the first.

    This context replaces ``Calls`` only if that failpoint is armed.
    """

    may_send_now = False  # every request must call `wait`

    def __init__(self, calls: Calls, operation: Operation) -> None:
        self._calls = calls
        self._operation = operation
        self._has_called = False
        self._token: Token[CallGate | None] | None = None

    def __enter__(self) -> Self:
        """Make this object the permit of the current task."""
        self._calls.__enter__()
        self._token = CALL_GATE.set(self)
        return self

    def __exit__(self, error_class: object, error: BaseException | None, traceback: object) -> None:
        """Pass the result to the gate."""
        assert self._token is not None
        CALL_GATE.reset(self._token)
        self._calls.__exit__(error_class, error, traceback)

    @property
    def interval_seconds(self) -> float:
        """Seconds between requests under the rate limit; 0.0 if there is none."""
        return self._calls.interval_seconds

    def record_status(self, status: int) -> None:
        """Record the status of a response."""
        self._calls.record_status(status)

    async def wait(self, *, has_priority: bool = False) -> None:
        """Wait until the next request may be sent; raises ``GateClosedError``."""
        if not self._calls.may_send_now:
            await self._calls.wait(has_priority=has_priority)
        if self._has_called:
            reach(Failpoint.WORKER_BETWEEN_CALLS, self._operation)
        self._has_called = True
