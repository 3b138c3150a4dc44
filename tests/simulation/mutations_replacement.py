"""Defects in the replacement of objects (ADR 0026), and in the owners of names (ADR 0084)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from events.log import Action, ActionSucceeded, LogEvent
from projections import status
from projections.ownership import NameOwners
from projections.status import StatusRow
from reconciler.resource import evolve, next_step
from reconciler.resource.situation import Situation
from reconciler.resource.state import Ended, InFlight, ResourceState, Spec
from reconciler.resource.turn import Step
from reconciler.roles.observer import listing
from reconciler.roles.observer.listing import ListingAssembler
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


def _a_free_name_is_not_reported(patch: Patch) -> None:
    original = vars(listing)["_find_other_owner"]

    def find_other_owner(
        began: ListingAssembler,
        names: NameOwners,
        row: StatusRow,
        rows: Sequence[StatusRow],
        *,
        all_rows: Mapping[str, StatusRow],
    ) -> str:
        return original(began, names, row, rows, all_rows=all_rows) or row.belongs_to

    patch.setattr(listing, "_find_other_owner", find_other_owner)


def _the_owner_of_a_name_is_ignored(patch: Patch) -> None:
    original = vars(next_step)["_create"]

    def create(spec: Spec, situation: Situation) -> Step:
        state = situation.state
        observed = replace(state.observed, belongs_to="")
        return original(spec, replace(situation, state=replace(state, observed=observed)))

    patch.setattr(next_step, "_create", create)


REPLACEMENT_MUTATIONS = (
    Mutation("replaced objects are forgotten", _replaced_objects_are_forgotten),
    Mutation("a replacement has no name", _a_replacement_has_no_name_in_the_rows),
    Mutation("a free name is not reported", _a_free_name_is_not_reported),
    Mutation("the owner of a name is ignored", _the_owner_of_a_name_is_ignored),
)
