"""Subjects: the addresses of all messages.

=====================================  =========================================================
``rec.<what>.<ns>.<kind>.<name>``      messages to Reconciler: ``desired``, ``finalizer``,
                                       ``approval``, ``reference``, ``observed``, ``result``,
                                       ``timer``; the server stores them in the intake stream as
``in.<partition>.<what>.<ns>...``      partitioned by resource
``rec.<what>=<user>.<ns>...``          the same, from a bus user; permissions restrict the
                                       token, so the server verifies the user (ADR 0042)
``listing.<config>.<kind>.<id>``       a listing of a scope: its start, its items and its end
``log.<ns>.<kind>.<name>.<class>``     the event log; class is ``fact``, ``outcome.<outcome>``,
                                       ``action.<config>`` for the workers of one configuration,
                                       or ``silence`` for whether an API responds
``rejection.<ns>.<kind>.<name>``       rejected declarations, which the log does not contain
``sched.<ns>.<kind>.<name>.<what>``    a message schedule, whose target is
``fired.<ns>.<kind>.<name>``           the timer that fired, which the intake stream stores
``state.<ns>.<kind>.<name>``           cached state of a resource
``rate.<limit>``                       time until which the calls of a rate limit are reserved
``deadletter.<stage>.<ns>.<bytes>``    dead letters, with an upper limit on their size; one more
                                       token identifies a dead letter that is stored only once
``deadletter.handled``                 retries and dismissals of dead letters
``discarded``                          counts of messages discarded without a dead letter
``name-owners``                        requests of workers to observers, which nothing stores
=====================================  =========================================================

The number of subjects depends on the resources, not on the events, because subjects cost memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, get_args

from events.names import (
    PROVIDER_CONFIG_KIND,
    SYSTEM_NAMESPACE,
    InvalidNameError,
    ResourceKey,
    check_token,
)

Intake = Literal["desired", "finalizer", "approval", "reference", "observed", "result", "timer"]
INTAKE_KINDS: tuple[Intake, ...] = get_args(Intake)
LogClass = Literal["fact", "action", "outcome", "silence"]

SILENCE: Final = "silence"
"""Class of the events about whether an API responds. Permissions can allow just these."""

CLIENT_MESSAGES: tuple[Intake, ...] = ("desired", "finalizer", "approval")
"""Messages that users and services publish. Only Reconciler's roles publish the others."""

REPLY_HEADER = "Reconciler-Reply-To"
"""Header with the inbox for the decider's reply. The reply subject of the message itself receives
the server's acknowledgement."""

USER_SEPARATOR = "="
"""Separator between the kind of a message and its user. No name contains it."""

MAX_CACHED_SUBJECTS: Final = 2_048
"""Number of parsed subjects to cache. The subject of a message is parsed up to six times."""

_INTAKE_TOKENS = 6
_WHAT_INDEX = 2
_PUBLISHED_TOKENS = 5
_LOG_TOKENS = 5

NAME_OWNERS: Final = "name-owners"
"""Subject of requests about which resources own external names."""

NO_NAMESPACE = "="
"""Namespace of messages without one, such as those with an invalid subject."""

_NAMESPACE_INDEXES = {
    "in": (_INTAKE_TOKENS, 3),
    "rec": (_PUBLISHED_TOKENS, 2),
    "log": (_LOG_TOKENS, 1),
}


def intake(what: Intake, key: ResourceKey, user: str = "") -> str:
    """Return the subject of a message to one resource. ``user`` is the verified bus user."""
    return f"rec.{what}{USER_SEPARATOR}{user}.{key.tokens}" if user else f"rec.{what}.{key.tokens}"


def stored_intake(key: ResourceKey) -> str:
    """Return the filter for a resource's stored messages, in all partitions and of all users."""
    return f"in.*.*.{key.tokens}"


ALL_STORED_INTAKE = "in.>"


def intake_kind_of(subject: str) -> str:
    """Return the kind of an intake message from its stored subject, such as ``desired``."""
    parts = subject.split(".", 3)
    return parts[2].partition(USER_SEPARATOR)[0] if len(parts) > _WHAT_INDEX else ""


def user_of(subject: str) -> str:
    """Return the user in a subject; empty if it contains none."""
    parts = subject.split(".", 3)
    return parts[_WHAT_INDEX].partition(USER_SEPARATOR)[2] if len(parts) > _WHAT_INDEX else ""


def stored_tokens(subject: str) -> str:
    """Return the tokens of the resource in ``in.<partition>.<what>.<ns>.<kind>.<name>``."""
    return subject.split(".", 3)[-1]


def actor(user: str, source: str) -> str:
    """Return the actor: ``user=source`` for a verified user, or else the source.

    Without a verified user, a source that contains = is anonymous.
    """
    if user:
        return f"{user}{USER_SEPARATOR}{source}"
    return f"anonymous{USER_SEPARATOR}{source}" if USER_SEPARATOR in source else source


def listing(provider_config: str, kind: str, listing_id: str) -> str:
    """Return the subject of a listing."""
    return f"listing.{provider_config}.{kind}.{listing_id}"


