"""Faults of the bus: what can go wrong with a request, a timer or the stored log.

An armed fault affects the next request of its type. The simulation stores these
structs in its plans, so their field names and tags are a file format.
"""

from __future__ import annotations

from typing import Literal

import msgspec

RequestType = Literal[
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
"""The type of a request to the bus or the API."""

BUS_REQUESTS: tuple[RequestType, ...] = (
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
"""``refuse``: the API refuses before any effect; ``break``: it fails after the effect."""


class TimedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="step"):
    """Base of everything that a simulation plan schedules: ``at`` is seconds after the start."""

    at: float


class OnRequest(TimedStep, frozen=True, tag=True):
    """A fault of the next request of a type."""

    what: RequestType
    strike: Strike
    seconds: float = 0.0


class TimersFail(TimedStep, frozen=True, tag=True):
    """A fault of the next timers that are due."""

    how: Literal["lost", "doubled", "late"]
    count: int = 1


class DamageLog(TimedStep, frozen=True, tag=True):
    """An event of a resource is missing, or differs from the stored one."""

    shape: str
    how: Literal["flip", "lose"]
    index: int = 0
