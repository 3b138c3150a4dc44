"""What is wanted of the external object, derived from the state: the inputs of the comparison."""

from __future__ import annotations

from events.external import ExternalObject
from events.log import FieldDifference
from events.manifest import Policy, ProviderConfigSpec
from reconciler.shape.differences import LABELS, Wanted, differences, without_ignored
from reconciler.shape.inputs import Context
from reconciler.shape.owner_label import OWNER_LABEL
from reconciler.shape.state import ShapeState


def config_of(state: ShapeState, context: Context) -> ProviderConfigSpec | None:
    """Find the configuration that the shape uses, or None if it is not declared."""
    return context.configs.get(config_name(state))


def config_name(state: ShapeState) -> str:
    """Name the configuration that the shape uses: where it lives, shall live, or was seen."""
    if state.owned is not None:
        return state.owned.provider_config
    if state.spec is not None and (state.declared or state.observed is None):
        return state.spec.provider_config
    return state.observed_in


def wanted(state: ShapeState, context: Context) -> Wanted:
    """Give the content that the object should have; the shape must have a spec."""
    assert state.spec is not None
    applied = state.applied
    return Wanted(
        state.spec.fields,
        labels_of(state, context),
        applied_fields=None if applied is None else applied.fields,
        applied_labels=None if applied is None else applied.labels,
        ignored=ignored_paths(state.spec.policy),
    )


def ignored_paths(policy: Policy) -> tuple[str, ...]:
    """Give the paths that are left to others: our own label too, if it shall not be put back."""
    if policy.owner_label == "Report":
        return (*policy.ignore_fields, f"{LABELS}.{OWNER_LABEL}")
    return policy.ignore_fields


def labels_of(state: ShapeState, context: Context) -> dict[str, str]:
    """Give the labels that the object should carry: the declared ones, and our owner label.

    An object that is only observed is not ours to label.
    """
    assert state.spec is not None
    capabilities = None if context.kind is None else context.kind.capabilities
    if capabilities is not None and not capabilities.labels:
        return {}
    if state.spec.policy.mode == "ObserveOnly" and state.owned is None:
        return state.spec.labels
    return {**state.spec.labels, OWNER_LABEL: context.owner}


def open_differences(state: ShapeState, context: Context) -> tuple[FieldDifference, ...]:
    """Compare the desired with the observed object; empty if there is none of either."""
    return () if state.observed is None else differences_of(state, state.observed, context)


def differences_of(
    state: ShapeState, seen: ExternalObject, context: Context
) -> tuple[FieldDifference, ...]:
    """Compare the desired with an object; empty if nothing is desired."""
    if state.spec is None or context.kind is None:
        return ()
    return differences(wanted(state, context), seen, context.kind.normalize)


def api_keeps_its_own(state: ShapeState, context: Context) -> bool:
    """Tell whether what differs is what the API made of exactly this write.

    Writing it again would change nothing but make a hot loop.
    """
    applied = state.applied
    if applied is None or applied.result is None or state.observed is None:
        return False
    return _same(applied.result, state.observed) and is_applied(state, context)


def is_applied(state: ShapeState, context: Context) -> bool:
    """Tell whether what is wanted now is what was last applied: else a difference is no drift."""
    applied, spec = state.applied, state.spec
    if applied is None or spec is None:
        return False
    ignored = ignored_paths(spec.policy)
    labels = without_ignored(labels_of(state, context), ignored, f"{LABELS}.")
    return (applied.fields, applied.labels) == (without_ignored(spec.fields, ignored), labels)


def _same(left: ExternalObject, right: ExternalObject) -> bool:
    return left.fields == right.fields and left.labels == right.labels and left.uid == right.uid


def grace_seconds(context: Context, config_name: str) -> float:
    """Give how long the API may take to show an effect: as declared, or as its provider says."""
    config = context.configs.get(config_name)
    capabilities = None if context.kind is None else context.kind.capabilities
    return max(
        0.0 if config is None else config.consistency_grace_seconds,
        0.0 if capabilities is None else capabilities.consistency_grace_seconds,
    )
