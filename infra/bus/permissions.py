"""The least that each principal needs of the bus, built of the names that the streams are built of.

A principal's user may publish and subscribe to what stands here, and to nothing else. Services have
an account each, not only a user: the server answers a request at whatever reply subject it names,
and so would write its acknowledgement for one service onto the subjects of another one, or into the
log. Across accounts an answer goes back to where the question came from, and nowhere else.
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
from infra.bus.user import WHO_AM_I

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
_EVERY: Final = ResourceKey("*", "*", "*")
_CONFIGURATION: Final = config_key("*")
_API: Final = "$JS.API"

PURPOSES: Final[dict[Principal, str]] = {
    "decider": "decides: reads the intake, writes the log, timers, replies and dead letters",
    "worker": "calls the APIs: reads decided actions, writes results",
    "observer": "lists the APIs: writes observations and timers, accepts listings of services",
    "projector": "maintains the read models: reads the log, writes rows",
    "operator": "manages the system: reads everything, declares in all namespaces, approves",
    "auditor": "reads the log, the outcomes and the read models, and writes nothing",
    "installer": "creates and upgrades the streams: `reconciler init`, and nothing else",
    "backup": "saves the log: reads it and the declarations in the intake, and writes nothing",
    "restore": "restores a log on a server without one, and changes no existing log",
    "service": "declares in one namespace, and reads its own replies and outcomes",
}


class Permissions(msgspec.Struct, frozen=True):
    """What a user may publish, and subscribe to; ``denied`` are exceptions from ``publish``."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    denied: tuple[str, ...] = ()


class Exchange(msgspec.Struct, frozen=True):
    """A subject that the reconciler's account exports and a service's account imports.

    ``service``: the service publishes it there; ``stream``: it is told to the service.
    ``many_answers``: one request has several answers.
    """

    subject: str
    form: Literal["service", "stream"]
    many_answers: bool = False


def principal_permissions(principal: Principal, inboxes: Sequence[str]) -> Permissions:
    """Return what a principal's user may do; ``inboxes`` are his tokens behind ``_INBOX``.

    The first of them is his name, which the server vouches for where he declares.

    Raises ``ValueError`` for a service, which needs a namespace: ``service_permissions``.
    """
    if principal == "service":
        raise ValueError(
            "the principal service has permissions per namespace; use service_permissions"
        )
    granted = [*_GRANTS[principal]()]
    if principal == "operator":
        granted += [WHO_AM_I, *_vouched_for(inboxes[0], _EVERY, subjects.BY_CLIENTS)]
    return Permissions(tuple(granted), _own_inboxes(inboxes))


def service_permissions(
    namespace: str, inboxes: Sequence[str], *, finalizers: bool = False
) -> Permissions:
    """Return what a service of one namespace may do, in an account that imports the same."""
    exchanges = service_exchanges(namespace, inboxes, finalizers=finalizers)
    published = tuple(each.subject for each in exchanges if each.form == "service")
    return Permissions((WHO_AM_I, *published), _own_inboxes(inboxes), _internal(namespace, inboxes))


def _internal(namespace: str, inboxes: Sequence[str]) -> tuple[str, ...]:
    """Return the declarations that only Reconciler itself makes, with what it knows of parts."""
    return tuple(
        subjects.intake("desired", ResourceKey(namespace, kind, "*"), inboxes[0])
        for kind in sorted(COMPOSED_KINDS)
    )


