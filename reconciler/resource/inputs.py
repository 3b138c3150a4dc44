"""Inputs of a spec: values of references, digests of secrets, and parts (ADR 0029)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from events.composition import CHILDREN, manifests_of
from events.external import ExternalObject
from events.hold import Hold
from events.log import AvailabilityNoted, SpecResolved
from events.manifest import Fields, InvalidManifestError
from events.names import InvalidNameError, ResourceKey
from events.reference import Reference, fill_references, may_refer
from events.secret import SecretRef
from reconciler.errors import UnknownKindError
from reconciler.provider.kind import ComposedKind, Kind, check_growth
from reconciler.resource.availability import (
    note_availability,
    note_flapping_parts,
    note_withheld,
    with_availability,
    with_ready_parts,
    without_momentary_readiness,
)
from reconciler.resource.progress import show_stall
from reconciler.resource.situation import Situation
from reconciler.resource.state import Desired, ResourceState, Spec
from reconciler.resource.turn import NOTHING_TO_REPORT, Conclusion, Step, on_hold


def resolve(spec: Spec, situation: Situation) -> Step | None:
    """Return the event with the resolved fields, a conclusion if a value is unknown, or None."""
    desired, kind, key = situation.state.desired, situation.kind, situation.context.key
    for reference in spec.references:
        waiting = _waiting_for(reference, desired)
        if waiting is not None:
            return waiting
    for secret in spec.secrets:
        if not desired.secrets.get(secret):
            ref = SecretRef.from_path(secret)
            label = ref.label(key.namespace)
            message = f"waiting for secret {label}: {_explain_missing(ref)}"
            return Conclusion("Waiting", "SecretMissing", message)
    fields = fill_references(spec.fields, key.namespace, desired.targets, desired.secrets)
    if desired.resolved is not None and _is_outdated(kind, desired):
        return None  # this process has not read the newer definition yet
    try:
        check_growth(spec.fields, fields)
        fields = kind.object_fields(kind.check_fields(fields))
    except InvalidManifestError as error:
        cause = (
            "the current definition of its kind"
            if kind.definition
            else "the current values of its references"
        )
        return Conclusion("Failed", "InvalidInput", f"the spec is invalid with {cause}: {error}")
    digest = "" if kind.definition is None else kind.definition.digest
    if (fields, digest) == (desired.resolved, desired.resolved_by):
        return None
    return SpecResolved(desired.generation, fields, digest)


def _is_outdated(kind: Kind, desired: Desired) -> bool:
    known = desired.definition
    return (
        known is not None
        and kind.definition is not None
        and kind.definition.generation < known.generation
    )


def compose(spec: Spec, situation: Situation) -> Step | None:  # noqa: C901 - one guard per step
    """Return the event with the current parts of a composed object, or a conclusion, or None."""
    desired, kind, context = situation.state.desired, situation.kind, situation.context
    composition = kind.composition
    assert composition is not None
    for reference in spec.references:
        waiting = _waiting_for(reference, desired)
        if waiting is not None:
            return waiting
    if desired.resolved is not None and _is_outdated(kind, desired):
        return None  # this process has not read the newer definition yet
    existing = situation.comparison.existing if situation.state.owned is not None else None
    digest = "" if kind.definition is None else kind.definition.digest
    fields, part = spec.fields, ""
    try:
        if kind.definition is not None:  # the definition may be newer than the declaration
            fields = kind.object_fields(kind.check_fields(fields))
        if existing is not None:
            min_seconds = composition.min_ready_seconds
            noted = (
                note_flapping_parts(existing, situation)
                if min_seconds is None
                else note_availability(min_seconds(fields), existing, situation)
            )
            if noted is not None:
                return noted
            existing = show_availability(existing, composition, situation.state)
            existing = show_stall(existing, spec, situation)
        content = composition.compose(context.key, fields, existing)
        if existing is not None and composition.min_ready_seconds is None:
            kept = _keep_dependent_parts(content, fields, composition, situation)
            if not isinstance(kept, dict):
                return kept
            content = kept
        if (content, digest) == (desired.resolved, desired.resolved_by):
            return None
        checked = set[tuple[str, str]]()
        for manifest in manifests_of(content):  # one invalid part causes all to be rejected
            part = f"{manifest.key}: "
            content_key = (manifest.kind, content[CHILDREN][str(manifest.key)])
            check = context.check_part_name if content_key in checked else context.check_part
            check(manifest)
            checked.add(content_key)
    except UnknownKindError as error:
        return on_hold(Hold.UNKNOWN_KIND, f"{part}{error}")
    except (InvalidManifestError, InvalidNameError) as error:
        return Conclusion("Failed", "InvalidInput", f"{part}{error}")
    return SpecResolved(desired.generation, content, digest)


def _keep_dependent_parts(
    content: Fields, fields: Fields, composition: ComposedKind, situation: Situation
) -> Fields | AvailabilityNoted | Conclusion:
    """Return the content with the parts that depend on a part that is not ready for a moment.

    A withdrawn part is deleted, so it stays until the other one has stayed not ready (invariant
    16). Return an event if that changes, and a conclusion if the content must wait.
    """
    desired, key = situation.state.desired, situation.context.key
    existing = situation.comparison.existing
    assert existing is not None

    def compose_with(shown: ExternalObject) -> Fields:
        try:
            return composition.compose(key, fields, shown)
        except InvalidManifestError:
            return {}

    known = existing.fields if desired.resolved is None else desired.resolved
    removed = _parts_of(known) - _parts_of(content)
    steady = compose_with(with_ready_parts(existing)) if removed else content
    dependent = removed & _parts_of(steady)
    # A part that was never ready releases no other part.
    is_usable = not _parts_of(steady) - _parts_of(content) - removed
    # A part that is ready again, but has not stayed ready, is not lost.
    is_back = bool(dependent) and is_usable and dependent <= _parts_of(compose_with(existing))
    noted = note_withheld(existing, situation, is_withheld=bool(dependent) and not is_back)
    if noted is not None:
        return noted
    until = situation.state.availability.withheld_until
    if not dependent or (until is not None and until <= situation.context.bus_now):
        return content
    if is_usable:
        return steady
    if desired.resolved is not None:
        return desired.resolved
    message = f"waiting for the parts on which {min(dependent)} depends"
    return Conclusion("Waiting", "NotReady", message)


def _parts_of(content: Fields) -> AbstractSet[str]:
    return content.get(CHILDREN, {}).keys()


def show_availability(
    existing: ExternalObject, composition: ComposedKind, state: ResourceState
) -> ExternalObject:
    """Return a composed object with the recorded availability of its parts."""
    if composition.min_ready_seconds is None:
        return without_momentary_readiness(existing, state.availability)
    return with_availability(existing, state.availability)


def conclude_references(spec: Spec, state: ResourceState, key: ResourceKey) -> Step:
    """Return the conclusion for a resource that only references others, such as a ShapeRef."""
    for reference in spec.references:
        target = state.desired.targets.get(reference.target)
        if target is None:
            return NOTHING_TO_REPORT  # the sweeper reports the target
        if not target.declared:
            return on_hold(Hold.DANGLING, _explain_dangling(reference.target, key))
    return Conclusion("Converged", "Resolved")


def _explain_dangling(target: str, key: ResourceKey) -> str:
    if may_refer(ResourceKey.parse(target), key.namespace, ()):
        return f"{target} is not declared"
    return (
        f"{target} is not declared, or its spec.policy.referencedFrom does not name namespace "
        f"{key.namespace!r}"
    )


def _waiting_for(reference: Reference, desired: Desired) -> Conclusion | None:
    """Return the conclusion while a reference blocks the resource; None if it does not.

    Once all values have been resolved, an unready target no longer blocks it.
    """
    name, target = reference.target, desired.targets.get(reference.target)
    if target is None:
        return Conclusion(
            "Waiting", "ReferenceUnknown", f"waiting for {name}: its state has not been read yet"
        )
    if target.cycle:
        cycle = " → ".join(target.cycle)
        remedy = "withdraw one of the resources, or remove a reference"
        return Conclusion(
            "Waiting", "DependencyCycle", f"the references form a cycle, {cycle}; {remedy}"
        )
    if not target.declared:
        return Conclusion("Waiting", "ReferenceMissing", f"waiting for {name}: it is not declared")
    missing = ", ".join(each for each in reference.fields if target.values.get(each) is None)
    if missing:
        return Conclusion("Waiting", "ValueMissing", f"waiting for {name}: it has no {missing} yet")
    if desired.resolved is None and target.momentary:
        return Conclusion("Waiting", "NotReady", f"waiting for {name} to stay ready")
    if desired.resolved is None and not target.ready:
        why = "its API does not respond" if target.api_event else "it is not ready"
        return Conclusion("Waiting", "NotReady", f"waiting for {name}: {why}")
    return None


def _explain_missing(secret: SecretRef) -> str:
    """Explain why a secret has no digest.

    It does not reveal whether another namespace has the secret.
    """
    granted = ", is not granted to this namespace" if secret.namespace else ""
    return f"it does not exist{granted}, or no role has read it yet"