def log(key: ResourceKey, suffix: str) -> str:
    """Return the subject of an event. ``suffix`` is the result of ``events.log.log_suffix``."""
    return f"log.{key.tokens}.{suffix}"


def log_filter(key: ResourceKey) -> str:
    """Return the filter for all events of one resource."""
    return f"log.{key.tokens}.>"


def log_filter_of(subject: str) -> str:
    """Return the filter for all events of the resource in a subject of the log."""
    return ".".join(subject.split(".")[:4]) + ".>"


def outcome_filter(tokens: str) -> str:
    """Return the filter for the outcomes of all resources that match ``namespace.kind.name``."""
    return f"log.{tokens}.outcome.*"


def silence(provider_config: str) -> str:
    """Return the subject of the events about whether the API of a configuration responds."""
    return log(ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, provider_config), SILENCE)


def rejection(key: ResourceKey) -> str:
    """Return the subject of a resource's rejected declarations."""
    return f"rejection.{key.tokens}"


def rejection_filter(tokens: str) -> str:
    """Return the filter for the rejections of resources that match ``namespace.kind.name``."""
    return f"rejection.{tokens}"


def schedule(key: ResourceKey, purpose: str) -> str:
    """Return the subject of a timer's schedule. A second publish replaces the first."""
    return f"sched.{key.tokens}.{purpose}"


def fired(key: ResourceKey) -> str:
    """Return the subject of a fired timer."""
    return f"fired.{key.tokens}"


def cached_state(key: ResourceKey) -> str:
    """Return the subject of a resource's cached state."""
    return f"state.{key.tokens}"


def rate(limit: str) -> str:
    """Return the subject of a rate limit's reserved time."""
    return f"rate.{limit}"


def deadletter(stage: str, namespace: str, size: int | str, dedup_key: str = "") -> str:
    """Return the subject of a dead letter.

    ``size``: one of a few upper limits on its size in bytes, because the server counts messages by
    subject, not bytes. ``dedup_key``: a token that identifies the cause, if the same message would
    otherwise become a dead letter repeatedly.
    """
    subject = f"deadletter.{stage}.{namespace}.{size}"
    return f"{subject}.{dedup_key}" if dedup_key else subject


def deadletter_filter(namespace: str) -> str:
    """Return the filter for the dead letters of one namespace."""
    return f"deadletter.*.{namespace}.>"


HANDLED = "deadletter.handled"
"""Subject of retries and dismissals of dead letters."""

DISCARDED = "discarded"
"""Subject of the counts of messages that were discarded without a dead letter."""


@lru_cache(MAX_CACHED_SUBJECTS)
def parse_stored_intake(subject: str) -> tuple[Intake, ResourceKey]:
    """Parse ``in.<partition>.<what>.<ns>.<kind>.<name>``.

    Raises ``ValueError``, or ``InvalidNameError`` for an invalid token.
    """
    parts = subject.split(".")
    if len(parts) != _INTAKE_TOKENS or parts[0] != "in":
        raise ValueError(
            f"subject {subject!r} is not of the form rec.<what>.<namespace>.<kind>.<name>; "
            "each part may use the characters A-Z a-z 0-9 _ -"
        )
    what, separator, user = parts[_WHAT_INDEX].partition(USER_SEPARATOR)
    if separator:
        check_token(user, what="user")
    for known in INTAKE_KINDS:
        if what == known:
            return known, ResourceKey.checked(parts[3], parts[4], parts[5])
    raise ValueError(
        f"subject {subject!r}: {what!r} is unknown; use one of {', '.join(INTAKE_KINDS)}"
    )


@lru_cache(MAX_CACHED_SUBJECTS)
def namespace_of(subject: str) -> str:
    """Return the namespace in a subject of the intake or the log, or ``NO_NAMESPACE``."""
    parts = subject.split(".")
    tokens, index = _NAMESPACE_INDEXES.get(parts[0], (0, 0))
    if len(parts) != tokens:
        return NO_NAMESPACE
    try:
        return check_token(parts[index], what="namespace")
    except InvalidNameError:
        return NO_NAMESPACE


def parse_intake(subject: str) -> tuple[Intake, ResourceKey]:
    """Parse ``rec.<what>.<ns>.<kind>.<name>``.

    Raises the same errors as ``parse_stored_intake``.
    """
    prefix, _, rest = subject.partition(".")
    is_published = prefix == "rec" and subject.count(".") == _PUBLISHED_TOKENS - 1
    return parse_stored_intake(f"in.0.{rest}" if is_published else subject)


def parse_log(subject: str) -> ResourceKey:
    """Return the key in ``log.<ns>.<kind>.<name>.<class>…``. Raises ``ValueError``."""
    parts = subject.split(".")
    if parts[4:5] in (["action"], ["outcome"]):
        del parts[5:6]  # the configuration or the outcome
    if len(parts) != _LOG_TOKENS or parts[0] != "log":
        raise ValueError(f"subject {subject!r} is not a subject of the event log")
    return ResourceKey(parts[1], parts[2], parts[3])
