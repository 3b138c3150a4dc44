"""Inputs of a spec: values of references, digests of secrets, and parts (ADR 0029)."""

from __future__ import annotations

from events.composition import CHILDREN, manifests_of
from events.hold import Hold
from events.log import SpecResolved
from events.manifest import InvalidManifestError
from events.names import InvalidNameError, ResourceKey
from events.reference import Reference, fill_references, may_refer
from events.secret import SecretRef
from reconciler.errors import UnknownKindError
from reconciler.provider.kind import Kind, check_growth
from reconciler.resource.availability import note_availability, with_availability
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


def compose(spec: Spec, situation: Situation) -> Step | None:
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
        if existing is not None and composition.min_ready_seconds is not None:
            noted = note_availability(composition.min_ready_seconds(fields), existing, situation)
            if noted is not None:
                return noted
            existing = with_availability(existing, situation.state.availability)
        content = composition.compose(context.key, fields, existing)
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
