"""Subjects: where each message travels.

=====================================  =========================================================
``rec.<what>.<ns>.<kind>.<name>``      what others publish: ``desired``, ``finalizer``,
                                       ``approval``, ``reference``, ``observed``, ``result``,
                                       ``timer``; the server stores it in the intake stream as
``in.<partition>.<what>.<ns>...``      partitioned by resource
``rec.<what>=<user>.<ns>...``          the same, by a user of the bus: permissions bind the token,
                                       so that the server vouches for the name (ADR 0042)
``listing.<config>.<kind>.<id>``      a whole scope as an observer saw it: begin, items, complete
``log.<ns>.<kind>.<name>.<class>``     the event log; class is ``fact``, ``outcome.<outcome>``, or
                                       ``action.<config>`` for the workers of one configuration
``rejection.<ns>.<kind>.<name>``       declarations that were refused: the log has nothing of them
``sched.<ns>.<kind>.<name>.<what>``    a message schedule, whose target is
``fired.<ns>.<kind>.<name>``           the timer that fired, which the intake stream takes in
``state.<ns>.<kind>.<name>``           a resource's state, kept to load it faster (a cache)
``rate.<limit>``                       how far the calls of one API's rate limit are reserved
``deadletter.<stage>.<ns>.<bytes>``    what could not be used, with the reason, and a size that it
                                       does not exceed; with one more token what is told once only;
                                       ``deadletter.handled``: what was done about it
``discarded``                          how many messages got no dead letter, by namespace and stage
=====================================  =========================================================

The number of subjects is bound to resources, not to events: many subjects cost the server memory.
"""

from __future__ import annotations

from typing import Literal, get_args

from events.names import InvalidNameError, ResourceKey, check_token

Intake = Literal["desired", "finalizer", "approval", "reference", "observed", "result", "timer"]
INTAKE_KINDS: tuple[Intake, ...] = get_args(Intake)
LogClass = Literal["fact", "action", "outcome"]

BY_CLIENTS: tuple[Intake, ...] = ("desired", "finalizer", "approval")
"""What users and services publish; the rest comes from the reconciler's own roles."""

REPLY_HEADER = "Reconciler-Reply-To"
"""Header with the inbox that wants the decider's answer (the reply subject proper is answered by
the server, when the message is stored)."""

USER_SIGN = "="
"""Between what is published and who publishes it: no name has one."""

_INTAKE_TOKENS = 6
_WHAT_PLACE = 2
_PUBLISHED_TOKENS = 5
_LOG_TOKENS = 5

NO_NAMESPACE = "="
"""The namespace of what has none, such as a subject that cannot be parsed: no name has a =."""

_NAMESPACE_PLACES = {
    "in": (_INTAKE_TOKENS, 3),
    "rec": (_PUBLISHED_TOKENS, 2),
    "log": (_LOG_TOKENS, 1),
}


def intake(what: Intake, key: ResourceKey, user: str = "") -> str:
    """Where to publish what is wanted, seen, done or due of one resource; ``user``: of the bus."""
    return f"rec.{what}{USER_SIGN}{user}.{key.tokens}" if user else f"rec.{what}.{key.tokens}"


def stored_intake(key: ResourceKey) -> str:
    """All that the intake has of one resource, whatever its partition, and whoever sent it."""
    return f"in.*.*.{key.tokens}"


EVERY_STORED_INTAKE = "in.>"


def intake_kind_of(subject: str) -> str:
    """Return what a message of the intake is about, by the subject that it is stored under."""
    parts = subject.split(".", 3)
    return parts[2].partition(USER_SIGN)[0] if len(parts) > _WHAT_PLACE else ""


def user_of(subject: str) -> str:
    """Return who published, as far as the subject says it; empty for the plain form."""
    parts = subject.split(".", 3)
    return parts[_WHAT_PLACE].partition(USER_SIGN)[2] if len(parts) > _WHAT_PLACE else ""


def stored_tokens(subject: str) -> str:
    """Return the part of ``in.<partition>.<what>.<ns>.<kind>.<name>`` that names the resource."""
    return subject.split(".", 3)[-1]


def actor(user: str, source: str) -> str:
    """Name who published: ``user=source`` where the server vouches for the user, else the source.

    A source that looks so without being vouched for is anonymous.
    """
    if user:
        return f"{user}{USER_SIGN}{source}"
    return f"anonymous{USER_SIGN}{source}" if USER_SIGN in source else source


def listing(provider_config: str, kind: str, listing_id: str) -> str:
    """Where an observer publishes what it sees of a scope."""
    return f"listing.{provider_config}.{kind}.{listing_id}"


