"""What somebody declares: kept present, or kept away."""

from __future__ import annotations

from msgspec.structs import replace

from events.external import ExternalObject
from events.log import FieldDifference, OwnershipClaimed
from events.manifest import Policy, ProviderConfigSpec
from reconciler.shape.actions import new_action
from reconciler.shape.desired import api_keeps_its_own, labels_of, open_differences, wanted
from reconciler.shape.differences import merged
from reconciler.shape.inputs import Context
from reconciler.shape.letting_go import claimed, disputed, remove
from reconciler.shape.owner_label import OWNER_LABEL
from reconciler.shape.ownership import evidence, verdict
from reconciler.shape.standing import Standing, Step
from reconciler.shape.state import ShapeState
from reconciler.shape.waiting import wait_after_conflicts


def keep_present(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    """Give the step for a shape that shall exist as it is declared."""
    assert state.spec is not None
    policy = state.spec.policy
    if state.observed is None:
        return _make(state, context, config, policy)
    found = open_differences(state, context)
    if state.owned is None and policy.mode != "ObserveOnly":
        return _take_over(state, state.observed, context, config)
    if state.owned is not None:
        judged = verdict(evidence(state, state.observed, context, config), config.ownership)
        if judged.owner == "disputed":
            # Writing our label over another's would be a fight, if its owner does the same.
            return disputed(judged, state.observed)
    if not found:
        return _as_declared(state, state.observed, context)
    if policy.mode != "Present":
        return Standing("Drifted", policy.mode, "would change " + _described(found))
    if state.failed_generation == state.generation:
        return _failed(state)
    if api_keeps_its_own(state, context):
        return Standing(
            "Degraded", "NotAccepted", "the API took the write, but keeps " + _described(found)
        )
    return wait_after_conflicts(state, context, config) or _update(state, state.observed, context)


def _make(state: ShapeState, context: Context, config: ProviderConfigSpec, policy: Policy) -> Step:
    if policy.mode == "ObserveOnly":
        return Standing("Drifted", "ObserveOnly", "it does not exist; would create it")
    if policy.mode == "CreateOnly" and state.created_before:
        return Standing("Drifted", "CreateOnly", "it is gone; would create it again")
    if state.failed_generation == state.generation:
        return _failed(state)
    assert state.spec is not None
    return wait_after_conflicts(state, context, config) or new_action(
        state, context, "Create", state.spec.fields, labels_of(state, context)
    )


def _as_declared(state: ShapeState, found: ExternalObject, context: Context) -> Standing:
    """Nothing differs; a label that shall not be put back may still be missing."""
    assert state.spec is not None
    expected = OWNER_LABEL in labels_of(state, context)
    if state.owned is not None and expected and OWNER_LABEL not in found.labels:
        return Standing(
            "Disputed", "LabelMissing", "the log says that it is ours, its label is gone"
        )
    return Standing("Converged", "AsDeclared")


def _take_over(
    state: ShapeState, found: ExternalObject, context: Context, config: ProviderConfigSpec
) -> Step:
    """An object of that name is there, and the log does not say that it is ours."""
    assert state.spec is not None
    policy = state.spec.policy
    if state.taken_by:
        return Standing("Conflict", "OwnedByAnother", f"{state.taken_by} has it: name another one")
    said = replace(evidence(state, found, context, config), referenced=False)
    judged = verdict(said, config.ownership)
    if judged.claim is not None:
        return claimed(state, found, judged.claim)
    if said.label == "another's" and policy.adoption == "Adopt":
        return Standing(
            "Conflict", "OwnedByAnother", f"its owner label is {found.labels[OWNER_LABEL]!r}"
        )
    if policy.adoption == "Adopt":
        return OwnershipClaimed(found.name, found.uid, "Adopted", state.observed_in)
    return Standing(
        "Conflict",
        "AlreadyExists",
        f"{found.name!r} exists and is not ours: declare it with policy.adoption Adopt, "
        "or under another name",
    )


def _update(state: ShapeState, found: ExternalObject, context: Context) -> Step:
    assert context.kind is not None
    fields, labels = merged(wanted(state, context), found, context.kind.normalize)
    return new_action(state, context, "Update", fields, labels, found)


def keep_away(state: ShapeState, context: Context, config: ProviderConfigSpec) -> Step:
    """Give the step for a shape that is declared absent."""
    assert state.spec is not None
    if state.observed is None and state.owned is None:
        return Standing("Converged", "Absent")
    if state.owned is None and state.observed is not None:
        return _take_over(state, state.observed, context, config)
    return remove(state, context, config)


def _failed(state: ShapeState) -> Standing:
    message = "" if state.failure is None else state.failure.message
    return Standing("Failed", "Permanent", message or "the API refused this generation")


def _described(found: tuple[FieldDifference, ...]) -> str:
    return ", ".join(
        f"{each.path}: {each.observed!r} (declared {each.desired!r})" for each in found
    )
