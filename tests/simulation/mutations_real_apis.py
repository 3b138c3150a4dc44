"""Defects in the support of real APIs (ADR 0025 to 0032)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from events.external import ExternalObject
from events.log import Action
from events.provider_config import ProviderConfigSpec
from projections.status import StatusRow
from reconciler.provider import Capabilities
from reconciler.provider.kind import Readiness, always_ready
from reconciler.resource import attempt, next_step, renewal, result
from reconciler.resource.situation import Situation
from reconciler.resource.state import Spec
from reconciler.resource.turn import Conclusion, Context, Step
from reconciler.roles.observer.object_reads import ObjectReads
from reconciler.roles.sweeper.sweeper import Sweeper
from tests.simulation.mutation import Mutation, Patch
from tests.simulation.provider import SimulatedProvider

# --- time


def _no_renewal_is_due(patch: Patch) -> None:
    def never(
        observed_object: ExternalObject, _spec: Spec, _situation: Situation, otherwise: Conclusion
    ) -> Step:
        return otherwise

    patch.setattr(next_step, "renewal_step", never)


def _renewed_by_the_deciders_own_clock(patch: Patch) -> None:
    original = renewal.renewal_step

    def renewal_step(
        observed_object: ExternalObject, spec: Spec, situation: Situation, otherwise: Conclusion
    ) -> Step:
        without = replace(situation.context, bus_time=None)
        return original(observed_object, spec, replace(situation, context=without), otherwise)

    patch.setattr(next_step, "renewal_step", renewal_step)


def _only_timers_trigger_renewals(patch: Patch) -> None:
    original: Any = vars(Sweeper)["_to_wake"]

    def to_wake(
        self: Any, rows: Iterable[StatusRow], held: Iterable[StatusRow], overdue: Any
    ) -> Any:
        bare = [row for row in rows if row.renewal_at is None]
        return original(self, bare, held, overdue)

    patch.setattr(Sweeper, "_to_wake", to_wake)


# --- readiness


def _replaced_objects_do_not_wait_for_the_new_one(patch: Patch) -> None:
    original: Any = vars(next_step)["_conclude_as_declared"]

    def as_declared(observed_object: ExternalObject, spec: Spec, situation: Situation) -> Step:
        always = dataclasses.replace(situation.kind, ready=always_ready)
        if situation.state.retiring is not None:
            situation = replace(situation, kind=always)
        return original(observed_object, spec, situation)

    patch.setattr(next_step, "_conclude_as_declared", as_declared)


def _readiness_is_reported_once(patch: Patch) -> None:
    original: Any = vars(next_step)["_conclude_as_declared"]

    def as_declared(observed_object: ExternalObject, spec: Spec, situation: Situation) -> Step:
        step = original(observed_object, spec, situation)
        last = situation.state.outcome
        if isinstance(step, Conclusion) and last is not None and last.outcome == "Converged":
            condition = next(each for each in last.conditions if each.type == "Ready")
            return replace(
                step,
                ready=Readiness(condition.status == "True", condition.reason, condition.message),
            )
        return step

    patch.setattr(next_step, "_conclude_as_declared", as_declared)


# --- an API without a listing


def _unlisted_objects_are_not_read(patch: Patch) -> None:
    async def read(
        self: ObjectReads, _rows: Iterable[StatusRow], _config: ProviderConfigSpec
    ) -> int:
        return 0

    patch.setattr(ObjectReads, "read_all", read)


# --- ids assigned by the server


def _labeled_objects_are_recreated(patch: Patch) -> None:
    def always(_action: Action, _capabilities: Capabilities) -> bool:
        return True

    patch.setattr(attempt, "is_safe_to_repeat", always)


def _objects_are_identified_by_name(patch: Patch) -> None:
    original: Any = SimulatedProvider.read

    async def read(self: Any, external_name: str, _uid: str | None = None) -> Any:
        return await original(self, external_name)

    patch.setattr(SimulatedProvider, "read", read)


# --- effects of several calls


def _partly_created_objects_have_no_owner(patch: Patch) -> None:
    def never(existing: ExternalObject | None, _action: Action, _context: Context) -> bool:
        return False

    patch.setattr(result, "_is_partial_creation", never)


REAL_API_MUTATIONS = (
    Mutation("no renewal is ever due", _no_renewal_is_due),
    Mutation("renewal by the decider's own clock", _renewed_by_the_deciders_own_clock),
    Mutation("only timers trigger renewals", _only_timers_trigger_renewals),
    Mutation("replaced before the new is ready", _replaced_objects_do_not_wait_for_the_new_one),
    Mutation("readiness is reported once", _readiness_is_reported_once),
    Mutation("unlisted objects are not read", _unlisted_objects_are_not_read),
    Mutation("labeled objects are recreated", _labeled_objects_are_recreated),
    Mutation("objects are identified by name", _objects_are_identified_by_name),
    Mutation("partly created objects have no owner", _partly_created_objects_have_no_owner),
)
