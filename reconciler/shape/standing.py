"""How a shape stands when there is nothing to do now."""

from __future__ import annotations

import msgspec

from events.log import OutcomeName, ShapeEvent


class Standing(msgspec.Struct, frozen=True):
    """There is no next step: this is how the shape stands."""

    outcome: OutcomeName
    reason: str
    message: str = ""
    action_id: str | None = None


NOTHING_TO_SAY = Standing("Deleted", "")
"""How a shape stands of which nobody wants to hear: it was never there."""

PAUSED = Standing("Paused", "PausedByPolicy", "the declaration says so; nothing is done")

Step = ShapeEvent | Standing
"""The next event to record, or how the shape stands if there is none."""
