"""Rules about references: their values, and their record at both ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from events.external import ExternalObject
from events.log import SpecResolved
from events.manifest import Fields
from events.names import ResourceKey
from events.reference import REFERENCE_KIND
from tests.judge.ledger import Ledger, Resource
from tests.judge.rule import Breach, JudgedEvent, on, rule


@on(SpecResolved, needs=("effects", "truth"))
def reference_value(context: JudgedEvent[SpecResolved]) -> Iterator[str]:
    """A reference has a value that its target had when it was ready (invariant 16)."""
    fields = {} if context.resource.spec is None else context.resource.spec.fields
    for name, value in fields.items():
        reference = mark_of(value, "$ref")
        if reference is None:
            continue
        _, _, target = reference["$ref"].partition("/")
        samples = [
            effect.at
            for effect in context.ledger.effects
            if effect.after is not None
            and is_named(effect.after.name, target)
            and context.data.fields[name] == value_of(reference["field"], effect.after)
        ]
        if not samples:
            yield f"{reference} was never {context.data.fields[name]!r}"
        elif context.resource.resolved is None and context.truth.is_too_recent(samples[0]):
            yield f"{target} had not stayed ready yet"


@rule("end")
def references(ledger: Ledger) -> Iterator[Breach]:
    """A target records its references, and a reference whether its target exists (invariant 9)."""
    if not ledger.history.is_final:
        return
    damaged, resources = ledger.history.damaged, ledger.resources
    expected: dict[ResourceKey, dict[str, str]] = {}
    for key, resource in resources.items():
        spec = resource.spec
        if spec is None or key in damaged or not resource.is_in_effect:
            continue
        for reference in spec.references:
            target = ResourceKey.parse(reference.target)
            if not _permits(ledger, target, key.namespace):
                continue
            if resource.is_declared or not _references_back(ledger, key, target):
                wanted = expected.setdefault(target, {})
                wanted[str(key)] = spec.fields.get("onWithdrawal", "Keep")
        if key.kind == REFERENCE_KIND and not references_damage(ledger, resource):
            target = ResourceKey.parse(spec.references[0].target)
            is_there = ledger.resource(target).is_declared
            counts = is_there and _permits(ledger, target, key.namespace)
            outcome = ("Converged", "Resolved") if counts else ("Held", "Dangling")
            recorded = resource.outcome and (resource.outcome.outcome, resource.outcome.reason)
            if recorded != outcome:
                yield key, f"its target should make it {outcome}, its outcome is {recorded}"
    unclear = {str(key) for key in damaged}
    for key in dict.fromkeys([*resources, *expected]):  # a target may exist only as a reference
        references = ledger.resource(key).references
        known_references = {by: each for by, each in references.items() if by not in unclear}
        wanted = {by: each for by, each in expected.get(key, {}).items() if by not in unclear}
        if known_references != wanted and key not in damaged:
            yield key, f"it records the references {known_references}, but has {wanted}"


def _permits(ledger: Ledger, target: ResourceKey, namespace: str) -> bool:
    """Return whether references from a namespace to a resource count."""
    resource = ledger.resource(target)
    named = resource.policy.referenced_from if resource.is_in_effect else ()
    return namespace in (target.namespace, "system", *named) or "*" in named


def references_damage(ledger: Ledger, resource: Resource) -> bool:
    """Return whether a resource references one with a damaged log."""
    if resource.spec is None or not ledger.history.damaged:
        return False
    targets = [ResourceKey.parse(each.target) for each in resource.spec.references]
    return any(each in ledger.history.damaged for each in targets)


def _references_back(ledger: Ledger, key: ResourceKey, target: ResourceKey) -> bool:
    """Return whether references of withdrawn resources lead from a target back to a resource."""
    keys: set[ResourceKey] = set()
    to_visit = [target]
    while to_visit:
        current = to_visit.pop()
        resource = ledger.resource(current)
        if current in keys or current in ledger.history.damaged or resource.spec is None:
            continue
        if not resource.is_declared and resource.is_in_effect:
            keys.add(current)
            to_visit += [ResourceKey.parse(each.target) for each in resource.spec.references]
    return key in keys


def mark_of(field: Any, mark: str) -> dict[str, Any] | None:
    """Return a field's reference or secret, by its mark; None if it is a plain value."""
    return cast("Fields", field) if isinstance(field, dict) and mark in field else None


def is_named(expected: str, name: str) -> bool:
    """Return whether an object has the given name, or replaces one with that name."""
    return expected == name or expected.rpartition("-")[0] == name


def value_of(field: str, existing: ExternalObject) -> object:
    """Return the value of a reference to an object of the simulated API."""
    return {"name": existing.name, "uid": existing.uid}.get(field, existing.outputs.get("address"))
