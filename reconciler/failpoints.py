"""Failpoints: named steps at which tests make a process die, stop or fail.

The ``RECONCILER_FAILPOINT`` environment variable arms one of them for a process, when its roles
start: ``NAME[/OPERATION][:ARRIVAL][=ACTION]``.

- ``OPERATION`` (``Create``, ``Update``, ``Delete``): count only arrivals with that operation. Only
  steps of the worker that belong to an action support it.
- ``ARRIVAL``: number of the arrival at which the action happens, once. The default is 1.
- ``ACTION``: ``kill`` (SIGKILL to the process itself, the default), ``kill:PID`` (SIGKILL to
  another process, such as the NATS server, at exactly this step), ``stop`` (SIGSTOP to itself, so
  that other processes consider it dead) or ``error`` (``OSError`` is raised).

For example ``worker.called/Delete:2=stop``. An invalid value raises ``ConfigurationError`` at
startup. A failpoint that is reached writes a line to standard error.

If none is armed, a step costs a call and one comparison with None. As in FreeBSD's fail(9) and
etcd's gofail, a crash at a step can be tested because the step has a name.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from enum import StrEnum
from typing import get_args

from events.log import Operation
from reconciler.errors import ConfigurationError

VARIABLE = "RECONCILER_FAILPOINT"


class Failpoint(StrEnum):
    """Every named step, in the order in which a declaration passes through them."""

    INIT_STEP = "init.step"
    """``init`` has created or upgraded one stream or consumer; more follow."""

    RESTORE_STEP = "restore.step"
    """``restore`` has completed one more step; ``INIT_STEP`` occurs in between."""

    DECIDER_TOOK = "decider.took"
    """A batch was pulled from the intake; nothing has been decided yet."""

    DECIDER_DEAD_LETTERED = "decider.dead-lettered"
    """Dead letters were stored; their messages have not been acknowledged."""

    DECIDER_DECIDED = "decider.decided"
    """Turns have been decided; nothing has been appended."""

    DECIDER_BETWEEN_EVENTS = "decider.between_events"
    """The first event of a two-event turn is in the log; the second is not."""

    DECIDER_BATCH_HALF_SENT = "decider.batch_half_sent"
    """The server has all messages of an atomic batch except the one that commits it."""

    DECIDER_MOVES = "decider.moves"
    """The events are in the log, and the next steps of the resource's moves are not."""

    DECIDER_APPENDED = "decider.appended"
    """The events are in the log; timers, replies, rejections and dead letters were not sent."""

    DECIDER_TOLD = "decider.told"
    """Timers, replies, rejections and dead letters were sent; nothing has been acknowledged."""

    DECIDER_ACKED = "decider.acked"
    """This process acknowledged the batch; the acknowledgment may not have been sent."""

    WORKER_CLAIMED = "worker.claimed"
    """A worker received an action; nothing has been looked up or called yet."""

    WORKER_BEFORE_CALL = "worker.before_call"
    """The action is still open; the API is called next."""

    WORKER_BETWEEN_CALLS = "worker.between_calls"
    """One of an action's several requests was made; the next one follows."""

    WORKER_CALLED = "worker.called"
    """The call has ended, with or without a response; nothing has been reported yet."""

    WORKER_REPORTED = "worker.reported"
    """The result is in the intake; the action has not been acknowledged."""

    WORKER_ACKED = "worker.acked"
    """This process acknowledged the action."""

    OBSERVER_LISTED = "observer.listed"
    """A listing, or the read of one object, has been compared; nothing has been published yet."""

    OBSERVER_PUBLISHED = "observer.published"
    """The results of the comparison are in the intake."""

    SWEEPER_FOUND = "sweeper.found"
    """Overdue resources were found; nothing has been published yet."""

    SWEEPER_WOKE = "sweeper.woke"
    """The overdue resources have been woken."""

    PROJECTOR_FOLDED = "projector.folded"
    """Changes to the read models were collected; no row has been written yet."""

    PROJECTOR_SAVED = "projector.saved"
    """The rows and their checkpoint have been written."""

    @property
    def has_operation(self) -> bool:
        """Whether an arrival at this step belongs to one action, which has an operation."""
        return self in _WITH_OPERATION


