"""The answers to who declares, approves or releases."""

from __future__ import annotations

from events.intake import Answer
from reconciler.shape.inputs import Command
from reconciler.shape.state import ShapeState, declaration_id


def known_already(state: ShapeState, command: Command) -> Answer | None:
    """Answer a message that was handled before, under the same source and id."""
    known = declaration_id(command.actor, command.message_id)
    if command.position == state.declared_position or known in state.declaration_ids:
        return Answer(True, "Duplicate", state.generation, command.position)
    return None


def accepted(state: ShapeState, command: Command, reason: str = "Accepted") -> Answer:
    """Answer that it was done, or that there was nothing to do."""
    return Answer(True, reason, state.generation, command.position)


def refused(state: ShapeState, command: Command, reason: str, message: str) -> Answer:
    """Answer that it is not done, and why."""
    return Answer(False, reason, state.generation, command.position, message)
