"""Minimal permissions of each principal on the bus, derived from the names of the streams.

A principal's user may publish and subscribe only to these subjects. Services have their own
accounts, not just users, because the server sends a response to any reply subject that a request
contains. Within one account, it could store one service's acknowledgement on another's subjects, or
in the log. Across accounts, a response can only return to the requester.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, get_args

import msgspec

from events import subjects
from events.dead_letter import Stage
from events.names import SYSTEM_NAMESPACE, ResourceKey, check_token
from events.provider_config import config_key
from events.stored_content import COMPOSED_KINDS
from infra.bus.streams import (
    DEADLETTERS,
    INTAKE,
    LISTINGS,
    LOG,
    RATES,
    REJECTIONS,
    ROWS,
    ROWS_PREFIX,
    STATES,
    TIMERS,
    follower_names,
)
from infra.bus.user import USER_INFO_SUBJECT

Principal = Literal[
    "decider",
    "worker",
    "observer",
    "projector",
    "operator",
    "auditor",
    "installer",
    "backup",
    "restore",
    "service",
]
PRINCIPALS: Final[tuple[Principal, ...]] = get_args(Principal)

INBOX: Final = "_INBOX"
ALL_STREAMS: Final = (
    INTAKE,
    TIMERS,
    LOG,
    REJECTIONS,
    STATES,
    LISTINGS,
    DEADLETTERS,
    RATES,
    ROWS,
)
_ALL_RESOURCES: Final = ResourceKey("*", "*", "*")
_CONFIGURATION: Final = config_key("*")
_API: Final = "$JS.API"

PURPOSES: Final[dict[Principal, str]] = {
    "decider": "decides: reads the intake, writes the log, timers, replies and dead letters",
    "worker": "calls the APIs: reads decided actions, writes results",
    "observer": "lists the APIs: writes observations and timers, accepts listings from services, "
    "answers workers",
    "projector": "maintains the read models: reads the log, writes rows",
    "operator": "manages the system: reads everything, declares in all namespaces, approves",
    "auditor": "reads the log, the outcomes and the read models, and writes nothing",
    "installer": "creates and upgrades the streams: `reconciler init`, and nothing else",
    "backup": "saves the log: reads it and the declarations in the intake, and writes nothing",
    "restore": "restores a log on a server without one, and does not change an existing log",
    "service": "declares in one namespace, and reads its own replies and outcomes",
}


class Permissions(msgspec.Struct, frozen=True):
    """The subjects of a user. ``denied``: exceptions to ``publish``."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    denied: tuple[str, ...] = ()


class Exchange(msgspec.Struct, frozen=True):
    """A subject that Reconciler's account exports and a service's account imports.

    ``kind``: a service publishes to a "service", and subscribes to a "stream".
    ``has_many_responses``: whether a request has several responses.
    """

    subject: str
    kind: Literal["service", "stream"]
    has_many_responses: bool = False


def principal_permissions(principal: Principal, inboxes: Sequence[str]) -> Permissions:
    """Return the permissions of a principal's user. ``inboxes``: the tokens after ``_INBOX``.

    The first inbox is the user's name, which the server verifies in declarations.

    Raises:
        ValueError: the principal is a service, which needs ``service_permissions``.
    """
    if principal == "service":
        raise ValueError(
            "the service principal has permissions per namespace; use service_permissions"
        )
    granted, subscribed = [*_GRANTS[principal]()], _own_inboxes(inboxes)
    if principal == "operator":
        granted += [
            USER_INFO_SUBJECT,
            *_declaration_subjects(inboxes[0], _ALL_RESOURCES, subjects.CLIENT_MESSAGES),
        ]
    if principal == "observer":
        subscribed = (subjects.NAME_OWNERS, *subscribed)
    return Permissions(tuple(granted), subscribed)


def service_permissions(
    namespace: str,
    inboxes: Sequence[str],
    *,
    finalizers: bool = False,
    provider_configs: Sequence[str] = (),
) -> Permissions:
    """Return the permissions of a service in one namespace, in an account with its imports."""
    exchanges = service_exchanges(
        namespace, inboxes, finalizers=finalizers, provider_configs=provider_configs
    )
    published = tuple(each.subject for each in exchanges if each.kind == "service")
    return Permissions(
        (USER_INFO_SUBJECT, *published),
        _own_inboxes(inboxes),
        _internal_declarations(namespace, inboxes),
    )


def _internal_declarations(namespace: str, inboxes: Sequence[str]) -> tuple[str, ...]:
    """Return the declarations that only Reconciler may make, because they contain internal data."""
    return tuple(
        subjects.intake("desired", ResourceKey(namespace, kind, "*"), inboxes[0])
        for kind in sorted(COMPOSED_KINDS)
    )