_WITH_OPERATION = frozenset(
    {
        Failpoint.WORKER_CLAIMED,
        Failpoint.WORKER_BEFORE_CALL,
        Failpoint.WORKER_BETWEEN_CALLS,
        Failpoint.WORKER_CALLED,
    }
)
_SYNTAX = re.compile(
    r"(?P<name>[^/:=]+)(/(?P<operation>[^:=]+))?(:(?P<arrival>[0-9]+))?(=(?P<action>.+))?"
)
_FORM = "NAME[/OPERATION][:ARRIVAL][=ACTION]"


class _ArmedFailpoint:
    """An armed failpoint, which counts its arrivals."""

    def __init__(self, text: str) -> None:
        found = _SYNTAX.fullmatch(text)
        if found is None:
            raise ConfigurationError(f"{VARIABLE}={text!r}: invalid; use {_FORM}")
        self.point = _point(found["name"])
        self.operation = _operation(self.point, found["operation"])
        self.arrivals_left = int(found["arrival"] or 1)
        if self.arrivals_left < 1:
            raise ConfigurationError(f"{VARIABLE}={text!r}: the arrival must be at least 1")
        self.action, self.pid = _action(found["action"] or "kill")

    def arrive(self, point: Failpoint, operation: str) -> bool:
        """Count an arrival, and return whether the failpoint must act."""
        if point is not self.point or self.operation not in ("", operation):
            return False
        self.arrivals_left -= 1
        return self.arrivals_left == 0

    def act(self) -> None:
        """Perform the action. Raises ``OSError`` for ``error``."""
        if self.pid:  # before the message, because its reader may restart that process
            os.kill(self.pid, _SIGNALS[self.action])
        sys.stderr.write(f"failpoint {self.point} reached: {self.action}\n")
        sys.stderr.flush()
        if self.action == "error":
            raise OSError(f"failpoint {self.point}")
        if not self.pid:
            os.kill(os.getpid(), _SIGNALS[self.action])


_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_armed: _ArmedFailpoint | None = None


def arm(text: str | None) -> None:
    """Arm one failpoint in this process instead of any other. None or an empty string disarms it.

    Raises ``ConfigurationError`` for text in a form other than the one described above.
    """
    global _armed  # noqa: PLW0603 - one failpoint per process, read at every step
    _armed = _ArmedFailpoint(text) if text else None


def arm_from_environment() -> None:
    """Arm the failpoint that the environment names. Raises ``ConfigurationError``."""
    text = os.environ.get(VARIABLE)
    if text:
        arm(text)


def reach(point: Failpoint, operation: Operation | str = "") -> None:
    """Report that this process has reached a step. Nothing happens unless it is armed."""
    if _armed is None:
        return
    _count_arrival(_armed, point, operation)


def is_armed(point: Failpoint) -> bool:
    """Return whether a failpoint is armed, for a step that needs preparation."""
    return _armed is not None and _armed.point is point


def _count_arrival(armed: _ArmedFailpoint, point: Failpoint, operation: str) -> None:
    if armed.arrive(point, operation):
        arm(None)
        armed.act()


def _point(name: str) -> Failpoint:
    try:
        return Failpoint(name)
    except ValueError:
        known = ", ".join(Failpoint)
        raise ConfigurationError(
            f"{VARIABLE}: unknown failpoint {name!r}; use one of {known}"
        ) from None


def _operation(point: Failpoint, operation: str | None) -> str:
    if operation is None:
        return ""
    known = get_args(Operation)
    if operation not in known:
        raise ConfigurationError(
            f"{VARIABLE}: unknown operation {operation!r}; use one of {', '.join(known)}"
        )
    if not point.has_operation:
        allowed = ", ".join(sorted(_WITH_OPERATION))
        raise ConfigurationError(
            f"{VARIABLE}: {point} does not support an operation; omit it, or use one of {allowed}"
        )
    return operation


def _action(text: str) -> tuple[str, int]:
    name, colon, pid = text.partition(":")
    if name == "kill" and colon and pid.isdecimal() and int(pid) > 1:
        return name, int(pid)
    if name in ("kill", "stop", "error") and not colon:
        return name, 0
    raise ConfigurationError(
        f"{VARIABLE}: unknown action {text!r}; use kill, kill:PID, stop or error"
    )
