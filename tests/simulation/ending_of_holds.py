"""What must hold of references, finalizers and damage when everything has come to rest."""

from __future__ import annotations

from collections.abc import Iterator

from events.names import ResourceKey
from events.reference import REFERENCE_KIND
from projections.status import LOG_DAMAGED
from reconciler.resource.state import ResourceState
from tests.simulation.publishing import is_held_for_a_person
from tests.simulation.world import World


def is_kept(world: World, key: ResourceKey, *, for_ever: bool = True) -> bool:
    """Tell whether something that others or people have to take off keeps a withdrawn resource.

    ``for_ever``: so does what refers to it by way of something damaged, which nobody can withdraw.
    """
    holds = world.checks.holds
    kept = key not in holds.forced and "Keep" in holds.references[key].values()
    kept = kept and (for_ever or not world.damaged)
    kept = kept and not world.checks.states[key].desired.is_declared
    return bool(holds.finalizers[key]) or kept or is_held_for_a_person(world.checks.states[key])


def anything_is_kept(world: World) -> bool:
    """Tell whether anything waits for somebody."""
    return any(is_kept(world, key, for_ever=False) for key in _sound(world))


def problems_of_holds(world: World) -> Iterator[str]:
    """Give what is wrong with what others hold, refer to or rely on."""
    yield from _references(world)
    yield from _rows_of_finalizers(world)
    yield from _damage(world)


def _sound(world: World) -> list[ResourceKey]:
    return [key for key in world.checks.states if key not in world.damaged]


def _references(world: World) -> Iterator[str]:
    """Every reference says how its target stands, and every target knows who refers to it."""
    states = world.checks.states
    expected: dict[ResourceKey, dict[str, str]] = {}
    for key, state in states.items():
        spec = state.desired.spec
        if spec is None or key in world.damaged or not _refers(state):
            continue
        for each in spec.references:
            if not state.desired.is_declared and _leads_back(world, key, each.target):
                continue
            named = expected.setdefault(ResourceKey.parse(each.target), {})
            named[str(key)] = spec.fields.get("onWithdrawal", "Keep")
        if key.kind != REFERENCE_KIND:
            continue
        target = ResourceKey.parse(spec.references[0].target)
        if target in world.damaged:
            continue
        found = states.get(target)
        wanted = (
            ("Converged", "Resolved")
            if found and found.desired.is_declared
            else ("Held", "Dangling")
        )
        told = state.outcome and (state.outcome.outcome, state.outcome.reason)
        if told != wanted:
            yield f"{key}: its target should make it {wanted}, told is {told}"
    unclear = {str(key) for key in world.damaged}
    unclear |= {str(key) for key, state in states.items() if _is_a_later_claim(state)}
    for key in _sound(world):
        known, wanted = states[key].holds.references, expected.get(key, {})
        known = {by: each for by, each in known.items() if by not in unclear}
        if known != {by: each for by, each in wanted.items() if by not in unclear}:
            yield f"{key}: it knows the references {known}, not those there are"


def _refers(state: ResourceState) -> bool:
    """Whether a resource refers to what its spec says: until its object is gone, too."""
    return bool(state.desired.is_declared or state.owned or state.actions.in_flight)


def _leads_back(world: World, key: ResourceKey, target: str) -> bool:
    """Whether a resource and all between it and itself are withdrawn: none is kept for the next."""
    found: set[ResourceKey] = set()
    ahead = [ResourceKey.parse(target)]
    while ahead:
        met = ahead.pop()
        state = world.checks.states.get(met)
        spec = None if state is None else state.desired.spec
        if met in found or met in world.damaged or state is None or spec is None:
            continue
        if not state.desired.is_declared and _refers(state):
            found.add(met)
            ahead += [ResourceKey.parse(each.target) for each in spec.references]
    return key in found


def _is_a_later_claim(state: ResourceState) -> bool:
    """Whether its withdrawal had ended when a stray of its name became ours: it may still refer."""
    desired = state.desired
    has_ended = not desired.is_declared and desired.settled_generation == desired.generation
    return has_ended and state.owned is not None


def _rows_of_finalizers(world: World) -> Iterator[str]:
    """Nothing holds a resource that people cannot see."""
    for actor in world.actors.values():
        if actor.models is None:
            continue
        for key in _sound(world):
            stands = world.checks.holds.finalizers[key]
            row = actor.models.status.get(str(key))
            if stands and (row is None or row.finalizers != stands):
                yield f"{actor.plan.name}: it does not show the finalizers of {key}"


def _damage(world: World) -> Iterator[str]:
    """Who verifies the log has found all damage by now, and holds what is damaged."""
    for actor in world.actors.values():
        if actor.models is None or "projector" not in actor.plan.roles:
            continue
        for key in world.damaged:
            row = actor.models.status.get(str(key))
            if row is None or row.reason != LOG_DAMAGED:
                yield f"{actor.plan.name}: the log of {key} is damaged, and nobody has told"
        known = {str(key) for key in world.damaged}
        for name in actor.models.damage.keys() - known:
            if not name.startswith("position/"):  # where an event was lost, whosever it was
                yield f"{actor.plan.name}: the log of {name} is not damaged, but is said to be"
