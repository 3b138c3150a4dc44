"""Failpoints: named steps at which a process can be made to die, to stop, or to fail, for tests.

The environment variable ``RECONCILER_FAILPOINT`` arms one of them for a process, when its roles
start: ``NAME[/OPERATION][:ARRIVAL][=ACTION]``.

- ``OPERATION`` (``Create``, ``Update``, ``Delete``): count only arrivals with that operation; for
  the worker's steps, which know it.
- ``ARRIVAL``: at which arrival it happens, 1 by default. It happens once.
- ``ACTION``: ``kill`` (SIGKILL to the process itself, the default), ``kill:PID`` (SIGKILL to
  another process, such as the NATS server, at exactly this step), ``stop`` (SIGSTOP to itself: a
  paused process that others hold for dead) or ``error`` (``OSError`` is raised).

For example ``worker.called/Delete:2=stop``. What cannot be read is a ``ConfigurationError`` at the
start. Before it acts it says so in a line on standard error.

Unset, a step costs a call and one comparison with None. The idea is that of FreeBSD's fail(9) and
of etcd's gofail: a crash at each step can only be tested where each step has a name.
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
    """Every step that has a name, in the order in which a declaration passes them."""

    INIT_STEP = "init.step"
    """``init`` has made or upgraded one stream or consumer; others are to come."""

    RESTORE_STEP = "restore.step"
    """``restore`` has taken one more step; ``INIT_STEP`` comes in between."""

    DECIDER_TOOK = "decider.took"
    """A batch was taken from the intake; nothing is decided."""

    DECIDER_DEAD_LETTERED = "decider.dead-lettered"
    """Dead letters are stored; their messages are not acknowledged."""

    DECIDER_DECIDED = "decider.decided"
    """Turns are decided; nothing is appended."""

    DECIDER_BETWEEN_EVENTS = "decider.between_events"
    """The first event of a turn of two is in the log, the second is not."""

    DECIDER_BATCH_HALF_SENT = "decider.batch_half_sent"
    """The server has all messages of an atomic batch but the one that commits it."""

    DECIDER_APPENDED = "decider.appended"
    """The events are in the log; timers, answers, rejections and dead letters are not sent."""

    DECIDER_TOLD = "decider.told"
    """All of it is sent; the messages are not acknowledged."""

    DECIDER_ACKED = "decider.acked"
    """The batch is acknowledged, as far as this process knows: that may not have been sent."""

    WORKER_CLAIMED = "worker.claimed"
    """An action was taken, and nothing was looked up or called."""

    WORKER_BEFORE_CALL = "worker.before_call"
    """The action is known to be open; the API is called next."""

    WORKER_BETWEEN_CALLS = "worker.between_calls"
    """A request of the action was made, and its next one is about to be: where it needs several."""

    WORKER_CALLED = "worker.called"
    """The call has ended, with an answer or without; nothing is reported."""

    WORKER_REPORTED = "worker.reported"
    """The result is in the intake; the action is not acknowledged."""

    WORKER_ACKED = "worker.acked"
    """The action is acknowledged, as far as this process knows."""

    OBSERVER_LISTED = "observer.listed"
    """A listing, or the read of one object, is compared; nothing is published."""

    OBSERVER_PUBLISHED = "observer.published"
    """What it showed is in the intake."""

    SWEEPER_FOUND = "sweeper.found"
    """Resources were found that should have been woken; nothing is published."""

    SWEEPER_WOKE = "sweeper.woke"
    """They are woken."""

    PROJECTOR_FOLDED = "projector.folded"
    """Changes of the read models were gathered; no row is written."""

    PROJECTOR_SAVED = "projector.saved"
    """The rows and their checkpoint are written."""

    @property
    def knows_operation(self) -> bool:
        """Whether an arrival here belongs to one action, so that its operation is known."""
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


class _Armed:
    """One failpoint that waits for its arrival."""

    def __init__(self, text: str) -> None:
        found = _SYNTAX.fullmatch(text)
        if found is None:
            raise ConfigurationError(f"{VARIABLE}={text!r}: invalid; write {_FORM}")
        self.point = _point(found["name"])
        self.operation = _operation(self.point, found["operation"])
        self.left = int(found["arrival"] or 1)
        if self.left < 1:
            raise ConfigurationError(f"{VARIABLE}={text!r}: the arrival must be at least 1")
        self.action, self.pid = _action(found["action"] or "kill")

    def arrive(self, point: Failpoint, operation: str) -> bool:
        """Count an arrival; return whether it is the one."""
        if point is not self.point or self.operation not in ("", operation):
            return False
        self.left -= 1
        return self.left == 0

    def act(self) -> None:
        """Do what was asked for; raises ``OSError`` if that is it."""
        if self.pid:  # before it is told: who reads it may start that process again
            os.kill(self.pid, _SIGNALS[self.action])
        sys.stderr.write(f"failpoint {self.point} reached: {self.action}\n")
        sys.stderr.flush()
        if self.action == "error":
            raise OSError(f"failpoint {self.point}")
        if not self.pid:
            os.kill(os.getpid(), _SIGNALS[self.action])


_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_armed: _Armed | None = None


def arm(text: str | None) -> None:
    """Arm one failpoint in this process, in place of another one; None or nothing disarms.

    Raises ``ConfigurationError`` for text that is not of the form of the module's description.
    """
    global _armed  # noqa: PLW0603 - one failpoint a process, read at every step
    _armed = _Armed(text) if text else None


def arm_from_environment() -> None:
    """Arm what the environment asks for; raises ``ConfigurationError``."""
    text = os.environ.get(VARIABLE)
    if text:
        arm(text)


def reach(point: Failpoint, operation: Operation | str = "") -> None:
    """Report that this process has come to a step; nothing happens unless that one is armed."""
    if _armed is None:
        return
    _arrived(_armed, point, operation)


def is_armed(point: Failpoint) -> bool:
    """Whether this point is armed: for a step that would have to be prepared."""
    return _armed is not None and _armed.point is point


def _arrived(armed: _Armed, point: Failpoint, operation: str) -> None:
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
    if not point.knows_operation:
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
