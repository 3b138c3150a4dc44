"""What references, secrets and definitions make of a spec, found by the judge's own means."""

from __future__ import annotations

from typing import Any

from events.log import SpecDeclared
from events.manifest import Fields
from events.names import ResourceKey
from reconciler.resource.state import Spec
from tests.simulation import plan as p
from tests.simulation.input_checks import value_of
from tests.simulation.publishing import DEFINITION_KEY, resource_key
from tests.simulation.vault import mark_of
from tests.simulation.world import World

_CIRCLE = "each would wait for the "


def is_rightly_refused(world: World, key: ResourceKey, message_id: str, stored_at: float) -> bool:
    """Whether a declaration came before its kind was defined, or may have closed a circle."""
    if key.kind != DEFINITION_KEY.name or not (world.plan.api.defined or world.plan.api.addresses):
        return False
    events = [event for _, event in world.log.events if isinstance(event.data, SpecDeclared)]
    if any(event.key == key and event.causeid == message_id for event in events):
        return False
    if world.plan.api.addresses:
        refused = (
            inbox == f"_INBOX.{message_id}" and _CIRCLE in answer.message
            for inbox, answer in world.decisions.answers
        )
        return any(refused) and _may_be_in_a_circle(world.plan, key.name)
    stored = zip(world.log.stored_at, world.log.events, strict=True)  # clocks may be wrong
    defined = (at for at, (_, event) in stored if event.key == DEFINITION_KEY)
    return stored_at <= next(defined, float("inf"))


def expected_fields(world: World, spec: Spec) -> Fields:
    """Give the fields that an object should have; without those that nobody can tell."""
    definition = world.checks.states.get(DEFINITION_KEY)
    constants: Fields = {}
    if definition is not None and definition.desired.spec is not None:
        constants = definition.desired.spec.fields.get("constants", {})
    expected = dict(constants)
    for name, value in spec.fields.items():
        secret, reference = mark_of(value, "$secret"), mark_of(value, "$ref")
        if secret is not None:
            expected[name] = {**secret, "digest": world.vault.digest(secret["$secret"])}
        elif reference is not None:
            known = _value(world, reference)
            expected |= {} if known is None else {name: known}
        else:
            expected[name] = value
    return expected


def is_blocked(world: World, spec: Spec) -> bool:
    """Whether a resource has something to wait for."""
    for value in spec.fields.values():
        secret, reference = mark_of(value, "$secret"), mark_of(value, "$ref")
        if secret is not None and not world.vault.values.get(secret["$secret"]):
            return True
        if reference is not None and _value(world, reference) is None:
            return True
    return False


def _may_be_in_a_circle(plan: p.Plan, name: str) -> bool:
    """Whether all that was ever declared leads from a resource back to it."""
    targets: dict[str, set[str]] = {}
    for step in plan.steps:
        if not isinstance(step, p.Declare):
            continue
        reference = mark_of(step.fields.get("note"), "$ref")
        if reference is not None:
            targets.setdefault(step.shape, set()).add(reference["$ref"].partition("/")[2])
    found: set[str] = set()
    ahead = [name]
    while ahead:
        more = targets.get(ahead.pop(), set()) - found
        found |= more
        ahead += more
    return name in found


def _value(world: World, place: dict[str, Any]) -> Any:
    """Give what a reference stands for; None unless its target is as declared, and can be told."""
    target = world.checks.states.get(resource_key(place["$ref"].partition("/")[2]))
    if target is None or not target.desired.is_declared or target.owned is None:
        return None
    spec, told = target.desired.spec, target.outcome
    assert spec is not None
    is_still = spec.policy.paused or spec.policy.mode != "Present"
    if is_still or told is None or told.outcome != "Converged":
        return None
    for found in world.api.objects.values():
        if found.uid == target.owned.uid:
            return value_of(place["field"], found)
    return None
