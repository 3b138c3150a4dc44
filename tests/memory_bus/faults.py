"""Faults of the bus: what can go wrong with a request, a timer or the stored log.

A fault on a request is armed, and strikes the next request of its sort. The simulation stores these
structs in its plans, so their field names and tags are a file format.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Sort = Literal[
    "append",
    "load",
    "configurations",
    "publish",
    "position",
    "pull",
    "ack",
    "later",
    "actions",
    "action ack",
    "sign of life",
    "timers",
    "answer",
    "dead letters",
    "rows",
    "rates",
    "feed",
    "states",
    "write",
    "write again",
    "read",
    "list",
    "secret",
]
"""What a request to the bus or to the API asks for."""

BUS_SORTS: tuple[Sort, ...] = (
    "append",
    "load",
    "configurations",
    "publish",
    "position",
    "pull",
    "ack",
    "actions",
    "action ack",
    "sign of life",
    "timers",
    "answer",
    "dead letters",
    "rows",
    "rates",
    "feed",
    "states",
)

Strike = Literal[
    "lose request",
    "lose reply",
    "delay",
    "crash before",
    "crash after",
    "pause before",
    "pause after",
    "refuse",
    "throttle",
    "break",
]
"""``refuse``: the API says no before it does anything; ``break``: it fails after it has done it."""


class TimedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="step"):
    """Base of everything that a simulation plan schedules: ``at`` is seconds after the start."""

    at: float


class OnRequest(TimedStep, frozen=True, tag=True):
    """A fault at the next request of a sort."""

    what: Sort
    strike: Strike
    seconds: float = 0.0


class TimersFail(TimedStep, frozen=True, tag=True):
    """What happens to the timers that are due next."""

    how: Literal["lost", "doubled", "late"]
    count: int = 1


class DamageLog(TimedStep, frozen=True, tag=True):
    """An event of a resource is missing, or differs from the stored one."""

    shape: str
    how: Literal["flip", "lose"]
    index: int = 0