def service_exchanges(
    namespace: str,
    inboxes: Sequence[str],
    *,
    finalizers: bool = False,
    provider_configs: Sequence[str] = (),
) -> tuple[Exchange, ...]:
    """Return the imports of a service's account.

    ``finalizers``: whether the service may also remove its finalizers. ``provider_configs``: the
    configurations that it uses, and of which it may read only whether their API responds.

    Raises:
        ValueError: a service may not have this namespace.
    """
    check_token(namespace, what="namespace")
    if namespace == SYSTEM_NAMESPACE:
        raise ValueError(
            f"namespace {SYSTEM_NAMESPACE!r}: not allowed for a service, because resources "
            "there select the credentials of all tenants; use an operator"
        )
    namespace_key = ResourceKey(namespace, "*", "*")
    requests = [
        *_declaration_subjects(
            inboxes[0], namespace_key, ("desired", "finalizer") if finalizers else ("desired",)
        ),
        f"{_API}.INFO",
        f"{_API}.STREAM.NAMES",
    ]
    for name in provider_configs:
        check_token(name, what="provider_config")
        requests.append(f"{_API}.DIRECT.GET.{LOG}.{subjects.silence(name)}")
    pull_requests: list[str] = []
    # A user that may create a consumer can make the server deliver to any subject in Reconciler's
    # account, and so steal all other consumers' messages. So `init` creates the consumers of
    # services (ADR 0064).
    for stream, subject_filter in (
        (LOG, subjects.outcome_filter(namespace_key.tokens)),  # no other log events
        (REJECTIONS, subjects.rejection_filter(namespace_key.tokens)),
    ):
        requests.append(f"{_API}.DIRECT.GET.{stream}.{subject_filter}")
        for name in (namespace, *follower_names(namespace)):
            requests.append(f"{_API}.CONSUMER.INFO.{stream}.{name}")
            requests.append(f"{_API}.CONSUMER.RESET.{stream}.{name}")
            pull_requests.append(f"{_API}.CONSUMER.MSG.NEXT.{stream}.{name}")
        requests.append(f"$JS.ACK.{stream}.{namespace}.>")
    return (
        *(Exchange(subject, "service") for subject in requests),
        *(Exchange(subject, "service", has_many_responses=True) for subject in pull_requests),
        *(Exchange(subject, "stream") for subject in _own_inboxes(inboxes)),
    )


def _declaration_subjects(
    user: str, key: ResourceKey, granted: Sequence[subjects.Intake]
) -> Iterator[str]:
    """Yield the subjects for declarations in the user's name."""
    yield from (subjects.intake(what, key, user) for what in granted)


