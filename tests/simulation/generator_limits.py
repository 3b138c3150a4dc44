"""Draws the limits of the bus: unacknowledged messages, rows per save, full streams.

They have their own random generator, so the rest of a plan does not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

from reconciler.roles.decider.actions_in_flight import MAX_ACTIONS
from tests.simulation import plan as p

_GARBAGE = "not JSON"
_Stream = Literal["log", "intake", "dead letters"]


def draw_limits(
    seed: int, duration: float, busy: Sequence[float], shape: str, *, is_damaged: bool
) -> tuple[p.Limits, list[p.Step]]:
    """Draw limits that are reached now and then, and streams that are full for a while.

    ``busy`` has the times of declarations: a stream that fills up then accepts only some of them.

    Messages to a damaged resource are retried for half a minute and occupy their slots meanwhile:
    if there are few slots, its whole partition waits. Its action counts for a minute.
    """
    random = Random(f"limits/{seed}")
    max_actions = Random(f"actions/{seed}").choice((1, 2, MAX_ACTIONS))
    limits = p.Limits(
        max_ack_pending=random.choice((20 if is_damaged else 3, 20, 20, 2_000)),
        max_actions_pending=random.choice((3, 20, 4_096)),
        rows_per_save=random.choice((1, 3, 3, 900)),
        max_actions=MAX_ACTIONS if is_damaged else max_actions,
    )
    steps: list[p.Step] = []
    if random.random() < 0.25:
        for _ in range(3):  # so that the fault strikes between two batches of a save
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
    """Fill a stream during other steps or for a long time, with or without a little room."""
    if what == "dead letters":
        at, seconds = round(random.uniform(0.5, 0.4 * duration), 3), duration
        copies = random.choice((1, 2, 5))
        garbage = p.Garbage(at=at, shape=shape, payload=_GARBAGE, copies=copies)
        return [p.Full(at=at, what=what, seconds=seconds, room=random.choice((0, 0, 1))), garbage]
    at = round(busy + random.uniform(0.0, 1.0), 3)
    seconds = round(random.uniform(1.0, 25.0), 3)
    room, again = random.choice((0, 1, 1, 2)), random.choice((0.0, 0.5, 1.0, 2.0))
    return [p.Full(at=at, what=what, seconds=seconds, room=room, again_seconds=again)]
