"""Nobody pays for another: what can be decided is, however much that cannot waits beside it."""

from __future__ import annotations

from collections.abc import Iterator

from events.envelope import InvalidMessageError, decode_intake
from events.intake import Declared, Withdrawn
from events.names import InvalidNameError
from events.subjects import parse_stored_intake
from tests.memory_bus.intake import StoredIntake
from tests.simulation import plan as p
from tests.simulation.world import World

_MAX_SECONDS = 10.0


def undecided(world: World) -> Iterator[str]:
    """Give what waits for its decision although only others are in trouble.

    Look before the faults stop: afterwards all is decided.
    """
    if not all(_troubles_only_others(step) for step in world.plan.steps):
        return
    answered = {subject for subject, _ in world.decisions.answers}
    for message in world.intake.messages:
        waited = world.loop.time() - message.stored_at
        if waited > _MAX_SECONDS and _is_usable(message) and message.reply_to not in answered:
            yield f"message {message.position}: undecided for {waited:.0f} s while others' wait"


def _troubles_only_others(step: p.Step) -> bool:
    if isinstance(step, p.Full):
        return step.what == "dead letters"
    return isinstance(step, p.Declare | p.Withdraw | p.Configure | p.Garbage)


def _is_usable(message: StoredIntake) -> bool:
    try:
        what, _ = parse_stored_intake(message.subject)
        said = decode_intake(message.payload, expected=what, fallback_id="-")
    except (InvalidMessageError, InvalidNameError, ValueError):
        return False
    return isinstance(said.data, Declared | Withdrawn)
