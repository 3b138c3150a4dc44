"""Calls for hints: they respect the gate of their API, but do not affect its health.

Nothing depends on a hint. Its calls do not wait at a closed gate, and are never a breaker's probe:
otherwise, a broken feed alone would keep the breaker open and block all actions. For the same
reason, their failures do not count, but throttling does.
"""

from __future__ import annotations

from contextvars import Token
from typing import Self

from reconciler.errors import ProviderError
from reconciler.provider.call_permit import CALL_GATE, CallGate
from reconciler.roles.gate.api_gate import ApiGate


class HintCalls:
    """Context that permits the requests for a hint."""

    __slots__ = ("_config", "_gate", "_token")

    def __init__(self, gate: ApiGate, config: str) -> None:
        self._gate = gate
        self._config = config
        self._token: Token[CallGate | None] | None = None

    def __enter__(self) -> Self:
        """Make this object the permit of the current task."""
        self._token = CALL_GATE.set(self)
        return self

    def __exit__(self, _class: object, error: BaseException | None, _traceback: object) -> None:
        """Report throttling by the API to the gate."""
        assert self._token is not None
        CALL_GATE.reset(self._token)
        if isinstance(error, ProviderError):
            self._gate.report_throttling(error, self._config)

    @property
    def may_send_now(self) -> bool:
        """Whether the next request may be sent immediately."""
        return self._gate.may_send_now

    @property
    def interval_seconds(self) -> float:
        """Seconds between requests under the rate limit; 0.0 if there is none."""
        return self._gate.interval_seconds

    def record_status(self, status: int) -> None:
        """Ignore the status, because the calls do not affect the API's health."""

    async def wait(self, *, has_priority: bool = False) -> None:
        """Wait only for the rate limit; raises ``GateClosedError`` while the gate is closed."""
        gate = self._gate
        if not gate.is_log_certain:
            await gate.wait_for_log()
        gate.check_open(self._config)
        if gate.limiter is not None:
            await gate.limiter.take(has_priority=has_priority)
