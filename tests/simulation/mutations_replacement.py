"""Defects in the replacement of objects that cannot be changed (ADR 0026)."""

from __future__ import annotations

from msgspec.structs import replace

from events.log import Action, ActionSucceeded, LogEvent
from projections import status
from projections.status import StatusRow
from reconciler.resource import evolve
from reconciler.resource.state import Ended, InFlight, ResourceState
from tests.simulation.mutation import Mutation, Patch


def _replaced_objects_are_forgotten(patch: Patch) -> None:
    original = vars(evolve)["_with_result"]

    def with_result(
        state: ResourceState, ended: InFlight | Ended | None, data: ActionSucceeded, event: LogEvent
    ) -> ResourceState:
        return replace(original(state, ended, data, event), retiring=None)

    patch.setattr(evolve, "_with_result", with_result)


def _a_replacement_has_no_name_in_the_rows(patch: Patch) -> None:
    original = vars(status)["_start_attempt"]

    def start_attempt(row: StatusRow, action: Action, attempt: int) -> None:
        original(row, action, attempt)
        row.pending_name = ""

    patch.setattr(status, "_start_attempt", start_attempt)


REPLACEMENT_MUTATIONS = (
    Mutation("replaced objects are forgotten", _replaced_objects_are_forgotten),
    Mutation("a replacement has no name", _a_replacement_has_no_name_in_the_rows),
)