def log(key: ResourceKey, place: str) -> str:
    """Where an event of a resource is recorded; ``place`` is as of ``events.log.log_place``."""
    return f"log.{key.tokens}.{place}"


def log_filter(key: ResourceKey) -> str:
    """All events of one resource."""
    return f"log.{key.tokens}.>"


def log_filter_of(subject: str) -> str:
    """Return the filter of all events of the resource that a subject of the log is about."""
    return ".".join(subject.split(".")[:4]) + ".>"


def outcome_filter(tokens: str) -> str:
    """All outcomes in the log of resources that match ``namespace.kind.name``."""
    return f"log.{tokens}.outcome.*"


def rejection(key: ResourceKey) -> str:
    """Where refused declarations of a resource are published."""
    return f"rejection.{key.tokens}"


def rejection_filter(tokens: str) -> str:
    """All refused declarations of resources that match ``namespace.kind.name``."""
    return f"rejection.{tokens}"


def schedule(key: ResourceKey, what: str) -> str:
    """The schedule of one timer of a resource; publishing again replaces it."""
    return f"sched.{key.tokens}.{what}"


def fired(key: ResourceKey) -> str:
    """Where a timer of a resource goes when it fires."""
    return f"fired.{key.tokens}"


def cached_state(key: ResourceKey) -> str:
    """Where a resource's state is kept."""
    return f"state.{key.tokens}"


def rate(limit: str) -> str:
    """Where it is kept how far the calls of a rate limit are reserved."""
    return f"rate.{limit}"


def deadletter(stage: str, namespace: str, size: int | str, told_once: str = "") -> str:
    """Where a message goes that could not be used at a stage.

    ``size``: bytes that its letter does not exceed, of a few sizes: the server counts messages by
    subject, not bytes. ``told_once``: a token that names what the letter is about, where the same
    would come for ever.
    """
    subject = f"deadletter.{stage}.{namespace}.{size}"
    return f"{subject}.{told_once}" if told_once else subject


def deadletter_filter(namespace: str) -> str:
    """All dead letters of one namespace."""
    return f"deadletter.*.{namespace}.>"


HANDLED = "deadletter.handled"
"""What was done about dead letters."""

DISCARDED = "discarded"
"""How many messages were given up without a dead letter."""


def parse_stored_intake(subject: str) -> tuple[Intake, ResourceKey]:
    """Read ``in.<partition>.<what>.<ns>.<kind>.<name>``.

    Raises ``ValueError`` (``InvalidNameError`` where a token is at fault).
    """
    parts = subject.split(".")
    if len(parts) != _INTAKE_TOKENS or parts[0] != "in":
        raise ValueError(
            f"subject {subject!r} is not of the form rec.<what>.<namespace>.<kind>.<name>; "
            "each part may use the characters A-Z a-z 0-9 _ -"
        )
    what, sign, user = parts[_WHAT_PLACE].partition(USER_SIGN)
    if sign:
        check_token(user, what="user")
    for known in INTAKE_KINDS:
        if what == known:
            return known, ResourceKey.checked(parts[3], parts[4], parts[5])
    raise ValueError(
        f"subject {subject!r}: {what!r} is unknown; use one of {', '.join(INTAKE_KINDS)}"
    )


def namespace_of(subject: str) -> str:
    """Return the namespace that a message of the intake or the log is of, or ``NO_NAMESPACE``."""
    parts = subject.split(".")
    tokens, place = _NAMESPACE_PLACES.get(parts[0], (0, 0))
    if len(parts) != tokens:
        return NO_NAMESPACE
    try:
        return check_token(parts[place], what="namespace")
    except InvalidNameError:
        return NO_NAMESPACE


def parse_intake(subject: str) -> tuple[Intake, ResourceKey]:
    """Read ``rec.<what>.<ns>.<kind>.<name>``; raises as ``parse_stored_intake``."""
    prefix, _, rest = subject.partition(".")
    is_one = prefix == "rec" and subject.count(".") == _PUBLISHED_TOKENS - 1
    return parse_stored_intake(f"in.0.{rest}" if is_one else subject)


def parse_log(subject: str) -> ResourceKey:
    """Read the key out of ``log.<ns>.<kind>.<name>.<class>…``; raises ``ValueError``."""
    parts = subject.split(".")
    if parts[4:5] in (["action"], ["outcome"]):
        del parts[5:6]  # its configuration, or which outcome
    if len(parts) != _LOG_TOKENS or parts[0] != "log":
        raise ValueError(f"subject {subject!r} is not a subject of the event log")
    return ResourceKey(parts[1], parts[2], parts[3])
