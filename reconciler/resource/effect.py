"""The combined effect of the attempts of an action in flight.

The table in docs/concepts/actions.md is generated from `effect_after`.
"""

from __future__ import annotations

from typing import Final

from events.log import Effect

EFFECTS_BY_SEVERITY: Final = (
    Effect.NOT_SENT,
    Effect.REFUSED,
    Effect.PARTIAL,
    Effect.UNKNOWN,
)
"""Effects of one attempt, from the least to the most severe."""


def effect_after(known: Effect, attempt: Effect) -> Effect:
    """Return the effect of all attempts, including one more with the effect ``attempt``."""
    if known is Effect.HELD:
        return known  # only an operator can end a hold
    if known is Effect.CHECKED:  # an earlier call may still arrive, whatever comes later
        return Effect.UNKNOWN if attempt.may_exist else known
    return max(known, attempt, key=EFFECTS_BY_SEVERITY.index)
