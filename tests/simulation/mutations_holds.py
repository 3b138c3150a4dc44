"""Defects in the holds of a resource: finalizers, references, guards, approvals, damage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from events.external import ExternalObject
from events.integrity import HistoryChain
from events.log import FinalizerRemoved, HoldApproved, OwnershipClaimed
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.provider.data_check import DataCheck
from reconciler.resource import (
    approval,
    decide,
    evolve,
    holds,
    next_step,
    observation,
    replacement,
)
from reconciler.resource.state import NEW
from reconciler.resource.turn import NOTHING_NEW, CommandResult
from reconciler.roles.decider import repository
from reconciler.roles.decider.repository import Commit, ResourceRepository
from reconciler.roles.objects.twins import Comparison, TwinDetector
from reconciler.roles.observer.listing import ListingAssembler
from reconciler.roles.projector.scrubber import Scrubber
from reconciler.roles.runtime.secret_guard import GuardedProvider
from reconciler.roles.sweeper import sweeper
from tests.simulation.mutation import Mutation, Patch

_original_fold_data: Any = evolve._fold_data  # pyright: ignore[reportPrivateUsage]


def _nothing(*_args: Any, **_rest: Any) -> None:
    return None


def _finalizers_ignored(patch: Patch) -> None:
    patch.setattr(next_step, "_hold_for_finalizers", _nothing)


def _any_actor_removes_finalizers(patch: Patch) -> None:
    original = holds.release_finalizer

    def release(command_data: Any, command: Any, state: Any) -> Any:
        with_actor_as_holder = [
            replace(each, holder=command.actor) for each in state.holds.finalizers
        ]
        deceived = replace(state.holds, finalizers=tuple(with_actor_as_holder))
        return original(command_data, command, replace(state, holds=deceived))

    patch.setattr(holds, "release_finalizer", release)


def _finalizers_are_never_removed(patch: Patch) -> None:
    def after(state: Any, event: Any) -> Any:
        folded = _original_fold_data(state, event)
        if not isinstance(event.data, FinalizerRemoved):
            return folded
        return replace(folded, holds=replace(folded.holds, finalizers=state.holds.finalizers))

    patch.setattr(evolve, "_fold_data", after)


def _finalizers_not_shown(patch: Patch) -> None:
    def is_deleted(row: StatusRow) -> bool:
        return not (
            row.declared or row.owned or row.observed_digest or row.action_id or row.references
        )

    patch.setattr(StatusRow, "is_gone", property(is_deleted))


def _references_do_not_hold_deletions(patch: Patch) -> None:
    def references_with_policy(*_: Any) -> list[str]:
        return []

    patch.setattr(next_step, "references_with_policy", references_with_policy)


def _references_are_not_reported(patch: Patch) -> None:
    def no_messages(*_: Any) -> list[Any]:
        return []

    patch.setattr(sweeper, "target_messages", no_messages)
    patch.setattr(sweeper, "referrer_messages", no_messages)


def _dangling_reported_once(patch: Patch) -> None:
    """A reference whose target was once missing never checks it again."""

    original = holds.record_target

    def see_target(command_data: Any, state: Any) -> CommandResult:
        return (
            NOTHING_NEW
            if command_data.target in state.desired.targets
            else original(command_data, state)
        )

    patch.setattr(holds, "record_target", see_target)


def _deletion_guard_ignored(patch: Patch) -> None:
    patch.setattr(next_step, "_hold_for_deletion_guard", _nothing)


def _loss_guard_ignored(patch: Patch) -> None:
    patch.setattr(observation, "_doubt_absence", _nothing)


def _approvals_have_no_effect(patch: Patch) -> None:
    def after(state: Any, event: Any) -> Any:
        folded = _original_fold_data(state, event)
        if not isinstance(event.data, HoldApproved):
            return folded
        return replace(folded, holds=replace(folded.holds, approved="", approved_loss=""))

    patch.setattr(evolve, "_fold_data", after)


def _approval_is_not_requested(patch: Patch) -> None:
    def require_approval(step: Any, *_: Any) -> Any:
        return step

    patch.setattr(decide, "require_approval", require_approval)


def _approvals_outlive_their_holds(patch: Patch) -> None:
    """The plan's digest leaves out the observed object."""
    original = approval._digest  # pyright: ignore[reportPrivateUsage]

    def digest(action: Any, state: Any, context: Any) -> str:
        blind = replace(state, observed=replace(state.observed, object=None))
        return original(replace(action, fields={}, labels={}), blind, context)

    patch.setattr(approval, "_digest", digest)


def _declared_resources_released_by_force(patch: Patch) -> None:
    original = holds.force_release

    def force(command_data: Any, command: Any, state: Any, context: Any) -> CommandResult:
        undeclared = replace(state.desired, is_declared=False)
        return original(command_data, command, replace(state, desired=undeclared), context)

    patch.setattr(holds, "force_release", force)


def _unmanaged_objects_are_deleted(patch: Patch) -> None:
    """An object that is declared absent is deleted even if it is unmanaged."""

    def keep_absent(spec: Any, situation: Any) -> Any:
        existing, config = situation.comparison.existing, situation.state.observed.provider_config
        if existing is not None:
            return OwnershipClaimed(existing.name, existing.uid, "Adopted", config)
        return _original_keep_absent(spec, situation)

    patch.setattr(next_step, "_keep_absent", keep_absent)