def _own_inboxes(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{INBOX}.{name}.>" for name in names)


# --- building blocks of the permissions


def _follow(*streams: str) -> Iterator[str]:
    """Follow streams from any position, and read their states."""
    for stream in streams:
        yield f"{_API}.STREAM.INFO.{stream}"
        yield f"{_API}.CONSUMER.CREATE.{stream}"  # an unnamed consumer cannot affect others
        yield f"$JS.FC.{stream}.>"


def _get(*streams: str) -> Iterator[str]:
    """Read individual messages, from a replica or from the leader."""
    for stream in streams:
        yield f"{_API}.DIRECT.GET.{stream}"
        yield f"{_API}.STREAM.MSG.GET.{stream}"


def _pull(stream: str, consumer: str) -> Iterator[str]:
    """Pull from shared consumers and acknowledge; ``*`` stands for all consumers of a stream."""
    yield f"{_API}.CONSUMER.INFO.{stream}.{consumer}"
    yield f"{_API}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    yield f"$JS.ACK.{stream}.{consumer}.>"


def _dead_letters(*stages: Stage) -> Iterator[str]:
    """Store dead letters for some stages, including those that are reported only once.

    This includes reading how much of its share a namespace uses, and counting discarded messages.
    """
    yield f"{_API}.DIRECT.GET.{DEADLETTERS}"
    yield f"{_API}.STREAM.INFO.{DEADLETTERS}"
    for stage in stages:
        yield subjects.deadletter(stage, "*", "*")
        yield subjects.deadletter(stage, "*", "*", "*")
    yield f"{_API}.STREAM.MSG.GET.{RATES}"
    yield subjects.DISCARDED


def _common() -> Iterator[str]:
    yield f"{_API}.INFO"
    yield f"{_API}.STREAM.NAMES"
    yield from _follow(LOG, ROWS)
    yield from _get(LOG, ROWS)
    yield f"{_API}.STREAM.MSG.GET.{STATES}"  # to detect whether the log has lost its newest events


def _call_apis() -> Iterator[str]:
    """Share rate limits with other processes, and report throttling and API failures."""
    yield f"{_API}.STREAM.INFO.{RATES}"
    yield f"{_API}.STREAM.MSG.GET.{RATES}"
    yield subjects.rate("*")
    yield subjects.intake("result", _CONFIGURATION)


def _all_roles() -> Iterator[str]:
    yield from _common()
    yield f"{_API}.STREAM.INFO.{INTAKE}"


def _decider() -> Iterator[str]:
    yield from _all_roles()
    yield from _pull(INTAKE, "*")  # all its consumers belong to deciders
    yield from _get(INTAKE)  # newer declarations, and all declarations of a resource
    yield f"{_API}.CONSUMER.UNPIN.{INTAKE}.*"
    yield f"{_API}.STREAM.PURGE.{INTAKE}"  # messages that all deciders have processed
    yield f"{_API}.STREAM.MSG.DELETE.{INTAKE}"  # messages that may contain a secret
    yield f"{_API}.DIRECT.GET.{STATES}"
    yield subjects.log_filter(_ALL_RESOURCES)
    yield subjects.cached_state(_ALL_RESOURCES)
    yield subjects.rejection(_ALL_RESOURCES)
    yield subjects.schedule(_ALL_RESOURCES, "*")
    yield from _dead_letters("intake", "declaration", "request", "decision")
    yield f"{INBOX}.>"  # replies, to the inbox of any requester


def _worker() -> Iterator[str]:
    yield from _all_roles()
    # No pattern distinguishes workers' consumers from services' consumers.
    yield from _pull(LOG, "*")
    actions = subjects.log(_ALL_RESOURCES, "action")
    yield f"{_API}.CONSUMER.CREATE.{LOG}.*.{actions}.*"  # when a configuration is declared
    yield from _call_apis()
    yield subjects.intake("result", _ALL_RESOURCES)
    yield subjects.NAME_OWNERS
    yield from _dead_letters("action")


def _observer() -> Iterator[str]:
    yield from _all_roles()
    yield from _follow(LISTINGS)
    yield from _call_apis()
    yield subjects.intake("observed", _ALL_RESOURCES)
    yield subjects.intake("reference", _ALL_RESOURCES)
    yield subjects.intake("timer", _ALL_RESOURCES)
    yield subjects.listing("*", "*", "*")
    yield from _dead_letters("listing", "observation")
    yield f"{INBOX}.>"  # answers about names, to the inbox of any worker


def _projector() -> Iterator[str]:
    yield from _all_roles()
    yield f"{_API}.STREAM.PURGE.{ROWS}"
    yield f"{ROWS_PREFIX}>"


def _auditor() -> Iterator[str]:
    yield from _common()
    yield from _follow(REJECTIONS)
    yield from _get(REJECTIONS)
    yield f"{_API}.DIRECT.GET.{LOG}.{subjects.silence('*')}"  # as services read it


def _operator() -> Iterator[str]:
    yield f"{_API}.INFO"
    yield f"{_API}.STREAM.NAMES"
    yield f"{_API}.STREAM.LIST"
    yield from _follow("*")
    yield from _get("*")
    yield f"{_API}.DIRECT.GET.{LOG}.{subjects.silence('*')}"  # as services read it
    yield f"{_API}.CONSUMER.INFO.*.*"
    yield f"{_API}.CONSUMER.NAMES.*"
    yield f"{_API}.CONSUMER.LIST.*"
    yield subjects.HANDLED


def _installer() -> Iterator[str]:
    yield f"{_API}.INFO"
    yield f"{_API}.STREAM.NAMES"
    for stream in ALL_STREAMS:
        yield from (f"{_API}.STREAM.{what}.{stream}" for what in ("INFO", "CREATE", "UPDATE"))
    for stream in (INTAKE, LOG, REJECTIONS):
        yield f"{_API}.CONSUMER.INFO.{stream}.*"
        yield f"{_API}.CONSUMER.CREATE.{stream}.*.>"
        yield f"{_API}.CONSUMER.PAUSE.{stream}.*"  # to resume a paused consumer
    for stream in (LOG, REJECTIONS):
        yield f"{_API}.CONSUMER.RESET.{stream}.*"  # so that a new service starts with new outcomes
    yield f"{_API}.CONSUMER.NAMES.{LOG}"  # to find the consumers that workers created


def _backup() -> Iterator[str]:
    yield f"{_API}.INFO"
    yield f"{_API}.STREAM.NAMES"
    yield from _follow(LOG)
    yield from _get(LOG, INTAKE, ROWS)
    yield f"{_API}.STREAM.MSG.GET.{STATES}"  # to detect whether the log has lost its newest events
    yield f"{_API}.STREAM.INFO.{INTAKE}"
    yield f"{_API}.STREAM.INFO.{ROWS}"  # contains a copy of the log's identity
    yield f"{_API}.CONSUMER.INFO.{INTAKE}.*"  # to find unprocessed declarations
    yield f"{_API}.CONSUMER.NAMES.{LOG}"  # to find the namespaces with services


def _restore() -> Iterator[str]:
    """Create streams and write the log, but delete nothing, so that no log can be replaced."""
    yield from _installer()
    yield from _follow(LOG)
    yield from _get(LOG)
    yield f"{_API}.STREAM.MSG.GET.{ROWS}"  # both show whether the log has lost its newest events
    yield f"{_API}.STREAM.MSG.GET.{STATES}"
    yield subjects.log_filter(_ALL_RESOURCES)
    yield "rec.*.*.*.*"  # unprocessed declarations, as their original users


_GRANTS: Final[dict[Principal, Callable[[], Iterator[str]]]] = {
    "decider": _decider,
    "worker": _worker,
    "observer": _observer,
    "projector": _projector,
    "operator": _operator,
    "auditor": _auditor,
    "installer": _installer,
    "backup": _backup,
    "restore": _restore,
}
