"""Defects in references, secrets and definitions (ADR 0028, 0029, 0033)."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from events.intake import TargetState
from events.kind_definition import DefinitionRef
from events.reference import Reference
from projections.status import StatusRow
from reconciler.ports import IntakeMessageOut
from reconciler.provider.kind import KindRegistry
from reconciler.provider.secrets import Secrets
from reconciler.resource import availability, inputs, next_step, replacement
from reconciler.resource.situation import Situation
from reconciler.resource.state import Desired
from reconciler.resource.turn import Conclusion
from reconciler.roles.runtime import provider_pool
from reconciler.roles.sweeper import references, sweeper
from reconciler.roles.sweeper.reference_index import NamedSecret
from tests.simulation.mutation import Mutation, Patch

# --- references


def _a_value_is_looked_up_once(patch: Patch) -> None:
    original: Any = vars(references)["_target_state"]

    def state_of(
        row: StatusRow,
        reference: Reference,
        known: TargetState | None,
        every_row: Mapping[str, StatusRow],
        cycles: Mapping[str, tuple[str, ...]],
    ) -> TargetState:
        if known is not None and known.ready:
            return known
        return original(row, reference, known, every_row, cycles)

    patch.setattr(references, "_target_state", state_of)


def _unready_targets_are_not_waited_for(patch: Patch) -> None:
    original: Any = vars(inputs)["_waiting_for"]

    def waiting_for(reference: Reference, desired: Desired) -> Conclusion | None:
        waiting = original(reference, desired)
        return None if waiting is not None and waiting.reason == "NotReady" else waiting

    patch.setattr(inputs, "_waiting_for", waiting_for)


def _targets_need_not_stay_ready(patch: Patch) -> None:
    def must_stay_ready(_row: StatusRow, _target: StatusRow, _kinds: KindRegistry) -> bool:
        return False

    patch.setattr(references, "_must_stay_ready", must_stay_ready)


def _readiness_is_confirmed_early(patch: Patch) -> None:
    patch.setattr(availability, "REPLACEMENT_READY_SECONDS", 1.0)


def _references_are_not_reported_to_their_target(patch: Patch) -> None:
    def current_references(*_of_a_target: object) -> dict[str, Any]:
        return {}

    patch.setattr(references, "_current_references", current_references)


def _withdrawn_referrers_do_not_hold_deletions(patch: Patch) -> None:
    original: Any = vars(references)["_current_references"]

    def current_references(*of_a_target: Any) -> dict[str, tuple[StatusRow, Reference]]:
        result = original(*of_a_target)
        return {by: each for by, each in result.items() if each[0].declared}

    patch.setattr(references, "_current_references", current_references)


# --- secrets


def _a_rotation_is_not_detected(patch: Patch) -> None:
    original = references.secret_messages

    def secret_messages(
        row: StatusRow, digests: Mapping[NamedSecret, str]
    ) -> list[IntakeMessageOut]:
        return [] if any(row.secrets.values()) else original(row, digests)

    patch.setattr(sweeper, "secret_messages", secret_messages)


def _a_digest_is_the_secret(patch: Patch) -> None:
    def digest(_self: Secrets, value: str) -> str:
        return value

    patch.setattr(Secrets, "digest", digest)


def _an_error_contains_a_secret(patch: Patch) -> None:
    def guard_provider(provider: Any, _secrecy: object, _learn: object) -> Any:
        return provider

    patch.setattr(provider_pool, "guard_provider", guard_provider)


# --- definitions


def _a_new_definition_reaches_no_resource(patch: Patch) -> None:
    def nothing(
        _definition: DefinitionRef,
        _kind: str,
        _rows: Mapping[str, StatusRow],
        _damaged: Container[str],
    ) -> list[IntakeMessageOut]:
        return []

    patch.setattr(sweeper, "definition_messages", nothing)


def _a_new_definition_skips_its_guard(patch: Patch) -> None:
    def never(_situation: Situation) -> Conclusion | None:
        return None

    for module in (replacement, next_step):
        patch.setattr(module, "hold_for_definition", never)


INPUT_MUTATIONS = (
    Mutation("a reference's value is looked up once", _a_value_is_looked_up_once),
    Mutation("unready objects are not awaited", _unready_targets_are_not_waited_for),
    Mutation("readiness of a moment counts", _targets_need_not_stay_ready),
    Mutation("readiness is confirmed early", _readiness_is_confirmed_early),
    Mutation(
        "a target has no record of its referrers", _references_are_not_reported_to_their_target
    ),
    Mutation(
        "withdrawn referrers do not hold deletions", _withdrawn_referrers_do_not_hold_deletions
    ),
    Mutation("a rotation is not detected", _a_rotation_is_not_detected),
    Mutation("a digest is the secret", _a_digest_is_the_secret),
    Mutation("an error contains a secret", _an_error_contains_a_secret),
    Mutation("a new definition reaches no resource", _a_new_definition_reaches_no_resource),
    Mutation("a new definition skips its guard", _a_new_definition_skips_its_guard),
)