_original_keep_absent: Any = next_step._keep_absent  # pyright: ignore[reportPrivateUsage]


def _broken_listings_are_trusted(patch: Patch) -> None:
    def complete(self: Any, _count: int) -> Mapping[str, ExternalObject]:
        return self._objects

    patch.setattr(ListingAssembler, "complete", complete)


def _the_log_is_not_scrubbed(patch: Patch) -> None:
    patch.setattr(Scrubber, "scrub", _skip_scrub)


async def _skip_scrub(_self: Any, **_rest: Any) -> int:
    return 0


def _damaged_histories_folded(patch: Patch) -> None:
    """A damaged history is folded as if it were complete."""

    def unchecked(*_: Any) -> None:
        return

    for check in ("_check_order", "_check_digest"):
        patch.setattr(HistoryChain, check, unchecked)
    patch.setattr(repository, "fold", _fold_unchecked)


def _fold_unchecked(events: Any, state: Any = NEW) -> Any:
    for event in events:
        state = evolve.evolve(state, event)
    return state


def _released_objects_keep_their_label(patch: Patch) -> None:
    patch.setattr(next_step, "_remove_owner_label", _nothing)


def _newer_objects_are_not_detected(patch: Patch) -> None:
    async def report(*_: Any) -> Comparison:
        return Comparison(must_wait=False)

    patch.setattr(TwinDetector, "report", report)


def _a_held_api_is_written_to(patch: Patch) -> None:
    def hold_for_twin(step: Any, _context: Any) -> Any:
        return step

    patch.setattr(decide, "hold_for_twin", hold_for_twin)


def _a_new_scope_needs_no_approval(patch: Patch) -> None:
    patch.setattr(next_step, "hold_for_new_scope", _nothing)


def _data_is_not_read_before_the_call(patch: Patch) -> None:
    async def check_data(_self: Any, _action: Any) -> None: ...

    patch.setattr(GuardedProvider, "_check_data", check_data)


def _newer_data_does_not_stop_a_call(patch: Patch) -> None:
    patch.setattr(DataCheck, "compare", _nothing)


def _data_is_lost_without_approval(patch: Patch) -> None:
    patch.setattr(replacement, "_hold_for_loss", _nothing)


def _replaced_objects_lose_their_data(patch: Patch) -> None:
    patch.setattr(replacement, "_hold_for_loss_by_retirement", _nothing)


def _users_of_a_configuration_are_not_counted(patch: Patch) -> None:
    def users(_self: Any, _config: str) -> Mapping[str, None]:
        return {}

    patch.setattr(ReadModels, "users", users)


def _a_withdrawn_configuration_gets_new_users(patch: Patch) -> None:
    def hold_for_withdrawn_config(step: Any, _state: Any, _context: Any) -> Any:
        return step

    patch.setattr(decide, "hold_for_withdrawn_config", hold_for_withdrawn_config)


def _a_move_is_stored_in_two_batches(patch: Patch) -> None:
    async def commit_together(self: ResourceRepository, commits: Sequence[Commit]) -> bool:
        for each in commits:
            if await self.commit([each]):
                return False
        return True

    patch.setattr(ResourceRepository, "commit_together", commit_together)


HOLD_MUTATIONS: tuple[Mutation, ...] = (
    Mutation("data is not read before the call", _data_is_not_read_before_the_call),
    Mutation("newer data does not stop a call", _newer_data_does_not_stop_a_call),
    Mutation("data is lost without approval", _data_is_lost_without_approval),
    Mutation("replaced objects lose their data", _replaced_objects_lose_their_data),
    Mutation("newer objects are not detected", _newer_objects_are_not_detected),
    Mutation("a held API is written to", _a_held_api_is_written_to),
    Mutation("a new scope needs no approval", _a_new_scope_needs_no_approval),
    Mutation("finalizers ignored", _finalizers_ignored),
    Mutation("any actor removes a finalizer", _any_actor_removes_finalizers),
    Mutation("finalizers are never removed", _finalizers_are_never_removed),
    Mutation("finalizers not shown", _finalizers_not_shown),
    Mutation("references do not hold deletions", _references_do_not_hold_deletions),
    Mutation("references are not reported", _references_are_not_reported),
    Mutation("a dangling reference is reported once", _dangling_reported_once),
    Mutation("deletion guard ignored", _deletion_guard_ignored),
    Mutation("loss guard ignored", _loss_guard_ignored),
    Mutation("approval is not requested", _approval_is_not_requested),
    Mutation("approvals outlive their plan", _approvals_outlive_their_holds),
    Mutation("approvals have no effect", _approvals_have_no_effect),
    Mutation("forced release of declared resources", _declared_resources_released_by_force),
    Mutation("unmanaged objects are deleted", _unmanaged_objects_are_deleted),
    Mutation("broken listings are trusted", _broken_listings_are_trusted),
    Mutation("released objects keep their label", _released_objects_keep_their_label),
    Mutation("the log is not scrubbed", _the_log_is_not_scrubbed),
    Mutation("damaged histories folded", _damaged_histories_folded),
    Mutation("users of a configuration ignored", _users_of_a_configuration_are_not_counted),
    Mutation("a withdrawn configuration gets new users", _a_withdrawn_configuration_gets_new_users),
    Mutation("a move is stored in two batches", _a_move_is_stored_in_two_batches),
)