def service_exchanges(
    namespace: str, inboxes: Sequence[str], *, finalizers: bool = False
) -> tuple[Exchange, ...]:
    """Return what a service's account imports; raises `ValueError` for a namespace it cannot have.

    ``finalizers``: it may also take its finalizers off.
    """
    check_token(namespace, what="namespace")
    if namespace == SYSTEM_NAMESPACE:
        raise ValueError(
            f"namespace {SYSTEM_NAMESPACE!r}: not allowed for a service, because resources "
            "there select the credentials of all tenants; use an operator"
        )
    mine = ResourceKey(namespace, "*", "*")
    asked = [
        *_vouched_for(inboxes[0], mine, ("desired", "finalizer") if finalizers else ("desired",)),
        f"{_API}.INFO",
        f"{_API}.STREAM.NAMES",
    ]
    pulled: list[str] = []
    # Who may create a consumer may have the server deliver to any subject of our account, and so
    # take messages of all other consumers there. `init` makes those of services (ADR 0064).
    for stream, readable in (
        (LOG, subjects.outcome_filter(mine.tokens)),  # of the log it reads nothing else
        (REJECTIONS, subjects.rejection_filter(mine.tokens)),
    ):
        asked.append(f"{_API}.DIRECT.GET.{stream}.{readable}")
        for name in (namespace, *follower_names(namespace)):
            asked.append(f"{_API}.CONSUMER.INFO.{stream}.{name}")
            asked.append(f"{_API}.CONSUMER.RESET.{stream}.{name}")
            pulled.append(f"{_API}.CONSUMER.MSG.NEXT.{stream}.{name}")
        asked.append(f"$JS.ACK.{stream}.{namespace}.>")
    return (
        *(Exchange(subject, "service") for subject in asked),
        *(Exchange(subject, "service", many_answers=True) for subject in pulled),
        *(Exchange(subject, "stream") for subject in _own_inboxes(inboxes)),
    )


def _vouched_for(user: str, mine: ResourceKey, granted: Sequence[subjects.Intake]) -> Iterator[str]:
    """Declare in one's own name."""
    yield from (subjects.intake(what, mine, user) for what in granted)


