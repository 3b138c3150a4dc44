"""The cases of the matrix: which step, of which operation, and what happens there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from events.log import Operation
from reconciler.failpoints import Failpoint

Trouble = Literal["process killed", "server killed", "API killed", "process paused", "clock moved"]
Row = Literal[
    "",
    "twin",
    "fixed",
    "expiring",
    "reference",
    "numbered",
    "unlisted",
    "white",
    "defined",
    "sealed",
    "container",
    "replaced container",
    "volume",
    "database",
    "role",
    "grant",
    "disk",
    "attachment",
    "certificate",
]
"""Subject of a case in addition to a plain shape: see ``tests.crashes.rows`` and ``real_kinds``."""

OPERATIONS: tuple[Operation, ...] = ("Create", "Update", "Delete")


@dataclass(frozen=True)
class Case:
    """Something happens at a step of an operation; ``arrival`` tells which message's step it is.

    The decider comes to its steps twice: with the declaration (1) and with the result (2).
    """

    trouble: Trouble
    point: Failpoint
    operation: Operation
    arrival: int = 1
    lost_reply: bool = False
    row: Row = ""

    def __str__(self) -> str:
        suffix = ", its reply lost" if self.lost_reply else ""
        of = f"{self.operation} {self.row}".strip()
        return f"{self.trouble} at {self.point}:{self.arrival} of {of}{suffix}"


DECIDER = (
    Failpoint.DECIDER_TOOK,
    Failpoint.DECIDER_DECIDED,
    Failpoint.DECIDER_BETWEEN_EVENTS,
    Failpoint.DECIDER_APPENDED,
    Failpoint.DECIDER_TOLD,
    Failpoint.DECIDER_ACKED,
)
WORKER = (
    Failpoint.WORKER_CLAIMED,
    Failpoint.WORKER_BEFORE_CALL,
    Failpoint.WORKER_CALLED,
    Failpoint.WORKER_REPORTED,
    Failpoint.WORKER_ACKED,
)
BETWEEN_CALLS: tuple[Operation, ...] = ("Update", "Delete")
"""Operations of a shape that need a second request, after a read of what is there."""

OTHERS = (
    Failpoint.DECIDER_BATCH_HALF_SENT,
    Failpoint.OBSERVER_LISTED,
    Failpoint.OBSERVER_PUBLISHED,
    Failpoint.SWEEPER_FOUND,
    Failpoint.SWEEPER_WOKE,
    Failpoint.PROJECTOR_FOLDED,
    Failpoint.PROJECTOR_SAVED,
)
ALONE = (Failpoint.INIT_STEP, Failpoint.RESTORE_STEP, Failpoint.DECIDER_DEAD_LETTERED)
"""Steps that belong to no operation: each has a test of its own."""

_STEPS = [
    *((point, arrival) for point in DECIDER for arrival in (1, 2)),
    *((point, 1) for point in (*WORKER, *OTHERS)),
]


def _rotating(trouble: Trouble, steps: list[tuple[Failpoint, int]]) -> list[Case]:
    """Each step once, the operations taking turns: every operation meets every role."""
    return [
        Case(trouble, point, OPERATIONS[number % len(OPERATIONS)], arrival)
        for number, (point, arrival) in enumerate(steps)
    ]


PROCESS_KILLED = [
    *(
        Case("process killed", point, operation, arrival)
        for point, arrival in _STEPS
        for operation in OPERATIONS
    ),
    *(
        Case("process killed", Failpoint.WORKER_BETWEEN_CALLS, operation)
        for operation in BETWEEN_CALLS
    ),
    *(
        Case("process killed", Failpoint.WORKER_CALLED, operation, lost_reply=True)
        for operation in OPERATIONS
    ),
]
SERVER_KILLED = _rotating("server killed", _STEPS)
API_KILLED = [
    *_rotating("API killed", [(point, 1) for point in (*DECIDER, *WORKER)]),
    *(
        Case("API killed", Failpoint.WORKER_CALLED, operation, lost_reply=True)
        for operation in OPERATIONS
    ),
]
PROCESS_PAUSED = _rotating(
    "process paused",
    [*((point, 1) for point in (*DECIDER, *WORKER)), (Failpoint.DECIDER_DECIDED, 2)],
)
CLOCK_MOVED = [
    *_rotating(
        "clock moved", [(Failpoint.DECIDER_BETWEEN_EVENTS, 1), (Failpoint.WORKER_CALLED, 1)]
    ),
]


def _of_row(
    row: Row, operation: Operation, *steps: tuple[Failpoint, int], lost_reply: bool = False
) -> list[Case]:
    return [
        Case("process killed", point, operation, arrival, lost_reply, row)
        for point, arrival in steps
    ]


def _at(arrivals: int, *points: Failpoint) -> list[tuple[Failpoint, int]]:
    return [(point, arrival) for point in points for arrival in range(1, arrivals + 1)]


_TURNS = (Failpoint.DECIDER_BETWEEN_EVENTS, Failpoint.DECIDER_APPENDED)
_CALL = (Failpoint.WORKER_BEFORE_CALL, Failpoint.WORKER_CALLED)
_LOOKED = (Failpoint.OBSERVER_LISTED, Failpoint.OBSERVER_PUBLISHED)
_BETWEEN = Failpoint.WORKER_BETWEEN_CALLS

REAL_APIS = [
    # Two actions: the arrivals at the worker are of the first and of the second.
    *_of_row("twin", "Update", *_at(2, *WORKER), (_BETWEEN, 1), *_at(3, *_TURNS)),
    *_of_row("fixed", "Update", *_at(2, *_CALL), (_BETWEEN, 1), *_at(3, *_TURNS)),
    *_of_row(
        "expiring",
        "Update",
        *_at(1, *_LOOKED, *WORKER, _BETWEEN),
        *_at(2, Failpoint.DECIDER_BATCH_HALF_SENT, Failpoint.DECIDER_APPENDED),
    ),
    *_of_row(
        "reference",
        "Update",
        *_at(1, Failpoint.SWEEPER_FOUND, Failpoint.SWEEPER_WOKE, Failpoint.PROJECTOR_SAVED),
        *_at(2, *_CALL, _BETWEEN),
        *_at(3, Failpoint.DECIDER_BETWEEN_EVENTS),
        *_at(4, Failpoint.DECIDER_APPENDED),
    ),
    *_of_row("numbered", "Create", *_at(1, *WORKER), *_at(2, *_TURNS)),
    *_of_row("numbered", "Create", (Failpoint.WORKER_CALLED, 1), lost_reply=True),
    *_of_row("numbered", "Update", *_at(1, *_CALL), *_at(2, Failpoint.DECIDER_APPENDED)),
    *_of_row("numbered", "Delete", *_at(1, *_CALL), *_at(2, Failpoint.DECIDER_APPENDED)),
    *_of_row("unlisted", "Create", *_at(1, *_LOOKED, *_CALL, Failpoint.DECIDER_APPENDED)),
    *_of_row("unlisted", "Update", *_at(1, *_LOOKED, *_CALL, Failpoint.DECIDER_APPENDED)),
    *_of_row("white", "Create", *_at(1, *WORKER), *_at(2, _BETWEEN), *_at(2, *_TURNS)),
    *_of_row("white", "Create", (Failpoint.WORKER_CALLED, 1), (_BETWEEN, 1), lost_reply=True),
    *_of_row(
        "defined",
        "Update",
        *_at(1, Failpoint.SWEEPER_FOUND, Failpoint.SWEEPER_WOKE, *_CALL, _BETWEEN),
        *_at(2, Failpoint.DECIDER_BETWEEN_EVENTS),
        *_at(3, Failpoint.DECIDER_APPENDED),
    ),
    *_of_row(
        "sealed",
        "Update",
        *_at(1, Failpoint.SWEEPER_FOUND, Failpoint.SWEEPER_WOKE, *_CALL, _BETWEEN),
        *_at(2, Failpoint.DECIDER_APPENDED),
    ),
    *_of_row("sealed", "Create", *_at(1, *_CALL), *_at(2, Failpoint.DECIDER_APPENDED)),
]
"""Requirements of real APIs, a row each: not every step, but each that could go wrong."""

_DONE = ((Failpoint.WORKER_CALLED, 1), (Failpoint.DECIDER_APPENDED, 2))
_AROUND: dict[Operation, Sequence[tuple[Failpoint, int]]] = {
    "Create": ((Failpoint.WORKER_BEFORE_CALL, 1), *_DONE),
    "Update": _DONE,
    "Delete": _DONE,
}
_GAPS_OF_KINDS: dict[Row, dict[Operation, int]] = {
    "container": {"Create": 3, "Update": 2, "Delete": 2},
    "volume": {"Create": 0, "Delete": 1},
    "database": {"Create": 7, "Update": 5, "Delete": 1},
    "role": {"Create": 4, "Update": 5, "Delete": 4},
    "grant": {"Create": 6, "Update": 5, "Delete": 5},
    "disk": {"Create": 5, "Update": 4, "Delete": 1},
    "attachment": {"Create": 3, "Update": 2, "Delete": 3},
    "certificate": {"Create": 5, "Update": 5, "Delete": 2},
}
"""How many gaps there are between the calls of each operation."""

REAL_KINDS = [
    *(
        case
        for row, operations in _GAPS_OF_KINDS.items()
        for operation, gaps in operations.items()
        for case in _of_row(row, operation, *_AROUND[operation], *_at(gaps, _BETWEEN))
    ),
    *_of_row(
        "replaced container",
        "Update",
        *_at(2, Failpoint.WORKER_CALLED),
        *_at(5, _BETWEEN),
        *_at(3, Failpoint.DECIDER_APPENDED),
    ),
]
"""Kinds over real systems, killed around their calls and between any two."""

ALL = list(chain(PROCESS_KILLED, SERVER_KILLED, API_KILLED, PROCESS_PAUSED))
