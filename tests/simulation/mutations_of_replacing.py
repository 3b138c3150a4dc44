"""Defects of replacing what cannot be changed (ADR 0026), each of which has to be noticed."""

from __future__ import annotations

from msgspec.structs import replace

from events.log import Action, ActionSucceeded, LogEvent
from projections import status
from projections.status import StatusRow
from reconciler.resource import evolve
from reconciler.resource.state import Ended, InFlight, ResourceState
from tests.simulation.mutation import Mutation, Patch


def _replaced_objects_are_forgotten(patch: Patch) -> None:
    really = vars(evolve)["_with_result"]

    def with_result(
        state: ResourceState, ended: InFlight | Ended | None, data: ActionSucceeded, event: LogEvent
    ) -> ResourceState:
        return replace(really(state, ended, data, event), retiring=None)

    patch.setattr(evolve, "_with_result", with_result)


def _a_replacement_has_no_name_in_the_rows(patch: Patch) -> None:
    really = vars(status)["_start_attempt"]

    def begun(row: StatusRow, action: Action, attempt: int) -> None:
        really(row, action, attempt)
        row.pending_name = ""

    patch.setattr(status, "_start_attempt", begun)


MUTATIONS_OF_REPLACING = (
    Mutation("replaced objects are forgotten", _replaced_objects_are_forgotten),
    Mutation("a replacement has no name", _a_replacement_has_no_name_in_the_rows),
)
