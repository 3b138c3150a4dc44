"""Report to a ``ProviderConfig`` that its API does not respond, or responds again (ADR 0080).

Reports are level-triggered: after each listing, the observer compares the results of this process's
calls with the log, so a lost report is repeated, and an unchanged API does not cause messages.
"""

from __future__ import annotations

from typing import Final, Literal

import structlog

from events.intake import ApiReported
from events.provider_config import config_key
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.ports import IntakeMessageOut, IntakeWriter
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.runtime.runtime import REAL, Runtime

REPEAT_SECONDS: Final = 5.0
"""Minimum time between equal reports, because several kinds of an API are listed separately."""

_State = Literal["Silent", "SilenceEnded"]
_logger = structlog.get_logger(__name__)


class SilenceReports:
    """Reports changes in whether APIs respond to this process."""

    def __init__(
        self,
        *,
        name: str,
        intake: IntakeWriter,
        models: ReadModels,
        gates: ApiGates,
        runtime: Runtime = REAL,
    ) -> None:
        self._name = name
        self._intake = intake
        self._models = models
        self._gates = gates
        self._now = runtime.now
        self._clock = runtime.clock
        self._new_id = runtime.new_id
        self._reported_at: dict[tuple[str, _State, int], float] = {}

    async def update(self, config_name: str, *, is_read: bool = True) -> None:
        """Report a change since the newest event about whether the API responds.

        If the observer has nothing to read from the API, a silence ends: no response could end it,
        and no object depends on it.
        """
        row = self._models.status.get(str(config_key(config_name)))
        if row is None:
            return
        gate = self._gates.of(config_name)
        silent_seconds = gate.silent_seconds
        if row.silent_since is None and silent_seconds is not None and is_read:
            await self._report("Silent", row, silent_seconds)
        elif row.silent_since is not None and (gate.responds or not is_read):
            await self._report("SilenceEnded", row)

    async def _report(self, state: _State, row: StatusRow, silent_seconds: float = 0.0) -> None:
        report: tuple[str, _State, int] = (row.name, state, row.silence_version)
        now = self._clock()
        if now < self._reported_at.get(report, float("-inf")) + REPEAT_SECONDS:
            return
        seconds = round(silent_seconds, 3)
        data = ApiReported(
            state, self._name, self._now(), row.silence_version, silent_seconds=seconds
        )
        message = IntakeMessageOut("result", row.key, data, self._new_id())
        try:
            await self._intake.publish([message])
        except Exception as error:  # noqa: BLE001 - such as an unreachable bus
            _logger.warning(
                "failed to report whether an API responds", config=row.name, error=str(error)
            )
            return
        self._reported_at = {
            each: at for each, at in self._reported_at.items() if each[0] != row.name
        }
        self._reported_at[report] = now
