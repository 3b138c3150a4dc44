"""Subjects: where each message travels.

=====================================  =========================================================
``rec.<what>.<ns>.<kind>.<name>``      what others publish: ``desired``, ``finalizer``,
                                       ``approval``, ``reference``, ``observed``, ``result``,
                                       ``timer``; the server stores it in the intake stream as
``in.<partition>.<what>.<ns>...``      partitioned by shape
``snapshot.<config>.<kind>.<id>``      a whole scope as an observer saw it: begin, items, complete
``log.<ns>.<kind>.<name>.<class>``     the event log; class is ``fact``, ``action`` or ``outcome``
``outcome.<ns>.<kind>.<name>``         the outcome stream for other services
``sched.<ns>.<kind>.<name>.<what>``    a message schedule, whose target is
``fired.<ns>.<kind>.<name>``           the timer that fired, which the intake stream takes in
``snap.<ns>.<kind>.<name>``            the newest snapshot of a shape's state (a cache)
``rate.<limit>``                       how far the calls of one API's rate limit are reserved
``deadletter.<stage>``                 what could not be used, with the reason; with one more token
                                       what is told once only; and under the name ``handled`` what
                                       was done about it
=====================================  =========================================================

The number of subjects is bound to shapes, not to events: many subjects cost the server memory.
"""

from __future__ import annotations

from typing import Literal, get_args

from events.names import ShapeKey

Intake = Literal["desired", "finalizer", "approval", "reference", "observed", "result", "timer"]
INTAKE_KINDS: tuple[Intake, ...] = get_args(Intake)
LogClass = Literal["fact", "action", "outcome"]
LOG_CLASSES: tuple[LogClass, ...] = ("fact", "action", "outcome")

REPLY_HEADER = "Reconciler-Reply-To"
"""Header with the inbox that wants the decider's answer (the reply subject proper is answered by
the server, when the message is stored)."""

_INTAKE_TOKENS = 6
_PUBLISHED_TOKENS = 5
_LOG_TOKENS = 5


def intake(what: Intake, key: ShapeKey) -> str:
    """Where to publish what is wanted, seen, done or due of one shape."""
    return f"rec.{what}.{key.tokens}"


def stored_intake_filter(what: Intake, key: ShapeKey) -> str:
    """Where the intake has them, whatever its partition."""
    return f"in.*.{what}.{key.tokens}"


def snapshot(provider_config: str, kind: str, snapshot_id: str) -> str:
    """Where an observer publishes what it sees of a scope."""
    return f"snapshot.{provider_config}.{kind}.{snapshot_id}"


def log(key: ShapeKey, log_class: LogClass) -> str:
    """Where an event of a shape is recorded."""
    return f"log.{key.tokens}.{log_class}"


def log_filter(key: ShapeKey) -> str:
    """All events of one shape."""
    return f"log.{key.tokens}.>"


def outcome(key: ShapeKey) -> str:
    """Where the outcomes of a shape are published."""
    return f"outcome.{key.tokens}"


def schedule(key: ShapeKey, what: str) -> str:
    """The schedule of one timer of a shape; publishing again replaces it."""
    return f"sched.{key.tokens}.{what}"


def fired(key: ShapeKey) -> str:
    """Where a timer of a shape goes when it fires."""
    return f"fired.{key.tokens}"


def state_snapshot(key: ShapeKey) -> str:
    """Where the newest snapshot of a shape's state is kept."""
    return f"snap.{key.tokens}"


def rate(limit: str) -> str:
    """Where it is kept how far the calls of a rate limit are reserved."""
    return f"rate.{limit}"


def deadletter(stage: str, told_once: str = "") -> str:
    """Where a message goes that could not be used at a stage.

    ``told_once``: a token that names what the letter is about, where the same would come for ever.
    """
    return f"deadletter.{stage}.{told_once}" if told_once else f"deadletter.{stage}"


HANDLED = "deadletter.handled"
"""What was done about dead letters."""


def parse_stored_intake(subject: str) -> tuple[Intake, ShapeKey]:
    """Read ``in.<partition>.<what>.<ns>.<kind>.<name>``.

    Raises ``ValueError`` (``InvalidNameError`` where a token is at fault).
    """
    parts = subject.split(".")
    if len(parts) != _INTAKE_TOKENS or parts[0] != "in":
        raise ValueError(
            f"subject {subject!r} is not of the form rec.<what>.<namespace>.<kind>.<name>, "
            "each of the characters A-Z a-z 0-9 _ -"
        )
    what = parts[2]
    for known in INTAKE_KINDS:
        if what == known:
            return known, ShapeKey.checked(parts[3], parts[4], parts[5])
    raise ValueError(f"{what!r} in {subject!r} is not one of {', '.join(INTAKE_KINDS)}")


def parse_intake(subject: str) -> tuple[Intake, ShapeKey]:
    """Read ``rec.<what>.<ns>.<kind>.<name>``; raises as ``parse_stored_intake``."""
    prefix, _, rest = subject.partition(".")
    is_one = prefix == "rec" and subject.count(".") == _PUBLISHED_TOKENS - 1
    return parse_stored_intake(f"in.0.{rest}" if is_one else subject)


def parse_log(subject: str) -> ShapeKey:
    """Read the key out of ``log.<ns>.<kind>.<name>.<class>``; raises ``ValueError``."""
    parts = subject.split(".")
    if len(parts) != _LOG_TOKENS or parts[0] != "log":
        raise ValueError(f"subject {subject!r} is not of the event log")
    return ShapeKey(parts[1], parts[2], parts[3])
