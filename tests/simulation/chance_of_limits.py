"""Draws of how much the bus takes: slots of what is handed out, rows at once, full streams.

By dice of their own: what else a seed draws is the same with and without these.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

from reconciler.roles.decider.actions_in_flight import MAX_ACTIONS
from tests.simulation import plan as p

_GARBAGE = "not JSON"
_Stream = Literal["log", "intake", "dead letters"]


def limits_of(
    seed: int, duration: float, busy: Sequence[float], shape: str, *, is_damaged: bool
) -> tuple[p.Limits, list[p.Step]]:
    """Draw limits that bind now and then, and streams that are full for a while.

    ``busy`` are moments at which something is declared: full then, a stream takes some of several.

    What a damaged resource is told is tried again for half a minute, and keeps its slots as long:
    with few of them, its whole partition waits for so long.
    """
    random = Random(f"limits/{seed}")
    limits = p.Limits(
        max_ack_pending=random.choice((20 if is_damaged else 3, 20, 20, 2_000)),
        max_actions_pending=random.choice((3, 20, 4_096)),
        rows_per_save=random.choice((1, 3, 3, 900)),
        max_actions=Random(f"actions/{seed}").choice((1, 2, MAX_ACTIONS)),
    )
    steps: list[p.Step] = []
    if random.random() < 0.25:
        for _ in range(3):  # the next batches of rows, so that it is between two of a save
            strike = random.choice(("delay", "crash after", "lose reply", "lose request"))
            at = round(random.uniform(0.5, duration), 3)
            steps.append(p.OnRequest(at=at, what="rows", strike=strike, seconds=0.5))
    if random.random() < 0.4:
        what: _Stream = random.choice(
            ("log", "intake", "intake", "intake", "dead letters", "dead letters")
        )
        steps += _full(random, what, random.choice(busy or [1.0]), duration, shape)
    return limits, steps


def _full(random: Random, what: _Stream, busy: float, duration: float, shape: str) -> list[p.Step]:
    """Fill a stream when something happens or for long, with a bit of room or without."""
    if what == "dead letters":
        at, seconds = round(random.uniform(0.5, 0.4 * duration), 3), duration
        copies = random.choice((1, 2, 5))
        garbage = p.Garbage(at=at, shape=shape, payload=_GARBAGE, copies=copies)
        return [p.Full(at=at, what=what, seconds=seconds, room=random.choice((0, 0, 1))), garbage]
    at = round(busy + random.uniform(0.0, 1.0), 3)
    seconds = round(random.uniform(1.0, 25.0), 3)
    room, again = random.choice((0, 1, 1, 2)), random.choice((0.0, 0.5, 1.0, 2.0))
    return [p.Full(at=at, what=what, seconds=seconds, room=room, again_seconds=again)]