def _own_inboxes(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{INBOX}.{name}.>" for name in names)


# --- what a principal is made of


def _follows(*streams: str) -> Iterator[str]:
    """Read streams from any position on, and what they are like."""
    for stream in streams:
        yield f"{_API}.STREAM.INFO.{stream}"
        yield f"{_API}.CONSUMER.CREATE.{stream}"  # without a name: it touches nobody else's
        yield f"$JS.FC.{stream}.>"


def _gets(*streams: str) -> Iterator[str]:
    """Read single messages, from a replica or from the leader."""
    for stream in streams:
        yield f"{_API}.DIRECT.GET.{stream}"
        yield f"{_API}.STREAM.MSG.GET.{stream}"


def _takes(stream: str, consumer: str) -> Iterator[str]:
    """Take messages of shared consumers, and acknowledge them; ``*`` stands for all of a stream."""
    yield f"{_API}.CONSUMER.INFO.{stream}.{consumer}"
    yield f"{_API}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    yield f"$JS.ACK.{stream}.{consumer}.>"


def _dead_letters(*stages: Stage) -> Iterator[str]:
    """Write dead letters of some stages, each once where the same would come for ever.

    There is a share of the room for each namespace; what is beyond it is counted.
    """
    yield f"{_API}.DIRECT.GET.{DEADLETTERS}"
    yield f"{_API}.STREAM.INFO.{DEADLETTERS}"
    for stage in stages:
        yield subjects.deadletter(stage, "*", "*")
        yield subjects.deadletter(stage, "*", "*", "*")
    yield f"{_API}.STREAM.MSG.GET.{RATES}"
    yield subjects.DISCARDED


def _of_everybody() -> Iterator[str]:
    yield f"{_API}.INFO"
    yield f"{_API}.STREAM.NAMES"
    yield from _follows(LOG, ROWS)
    yield from _gets(LOG, ROWS)
    yield f"{_API}.STREAM.MSG.GET.{STATES}"  # whether the log has lost its end


def _calls_apis() -> Iterator[str]:
    """Share a rate limit with the other processes, and tell of throttling and broken APIs."""
    yield f"{_API}.STREAM.INFO.{RATES}"
    yield f"{_API}.STREAM.MSG.GET.{RATES}"
    yield subjects.rate("*")
    yield subjects.intake("result", _CONFIGURATION)


def _of_running_roles() -> Iterator[str]:
    yield from _of_everybody()
    yield f"{_API}.STREAM.INFO.{INTAKE}"


def _decider() -> Iterator[str]:
    yield from _of_running_roles()
    yield from _takes(INTAKE, "*")  # all its consumers are deciders'
    yield from _gets(INTAKE)  # what overtook a declaration, and where one came first
    yield f"{_API}.CONSUMER.UNPIN.{INTAKE}.*"
    yield f"{_API}.STREAM.PURGE.{INTAKE}"  # what all deciders are done with
    yield f"{_API}.STREAM.MSG.DELETE.{INTAKE}"  # what may hold a secret
    yield f"{_API}.DIRECT.GET.{STATES}"
    yield subjects.log_filter(_EVERY)
    yield subjects.cached_state(_EVERY)
    yield subjects.rejection(_EVERY)
    yield subjects.schedule(_EVERY, "*")
    yield from _dead_letters("intake", "declaration", "request", "decision")
    yield f"{INBOX}.>"  # answers: to whoever asked


def _worker() -> Iterator[str]:
    yield from _of_running_roles()
    yield from _takes(LOG, "*")  # those of workers; no pattern tells them from services' own
    actions = subjects.log(_EVERY, "action")
    yield f"{_API}.CONSUMER.CREATE.{LOG}.*.{actions}.*"  # a configuration's, when it is declared
    yield from _calls_apis()
    yield subjects.intake("result", _EVERY)
    yield from _dead_letters("action")


def _observer() -> Iterator[str]:
    yield from _of_running_roles()
    yield from _follows(LISTINGS)
    yield from _calls_apis()
    yield subjects.intake("observed", _EVERY)
    yield subjects.intake("reference", _EVERY)
    yield subjects.intake("timer", _EVERY)
    yield subjects.listing("*", "*", "*")
    yield from _dead_letters("listing", "observation")


def _projector() -> Iterator[str]:
    yield from _of_running_roles()
    yield f"{_API}.STREAM.PURGE.{ROWS}"
    yield f"{ROWS_PREFIX}>"


def _auditor() -> Iterator[str]:
    yield from _of_everybody()
    yield from _follows(REJECTIONS)
    yield from _gets(REJECTIONS)


def _operator() -> Iterator[str]:
    yield f"{_API}.INFO"
    yield f"{_API}.STREAM.NAMES"
    yield f"{_API}.STREAM.LIST"
    yield from _follows("*")
    yield from _gets("*")
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
        yield f"{_API}.CONSUMER.PAUSE.{stream}.*"  # to resume it
    for stream in (LOG, REJECTIONS):
        yield f"{_API}.CONSUMER.RESET.{stream}.*"  # a new service's begins with what comes
    yield f"{_API}.CONSUMER.NAMES.{LOG}"  # workers have made one for each configuration


def _backup() -> Iterator[str]:
    yield f"{_API}.INFO"
    yield f"{_API}.STREAM.NAMES"
    yield from _follows(LOG)
    yield from _gets(LOG, INTAKE, ROWS)
    yield f"{_API}.STREAM.MSG.GET.{STATES}"  # whether the log has lost its end
    yield f"{_API}.STREAM.INFO.{INTAKE}"
    yield f"{_API}.STREAM.INFO.{ROWS}"  # which has a copy of the log's identity
    yield f"{_API}.CONSUMER.INFO.{INTAKE}.*"  # how far the deciders are
    yield f"{_API}.CONSUMER.NAMES.{LOG}"  # which namespaces have services


def _restore() -> Iterator[str]:
    """Make streams and write the log: not delete, so that it cannot replace a log that is there."""
    yield from _installer()
    yield from _follows(LOG)
    yield from _gets(LOG)
    yield f"{_API}.STREAM.MSG.GET.{ROWS}"  # these two show whether the log has lost its end
    yield f"{_API}.STREAM.MSG.GET.{STATES}"
    yield subjects.log_filter(_EVERY)
    yield "rec.*.*.*.*"  # what was declared and not decided, in the name of whoever had declared it


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
