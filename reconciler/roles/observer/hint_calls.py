"""Calls for hints: the gate of their API holds for them, and they say nothing of its health.

Nothing depends on a hint. So a call for one does not wait at a closed gate, and is never the probe
of a breaker: one for which only the feed is broken would open again, and keep all actions away.
For the same reason its failures are not counted. That the API wants fewer calls is learned.
"""

from __future__ import annotations

from contextvars import Token
from typing import Self

from reconciler.call_permit import CALL_PERMIT, CallPermit
from reconciler.errors import ProviderError
from reconciler.roles.gate.api_gate import ApiGate


class HintCalls:
    """Lets the requests for a hint through: a context."""

    __slots__ = ("_config", "_gate", "_token")

    def __init__(self, gate: ApiGate, config: str) -> None:
        self._gate = gate
        self._config = config
        self._token: Token[CallPermit | None] | None = None

    def __enter__(self) -> Self:
        """Let the requests of this task ask here."""
        self._token = CALL_PERMIT.set(self)
        return self

    def __exit__(self, _class: object, error: BaseException | None, _traceback: object) -> None:
        """Learn whether the API wants to be left alone."""
        assert self._token is not None
        CALL_PERMIT.reset(self._token)
        if isinstance(error, ProviderError):
            self._gate.saw_wish(error, self._config)

    @property
    def is_free(self) -> bool:
        """Whether the next request may be sent at once."""
        return self._gate.is_open and self._gate.knows_log

    @property
    def pace_seconds(self) -> float:
        """How far apart the rate limit keeps two requests; 0.0 without one."""
        return self._gate.pace_seconds

    async def wait(self, *, goes_first: bool = False) -> None:
        """Wait for the rate limit alone; raises ``TurnedAwayError`` while the gate is closed."""
        gate = self._gate
        if not gate.knows_log:
            await gate.until_log_known()
        gate.keep_out(self._config)
        if gate.limiter is not None:
            await gate.limiter.take(goes_first=goes_first)
