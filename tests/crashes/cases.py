"""The cases of the matrix: a step, an operation, and the fault that is injected there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from events.log import Operation
from reconciler.failpoints import Failpoint

Fault = Literal["process killed", "server killed", "API killed", "process paused", "clock moved"]
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
"""Subject of a case; "" is a plain shape. See ``tests.crashes.rows`` and ``real_kinds``."""

OPERATIONS: tuple[Operation, ...] = ("Create", "Update", "Delete")


@dataclass(frozen=True)
class Case:
    """A fault at a step of an operation; ``arrival`` counts how often the step was reached.

    The decider reaches each step twice: with the declaration (1) and with the result (2).
    """

    fault: Fault
    point: Failpoint
    operation: Operation
    arrival: int = 1
    lost_reply: bool = False
    row: Row = ""

    def __str__(self) -> str:
        suffix = ", its reply lost" if self.lost_reply else ""
        subject = f"{self.operation} {self.row}".strip()
        return f"{self.fault} at {self.point}:{self.arrival} of {subject}{suffix}"


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
"""Operations of a shape that send a second request, after they read the object."""

OTHER_STEPS = (
    Failpoint.DECIDER_BATCH_HALF_SENT,
    Failpoint.OBSERVER_LISTED,
    Failpoint.OBSERVER_PUBLISHED,
    Failpoint.SWEEPER_FOUND,
    Failpoint.SWEEPER_WOKE,
    Failpoint.PROJECTOR_FOLDED,
    Failpoint.PROJECTOR_SAVED,
)
SEPARATE_STEPS = (
    Failpoint.INIT_STEP,
    Failpoint.RESTORE_STEP,
    Failpoint.DECIDER_DEAD_LETTERED,
    Failpoint.DECIDER_MOVES,
)
"""Steps that belong to no operation; each has its own test."""

_STEPS = [
    *((point, arrival) for point in DECIDER for arrival in (1, 2)),
    *((point, 1) for point in (*WORKER, *OTHER_STEPS)),
]


def _rotate_operations(fault: Fault, steps: list[tuple[Failpoint, int]]) -> list[Case]:
    """Return a case for each step, cycling through the operations."""
    return [
        Case(fault, point, OPERATIONS[number % len(OPERATIONS)], arrival)
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
SERVER_KILLED = _rotate_operations("server killed", _STEPS)
API_KILLED = [
    *_rotate_operations("API killed", [(point, 1) for point in (*DECIDER, *WORKER)]),
    *(
        Case("API killed", Failpoint.WORKER_CALLED, operation, lost_reply=True)
        for operation in OPERATIONS
    ),
]
PROCESS_PAUSED = _rotate_operations(
    "process paused",
    [*((point, 1) for point in (*DECIDER, *WORKER)), (Failpoint.DECIDER_DECIDED, 2)],
)
CLOCK_MOVED = [
    *_rotate_operations(
        "clock moved", [(Failpoint.DECIDER_BETWEEN_EVENTS, 1), (Failpoint.WORKER_CALLED, 1)]
    ),
]


def _cases(
    row: Row, operation: Operation, *steps: tuple[Failpoint, int], lost_reply: bool = False
) -> list[Case]:
    return [
        Case("process killed", point, operation, arrival, lost_reply, row)
        for point, arrival in steps
    ]


def _at(arrivals: int, *points: Failpoint) -> list[tuple[Failpoint, int]]:
    return [(point, arrival) for point in points for arrival in range(1, arrivals + 1)]


_APPENDS = (Failpoint.DECIDER_BETWEEN_EVENTS, Failpoint.DECIDER_APPENDED)
_CALL = (Failpoint.WORKER_BEFORE_CALL, Failpoint.WORKER_CALLED)
_LISTING = (Failpoint.OBSERVER_LISTED, Failpoint.OBSERVER_PUBLISHED)
_BETWEEN = Failpoint.WORKER_BETWEEN_CALLS

REAL_APIS = [
    # Two actions: the worker reaches each step once per action.
    *_cases("twin", "Update", *_at(2, *WORKER), (_BETWEEN, 1), *_at(3, *_APPENDS)),
    *_cases("fixed", "Update", *_at(2, *_CALL), (_BETWEEN, 1), *_at(3, *_APPENDS)),
    *_cases(
        "expiring",
        "Update",
        *_at(1, *_LISTING, *WORKER, _BETWEEN),
        *_at(2, Failpoint.DECIDER_BATCH_HALF_SENT, Failpoint.DECIDER_APPENDED),
    ),
    *_cases(
        "reference",
        "Update",
        *_at(1, Failpoint.SWEEPER_FOUND, Failpoint.SWEEPER_WOKE, Failpoint.PROJECTOR_SAVED),
        *_at(2, *_CALL, _BETWEEN),
        *_at(3, Failpoint.DECIDER_BETWEEN_EVENTS),
        *_at(4, Failpoint.DECIDER_APPENDED),
    ),
    *_cases("numbered", "Create", *_at(1, *WORKER), *_at(2, *_APPENDS)),
    *_cases("numbered", "Create", (Failpoint.WORKER_CALLED, 1), lost_reply=True),
    *_cases("numbered", "Update", *_at(1, *_CALL), *_at(2, Failpoint.DECIDER_APPENDED)),
    *_cases("numbered", "Delete", *_at(1, *_CALL), *_at(2, Failpoint.DECIDER_APPENDED)),
    *_cases("unlisted", "Create", *_at(1, *_LISTING, *_CALL, Failpoint.DECIDER_APPENDED)),
    *_cases("unlisted", "Update", *_at(1, *_LISTING, *_CALL, Failpoint.DECIDER_APPENDED)),
    *_cases("white", "Create", *_at(1, *WORKER), *_at(2, _BETWEEN), *_at(2, *_APPENDS)),
    *_cases("white", "Create", (Failpoint.WORKER_CALLED, 1), (_BETWEEN, 1), lost_reply=True),
    *_cases(
        "defined",
        "Update",
        *_at(1, Failpoint.SWEEPER_FOUND, Failpoint.SWEEPER_WOKE, *_CALL, _BETWEEN),
        *_at(2, Failpoint.DECIDER_BETWEEN_EVENTS),
        *_at(3, Failpoint.DECIDER_APPENDED),
    ),
    *_cases(
        "sealed",
        "Update",
        *_at(1, Failpoint.SWEEPER_FOUND, Failpoint.SWEEPER_WOKE, *_CALL, _BETWEEN),
        *_at(2, Failpoint.DECIDER_APPENDED),
    ),
    *_cases("sealed", "Create", *_at(1, *_CALL), *_at(2, Failpoint.DECIDER_APPENDED)),
]
"""Requirements of real APIs, one row each, with the steps that could go wrong."""

_STEPS_AFTER_CALL = ((Failpoint.WORKER_CALLED, 1), (Failpoint.DECIDER_APPENDED, 2))
_STEPS_AROUND_CALLS: dict[Operation, Sequence[tuple[Failpoint, int]]] = {
    "Create": ((Failpoint.WORKER_BEFORE_CALL, 1), *_STEPS_AFTER_CALL),
    "Update": _STEPS_AFTER_CALL,
    "Delete": _STEPS_AFTER_CALL,
}
_CALL_GAPS: dict[Row, dict[Operation, int]] = {
    "container": {"Create": 3, "Update": 2, "Delete": 2},
    "volume": {"Create": 0, "Delete": 1},
    "database": {"Create": 7, "Update": 5, "Delete": 1},
    "role": {"Create": 4, "Update": 5, "Delete": 4},
    "grant": {"Create": 6, "Update": 5, "Delete": 5},
    "disk": {"Create": 5, "Update": 4, "Delete": 1},
    "attachment": {"Create": 3, "Update": 2, "Delete": 3},
    "certificate": {"Create": 5, "Update": 5, "Delete": 2},
}
"""Number of gaps between the calls of each operation."""

REAL_KINDS = [
    *(
        case
        for row, operations in _CALL_GAPS.items()
        for operation, gaps in operations.items()
        for case in _cases(row, operation, *_STEPS_AROUND_CALLS[operation], *_at(gaps, _BETWEEN))
    ),
    *_cases(
        "replaced container",
        "Update",
        *_at(2, Failpoint.WORKER_CALLED),
        *_at(5, _BETWEEN),
        *_at(3, Failpoint.DECIDER_APPENDED),
    ),
]
"""Kinds on real systems: a kill around their calls and between any two calls."""

ALL = list(chain(PROCESS_KILLED, SERVER_KILLED, API_KILLED, PROCESS_PAUSED))
