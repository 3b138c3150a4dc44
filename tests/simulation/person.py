"""The person who resolves holds: reads the API, follows the instructions, and approves."""

from __future__ import annotations

from events.hold import Hold
from events.intake import Approved
from events.names import ResourceKey
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.resource.state import ResourceState
from tests.judge.from_simulation import PERSON
from tests.memory_bus.log import LOG_ID
from tests.simulation.publishing import CONFIG_KEY
from tests.simulation.world import World


def resolve_holds(world: World) -> int:
    """Approve holds for unknown results, a copy of the log or a new scope; return their number."""
    held = [key for key, state in world.checks.turns.states.items() if _waits_for_a_person(state)]
    for key in held:
        _label_own_objects(world, key)
        world.publisher.publish(
            key, Approved(Hold.UNKNOWN_RESULT, reason="I looked"), source=PERSON
        )
    config = world.checks.turns.states.get(CONFIG_KEY)
    outcome = None if config is None else config.outcome
    if outcome is None or outcome.reason not in (Hold.TWIN, Hold.EXCLUSIVE_SCOPE):
        return len(held)
    world.publisher.publish(CONFIG_KEY, Approved(outcome.reason, reason="I looked"), source=PERSON)
    return len(held) + 1


def _waits_for_a_person(state: ResourceState) -> bool:
    flight, outcome = state.actions.in_flight, state.outcome
    if flight is not None:
        return flight.is_held
    return outcome is not None and (outcome.outcome, outcome.reason) == (
        "Held",
        Hold.UNKNOWN_RESULT,
    )


def _label_own_objects(world: World, key: ResourceKey) -> None:
    """Label the objects that our calls created, and remove copies of the label from others.

    A person with access to the API can tell them apart.
    """
    label = owner(LOG_ID, key)
    for slot, existing in list(world.api.objects.items()):
        if existing.name != key.name:
            continue
        if existing.uid in world.checks.ledger.creation_keys:
            world.trace(f"PERSON {key}: {existing.uid} is ours")
            world.api.human_labels(slot, {OWNER_LABEL: label})
        elif existing.labels.get(OWNER_LABEL) == label:
            world.trace(f"PERSON {key}: {existing.uid} has a copy of the label")
            world.api.human_strips_labels(slot)
