"""Every stream and consumer of the product: defined here, made and upgraded here, and nowhere else.

==============  ==================================  ===========================================
stream          subjects                            keeps
==============  ==================================  ===========================================
INTAKE          ``rec.>``, stored as ``in.<p>.>``   messages until they are decided (then trimmed)
TIMERS          ``sched.>``, ``fired.>``            message schedules; what fires goes to INTAKE
LOG_1          ``log.>``                           the event log, for ever; outcomes are in it
REJECTIONS      ``rejection.>``                     declarations that were refused
STATES          ``state.>``                         the newest state of each resource (a cache)
LISTINGS        ``listing.>``                       listings from other observers, an hour long
DEADLETTERS     ``deadletter.>``                    what could not be used
RATES           ``rate.>``, ``discarded``           how far each rate limit's calls are reserved;
                                                    how many messages got no dead letter
KV_reconciler   ``$KV.reconciler.>``                rows of the read models (a cache)
==============  ==================================  ===========================================
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final

import msgspec
from nats.aio.client import Client

from events import subjects
from events.names import ResourceKey
from events.subjects import DISCARDED
from events.wording import plural
from infra.jetstream.connection import api_request
from infra.jetstream.errors import (
    BusDeniedError,
    IncompatibleStreamError,
    LogFormatError,
    NotFoundOnBusError,
    StreamExistsError,
    StreamFullError,
)
from infra.jetstream.reads import StreamState, stream_state
from infra.jetstream.topology import (
    consumer_names,
    delete_consumer,
    delete_stream,
    differences,
    ensure_consumer,
    ensure_stream,
    with_raised_limit,
)
from reconciler.failpoints import Failpoint, reach

INTAKE: Final = "INTAKE"
TIMERS: Final = "TIMERS"
LOG: Final = "LOG_1"
REJECTIONS: Final = "REJECTIONS"
STATES: Final = "STATES"
LISTINGS: Final = "LISTINGS"
DEADLETTERS: Final = "DEADLETTERS"
RATES: Final = "RATES"
ROWS: Final = "KV_reconciler"
ROWS_PREFIX: Final = "$KV.reconciler."

SUBJECTS: Final[Mapping[str, tuple[str, ...]]] = {
    LOG: ("log.>",),
    TIMERS: ("sched.>", "fired.>"),
    INTAKE: ("rec.>",),
    REJECTIONS: ("rejection.>",),
    STATES: ("state.>",),
    LISTINGS: ("listing.>",),
    DEADLETTERS: ("deadletter.>",),
    RATES: ("rate.>", DISCARDED),
    ROWS: (f"{ROWS_PREFIX}>",),
}
"""What each stream takes; INTAKE stores it as ``in.>``."""

PARTITIONS: Final = 8
FOLLOWERS: Final = 5
"""How many streams of outcomes a service may follow at once, all its processes together. Each is
named in its user's JWT, which must fit into a line of the protocol."""

SERVICE_PULLS: Final = 16
"""How many pull requests may wait at a consumer of a service, one for each of its processes. The
server answers each with heartbeats, as often as its sender asks for: hundreds of them, each with a
heartbeat a nanosecond, had other clients wait for half a minute."""

MAX_UNACKNOWLEDGED: Final = 16_000
"""Number of messages of a partition that are handed out and not acknowledged; then none comes.

So many can a decider see past a namespace that sends a lot (ADR 0062)."""

DEAD_LETTERS_PER_NAMESPACE: Final = 0.25
"""So much of the stream's bytes, however many it may have: people raise that limit (ADR 0017)."""

DECIDER_GROUP: Final = "deciders"
_WORKERS: Final = "workers="

TIMERS_KEPT: Final = timedelta(days=30)
"""A timer that is due later is not set: a sweep wakes its resource."""

OWN_METADATA: Final = "reconciler-own"
"""On every stream of the product: no kind may list, adopt, change or delete it."""

LOG_ID_METADATA: Final = "reconciler-log-id"
EPOCH_METADATA: Final = "reconciler-log-epoch"
RESTORED_METADATA: Final = "reconciler-log-restored-as-of"
RESTORED_END_METADATA: Final = "reconciler-log-restored-end"
"""The log's last position when its last restoration ended: up to there, the bus's times are those
of the restoration."""

RESTORING_METADATA: Final = "reconciler-log-restoring"
SAVED_METADATA: Final = "reconciler-log-saved"
"""The names of the files beside the backup that an unfinished restoration has saved, with slashes
between them."""

FORMAT_METADATA: Final = "reconciler-log-format"

LOG_FORMAT: Final = 7
"""Format of what is stored: events, streams, rows. A log of another format is refused (ADR 0020).
It is raised with each change of stored data that this release could not read, or would undo."""

_REVISIONS: Final[Mapping[int, str]] = {
    0: "16875afe to 05ae88b7",
    1: "53197204 to 15bde999",
    2: "42133b17 to ea1d6db7",
    3: "47477a7f to ae3be583",
    4: "972e29a5 to e3cff6de",
    5: "f3cace6f to 451d2563",
    6: "a08e3a34 to ea7ec89b",
}
"""The revisions of this project that wrote each older format: none of them was released."""

_FIRST_LOG: Final = "SHAPES"
"""The log's stream in format 0, which has no metadata with a number."""

_SECOND: Final = 1_000_000_000
_HOUR: Final = 3_600 * _SECOND
_DAY: Final = 24 * _HOUR
_DUPLICATE_WINDOW: Final = 120 * _SECOND
_NO_DUPLICATE_WINDOW: Final = 0
"""The server accepts it for a stream with sources, from version 2.14 on."""

_LEASE: Final = 10 * _SECOND
_SERVICE_LEASE: Final = 120 * _SECOND
_PIN_TIMEOUT: Final = 3 * _SECOND
_UNLIMITED: Final = -1
"""How often a message may be handed out, and how many bytes a stream may have that drops its oldest
messages: beyond a limit the server drops them without a word."""

_NEW_SERVER: Final = (
    "All other streams and consumers are as required. Until this one is, no role starts: back up "
    "the log with `reconciler backup`, and restore it to another server or account with "
    "`reconciler restore`"
)
"""The way out of a change that the server cannot undo. No stream has to be deleted for it."""

_ELSEWHERE: Final = " This run removed nothing. Restore the backup to another server or account"

_RESERVED: Final = "restoring.intake"
"""Subject of an intake that takes nothing yet."""

Config = dict[str, Any]

_OWN: Final = {OWN_METADATA: "yes"}


class LogIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """Who a log is: its own name, and that of its last restoration, empty if there was none.

    ``restored_as_of``: the time of the backup that the restoration used.
    """

    log_id: str
    epoch: str = ""
    restored_as_of: str = ""


class Topology(msgspec.Struct, frozen=True):
    """What is settled about the bus: how many replicas, and the log's own name."""

    log_id: str
    changes: Mapping[str, str]


def follower_names(namespace: str) -> list[str]:
    """Names of the consumers of outcomes and rejections that a service of one namespace may use.

    Permissions match whole tokens, so names are fixed. No namespace and no durable name has an =,
    and no consumer of workers begins with one.
    """
    return [f"={namespace}={number}" for number in range(FOLLOWERS)]


def service_consumers(namespace: str) -> list[tuple[str, Config]]:
    """Return the consumers of outcomes and rejections of one namespace's services (ADR 0064)."""
    mine = ResourceKey(namespace, "*", "*").tokens
    found: list[tuple[str, Config]] = []
    for stream, readable in (
        (LOG, subjects.outcome_filter(mine)),
        (REJECTIONS, subjects.rejection_filter(mine)),
    ):
        found.append((stream, durable_outcomes(namespace, readable)))
        for name in follower_names(namespace):
            config = {
                **_CONSUMER_DEFAULTS,
                "durable_name": name,
                "filter_subject": readable,
                "ack_policy": "none",
                "max_waiting": SERVICE_PULLS,
            }
            found.append((stream, config))
    return found


async def service_namespaces(nc: Client) -> list[str]:
    """Return the namespaces whose services have consumers."""
    mine = (name for name in await consumer_names(nc, LOG) if name.startswith("="))
    return sorted({name[1:].partition("=")[0] for name in mine})


def durable_outcomes(name: str, readable: str) -> Config:
    """Return a consumer that remembers which outcomes were dealt with."""
    return {
        **_CONSUMER_DEFAULTS,
        "durable_name": name,
        "filter_subject": readable,
        "ack_wait": _SERVICE_LEASE,
        "max_ack_pending": 1,  # in order, also what is handed out again
        "max_waiting": SERVICE_PULLS,
    }


def decider_consumers() -> list[str]:
    """Names of the intake's consumers: one a partition, and one for what fits no partition."""
    return [f"decider-{partition}" for partition in range(PARTITIONS)] + ["decider-misfits"]


def worker_consumer(provider_config: str) -> str:
    """Name the consumer of the actions of one configuration; no durable name has an = otherwise."""
    return f"{_WORKERS}{provider_config}"


async def worker_consumers(nc: Client) -> list[dict[str, Any]]:
    """Return what the server says of each consumer of actions: there is none without a log."""
    try:
        names = await consumer_names(nc, LOG)
    except NotFoundOnBusError:
        return []
    mine = sorted(name for name in names if name.startswith(_WORKERS))
    return [await api_request(nc, f"CONSUMER.INFO.{LOG}.{name}", None) for name in mine]


async def make_worker_consumer(nc: Client, provider_config: str) -> str:
    """Make the consumer of a configuration's actions if there is none, and return its name.

    One that is there stays as it is: ``ensure_topology`` upgrades it.
    """
    name = worker_consumer(provider_config)
    if not await _found(nc, f"CONSUMER.INFO.{LOG}.{name}"):
        await ensure_consumer(nc, LOG, _worker_consumer(name))
    return name


async def ensure_topology(
    nc: Client,
    *,
    replicas: int | None = None,
    restored: LogIdentity | None = None,
    namespaces: Sequence[str] = (),
) -> Topology:
    """Make or upgrade every stream and consumer; doing it again changes nothing.

    ``replicas``: None for as many as any stream has, or 1. ``restored``: the identity of a log that
    is being restored, and stays marked so. ``namespaces``: those whose services read outcomes.
    Raises ``IncompatibleStreamError`` for a difference that cannot be changed in place.
    """
    await check_streams_are_ours(nc)
    if replicas is None:
        replicas = await _most_replicas(nc)
    if restored is None:
        is_new = not await _exists(nc, LOG)
        identity, first_position = await _existing_log(nc)
        metadata = _metadata(identity)
    else:
        is_new = False
        identity, first_position = restored, 0
        metadata = {**_metadata(identity), RESTORING_METADATA: "yes"}
    await _check_subjects(nc)
    changes: dict[str, str] = {}
    refused: list[str] = []
    for config in await _streams(nc, metadata, first_position):
        is_new_log = config["name"] == LOG and is_new
        try:
            wanted = {**config, "num_replicas": replicas}
            change = await ensure_stream(nc, wanted, remedy="", must_be_new=is_new_log)
        except StreamExistsError:  # another process has created the log meanwhile: it has a name
            return await ensure_topology(nc, replicas=replicas, namespaces=namespaces)
        except IncompatibleStreamError as error:  # the others are restored all the same
            refused.append(str(error))
            continue
        changes[config["name"]] = change
        reach(Failpoint.INIT_STEP)
    for stream, consumer in await _consumers(nc):
        name = f"{stream}/{consumer['durable_name']}"
        changes[name] = await ensure_consumer(nc, stream, consumer)
        reach(Failpoint.INIT_STEP)
    for namespace in sorted({*namespaces, *await service_namespaces(nc)}):
        for stream, consumer in service_consumers(namespace):
            name = f"{stream}/{consumer['durable_name']}"
            changes[name] = await _ensure_service_consumer(
                nc, stream, consumer, begins_now=restored is None
            )
            reach(Failpoint.INIT_STEP)
    if refused:
        raise IncompatibleStreamError(" ".join((*refused, _NEW_SERVER)))
    return Topology(identity.log_id, changes)


async def _most_replicas(nc: Client) -> int:
    """Return the largest number of replicas, because another client may have reduced any."""
    found = [await _found(nc, f"STREAM.INFO.{name}") for name in SUBJECTS]
    return max(int(each.get("num_replicas", 1)) for each in found)


async def _ensure_service_consumer(
    nc: Client, stream: str, consumer: Config, *, begins_now: bool
) -> str:
    """Make a service's consumer; a new one begins with what comes from now on, or at the start."""
    name = consumer["durable_name"]
    end = (await stream_state(nc, stream)).last_seq
    change = await ensure_consumer(nc, stream, consumer)
    if change == "created" and begins_now:
        await api_request(nc, f"CONSUMER.RESET.{stream}.{name}", {"seq": end + 1})
    return change


async def prepare_restoration(
    nc: Client, *, replicas: int = 1, namespaces: Sequence[str] = ()
) -> None:
    """Make or restore the streams that a restoration keeps, before it removes anything.

    So their room is reserved. ``namespaces``: those whose services read outcomes. Raises
    ``StreamFullError`` if there is no room, or if the account may not have all streams and
    consumers. Raises ``IncompatibleStreamError`` for a stream that cannot be changed in place, and
    for a foreign stream with subjects of ours: no restoration could end beside them.
    """
    await check_streams_are_ours(nc)
    await _check_subjects(nc)
    await _check_account(nc, replicas, {*namespaces, *await _existing_services(nc)})
    for config in (_observations(), _dead_letters(), _rates()):
        await ensure_stream(nc, {**config, "num_replicas": replicas}, remedy=_ELSEWHERE)


async def _check_account(nc: Client, replicas: int, namespaces: Collection[str]) -> None:
    """Raise ``StreamFullError`` if the account may not have all streams and consumers of a log.

    An account may have limits for each number of replicas. That of the consumers counts for each
    stream.
    """
    account = await api_request(nc, "INFO", None)
    tiers: Mapping[str, Config] = account.get("tiers") or {}
    tier = tiers.get(f"R{replicas}", account)
    limits: Config = tier.get("limits") or {}
    used = int(tier.get("streams", 0))
    missing = [name for name in SUBJECTS if not await _exists(nc, name)]
    most = int(limits.get("max_streams", -1))
    if 0 < most < used + len(missing):
        raise _account_too_small(
            f"max_streams is {most}, but {plural(used, 'stream exists', 'streams exist')} and "
            f"{len(missing)} more are needed; set max_streams to at least {used + len(missing)}"
        )
    wanted = Counter(stream for each in namespaces for stream, _ in service_consumers(each))
    wanted[LOG] += 1  # each reader of the log has one
    wanted[INTAKE] = len(decider_consumers())
    stream, needed = max(wanted.items(), key=lambda each: each[1])
    most = int(limits.get("max_consumers", -1))
    if 0 < most < needed:
        raise _account_too_small(
            f"max_consumers is {most}, but stream {stream} needs {needed}; set max_consumers to at "
            f"least {needed}"
        )


def _account_too_small(limit: str) -> StreamFullError:
    return StreamFullError(f"the NATS account is too small: its {limit}. Nothing was changed")


async def begin_restoration(
    nc: Client,
    identity: LogIdentity,
    *,
    first_position: int = 0,
    replicas: int = 1,
    saved: Sequence[str] = (),
) -> None:
    """Make the log's stream, or mark the one that is there: nobody else opens it by now.

    ``saved``: the names of the files without which it must not be ended. ``end_restoration`` takes
    the mark off. The older intake, and what is derived from the log,
    are removed; dead letters and foreign observations stay. The intake is created first, to reserve
    its room, and takes no message before ``ensure_topology``. Only what
    exists is deleted: an empty server requires no permission to delete.
    """
    for stream in (INTAKE, TIMERS, REJECTIONS, STATES, ROWS):
        found = await _found(nc, f"STREAM.INFO.{stream}")
        if found and not _is_foreign(stream, found):
            await delete_stream(nc, stream)
            reach(Failpoint.RESTORE_STEP)
    intake = await _intake(nc, first_position)
    for field in ("sources", "subject_transform", "duplicate_window"):
        del intake[field]
    await ensure_stream(nc, {**intake, "subjects": [_RESERVED], "num_replicas": replicas})
    reach(Failpoint.RESTORE_STEP)
    mark = {RESTORING_METADATA: "yes", SAVED_METADATA: "/".join(saved)}
    metadata = {**_metadata(identity), **mark}
    await ensure_stream(nc, {**_resources(), "metadata": metadata, "num_replicas": replicas})
    reach(Failpoint.RESTORE_STEP)
    for consumer in await worker_consumers(nc):
        await delete_consumer(nc, LOG, consumer["name"])


async def end_restoration(nc: Client, identity: LogIdentity) -> None:
    """Take the mark off the log: everything of it is back."""
    end = (await stream_state(nc, LOG)).last_seq
    metadata = {**_metadata(identity), SAVED_METADATA: "", RESTORED_END_METADATA: str(end)}
    await ensure_stream(nc, {**_resources(), "metadata": metadata})


async def topology_differences(nc: Client) -> Mapping[str, Mapping[str, tuple[Any, Any]]]:
    """Compare every stream and consumer with what is wanted, and change nothing.

    Gives the differing fields, path to (wanted, found), of each; all of them for one that is not
    there. The number of replicas is the operator's choice, and is not compared.
    """
    wrong: dict[str, Mapping[str, tuple[Any, Any]]] = {}
    identity, first_position = await _existing_log(nc)
    for config in await _streams(nc, _metadata(identity), first_position):
        found = await _found(nc, f"STREAM.INFO.{config['name']}")
        wanted = with_raised_limit(config, found)
        wrong[config["name"]] = differences(wanted, found)
    services = [service_consumers(each) for each in await _existing_services(nc)]
    for stream, config in [*await _consumers(nc), *chain.from_iterable(services)]:
        name = f"{stream}/{config['durable_name']}"
        found = await _found(nc, f"CONSUMER.INFO.{stream}.{config['durable_name']}")
        wrong[name] = differences(config, found)
    return wrong


async def _existing_services(nc: Client) -> list[str]:
    try:
        return await service_namespaces(nc)
    except NotFoundOnBusError:
        return []


async def _found(nc: Client, question: str) -> Config:
    try:
        return (await api_request(nc, question, None))["config"]
    except NotFoundOnBusError:
        return {}


async def find_log(nc: Client) -> LogIdentity:
    """Return which log this is; raises ``NotFoundOnBusError`` before the first ``init``."""
    try:
        metadata = _usable(await _log_metadata(nc, await _log_state(nc)))
    except NotFoundOnBusError:
        await _check_no_lost_log(nc)
        raise
    found = metadata.get(LOG_ID_METADATA)
    if not found:
        await _check_no_lost_log(nc)
        raise NotFoundOnBusError(
            f"stream {LOG} has no metadata {LOG_ID_METADATA}, so `reconciler init` did not "
            "create it"
        )
    return _identity(metadata)


def lost_beginning(state: StreamState) -> str:
    """Return what is wrong with a log that does not begin with its first event; empty if it does.

    The first event of a stream is at 1, and the server removes none, unless a client changed the
    configuration of the stream.
    """
    if state.first_seq <= 1:
        return ""
    return (
        f"stream {LOG} begins at position {state.first_seq}: the events before it were removed, so "
        "ownership cannot be rebuilt"
    )


async def _log_metadata(nc: Client, log: StreamState) -> Mapping[str, str]:
    """Return the log's metadata, with what another client removed and the rows' stream still has.

    A library that declares the stream again removes all of it. The rows' stream speaks of this log
    if the log is not the newer one of the two, and so was not recreated.
    """
    metadata: dict[str, str] = log.config.get("metadata", {})
    if LOG_ID_METADATA in metadata and FORMAT_METADATA not in metadata:
        return metadata  # of format 1
    with suppress(NotFoundOnBusError, BusDeniedError):
        rows = await stream_state(nc, ROWS)
        copied = _copied(rows.config.get("metadata", {}))
        log_id = copied.get(LOG_ID_METADATA)
        is_older = _moment(log.created) <= _moment(rows.created)
        if is_older and log_id and metadata.get(LOG_ID_METADATA, log_id) == log_id:
            return {**copied, **metadata}
    return metadata


def _copied(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return what the rows' stream has of the log's metadata: not whether it is being restored."""
    copied = (LOG_ID_METADATA, EPOCH_METADATA, RESTORED_METADATA, FORMAT_METADATA)
    return {field: value for field in copied if (value := metadata.get(field))}


async def _log_state(nc: Client) -> StreamState:
    """Read the log's state; raises ``IncompatibleStreamError`` for a log of format 0."""
    try:
        return await stream_state(nc, LOG)
    except NotFoundOnBusError:
        if _FIRST_LOG in await _names_with(nc, "log.>"):
            raise _too_old(_FIRST_LOG, 0) from None
        raise


async def _check_no_lost_log(nc: Client) -> None:
    """Raise ``IncompatibleStreamError`` if messages of a log exist that does not."""
    for stream in (ROWS, INTAKE):
        with suppress(NotFoundOnBusError, BusDeniedError):
            state = await stream_state(nc, stream)
            if state.last_seq and not _is_foreign(stream, state.config):
                raise IncompatibleStreamError(
                    f"stream {LOG} was deleted or recreated, but stream {stream} contains messages "
                    f"of its log (up to position {state.last_seq}). Keep all streams, and restore "
                    "the log from a backup with `reconciler restore`. To start with an empty log "
                    "instead, use another NATS account or an empty data directory"
                )


async def check_streams_are_ours(nc: Client) -> None:
    """Raise ``IncompatibleStreamError`` for a foreign stream with the name of one of ours.

    Its configuration would be replaced, which deletes messages, or a restore would delete it.
    """
    for name in SUBJECTS:
        if _is_foreign(name, await _found(nc, f"STREAM.INFO.{name}")):
            raise IncompatibleStreamError(
                f"stream {name} belongs to another client, and Reconciler requires a stream of "
                "this name; use another NATS account. Nothing was changed"
            )


def _is_foreign(name: str, found: Config) -> bool:
    """Return whether a stream exists that has neither our mark nor a subject of ours.

    A library that declares a stream of ours again removes the mark, and keeps the subjects.
    """
    if not found or is_own(found.get("metadata") or {}):
        return False
    return not set(SUBJECTS.get(name, ())) & set(found.get("subjects") or ())


async def _check_subjects(nc: Client) -> None:
    """Raise ``IncompatibleStreamError`` for a foreign stream with subjects of ours.

    The server would refuse the second stream of several, after the first was created.
    """
    for stream, wanted in SUBJECTS.items():
        for subject in wanted:
            if others := [name for name in await _names_with(nc, subject) if name != stream]:
                raise IncompatibleStreamError(
                    f"stream {others[0]} of another client uses subjects in {subject!r}, which "
                    f"stream {stream} of Reconciler requires; use another NATS account, or change "
                    f"the subjects of stream {others[0]}. Nothing was created"
                )


async def _names_with(nc: Client, subject: str) -> list[str]:
    """Return the names of the streams whose subjects overlap with a subject."""
    return list((await api_request(nc, "STREAM.NAMES", {"subject": subject})).get("streams") or ())


async def has_log(nc: Client) -> bool:
    """Return whether there is an event log, as far as everybody may ask."""
    return LOG in await _names_with(nc, "log.>")


def _moment(created: str) -> datetime:
    return datetime.fromisoformat(created)


async def find_log_id(nc: Client) -> str:
    """Return the log's own name; raises ``NotFoundOnBusError`` before the first ``init``."""
    return (await find_log(nc)).log_id


def new_name() -> str:
    """Return a random name, for a log or for one of its restorations."""
    return uuid.uuid4().hex[:12]


async def _existing_log(nc: Client) -> tuple[LogIdentity, int]:
    """Return the log's identity, and the first position of an intake that is made beside it.

    Positions are the logical clock: an intake that is made anew beside an old log must not count
    from 1 again, or what it brings would look older than what the log knows.
    """
    try:
        state = await _log_state(nc)
    except NotFoundOnBusError:
        await _check_no_lost_log(nc)
        return LogIdentity(new_name()), 0
    metadata = _usable(await _log_metadata(nc, state))
    if LOG_ID_METADATA not in metadata:
        await _check_no_lost_log(nc)
    identity = _identity({LOG_ID_METADATA: new_name(), **metadata})
    return identity, 0 if state.last_seq == 0 else time.time_ns() // 1_000


def _metadata(identity: LogIdentity) -> dict[str, str]:
    name = {**_OWN, LOG_ID_METADATA: identity.log_id, FORMAT_METADATA: str(LOG_FORMAT)}
    if not identity.epoch:
        return name
    # Named though it is over: what an update does not name stays as it is.
    as_of = {RESTORED_METADATA: identity.restored_as_of} if identity.restored_as_of else {}
    return {**name, **as_of, EPOCH_METADATA: identity.epoch, RESTORING_METADATA: "no"}


def _identity(metadata: Mapping[str, str]) -> LogIdentity:
    fields = (LOG_ID_METADATA, EPOCH_METADATA, RESTORED_METADATA)
    return LogIdentity(*(str(metadata.get(field, "")) for field in fields))


def _usable(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Raise ``IncompatibleStreamError`` for a log of another format, or only half restored."""
    check_format(metadata)
    if is_being_restored(metadata):
        raise IncompatibleStreamError(
            f"stream {LOG} is being restored, or its restore was interrupted; run `reconciler "
            "restore` with the same file again"
        )
    return metadata


def check_format(metadata: Mapping[str, str]) -> None:
    """Raise ``LogFormatError`` for a log that is too new or too old for this release."""
    first = "1" if LOG_ID_METADATA in metadata else str(LOG_FORMAT)  # no stream of `init`
    found = metadata.get(FORMAT_METADATA, first)
    if not found.isdecimal() or int(found) > LOG_FORMAT:
        raise LogFormatError(
            f"stream {LOG} was written by a newer release (format {found}, this release reads "
            f"{LOG_FORMAT}); upgrade"
        )
    if int(found) < LOG_FORMAT:
        raise _too_old(LOG, int(found))


def _too_old(stream: str, found: int) -> LogFormatError:
    return LogFormatError(
        f"stream {stream} has the older format {found}, and this release reads format "
        f"{LOG_FORMAT}; use the revision that wrote it, which is in the range {_REVISIONS[found]}"
    )


def is_own(metadata: Mapping[str, str]) -> bool:
    """Tell by a stream's metadata whether it is the product's own; so are its consumers then."""
    return OWN_METADATA in metadata or LOG_ID_METADATA in metadata


def saved_files(metadata: Mapping[str, str]) -> list[str]:
    """Return the names of the files that an unfinished restoration has saved."""
    return [*filter(None, metadata.get(SAVED_METADATA, "").split("/"))]


def is_being_restored(metadata: Mapping[str, str]) -> bool:
    """Tell by a log's metadata whether its restoration has begun and not ended."""
    return metadata.get(RESTORING_METADATA) == "yes"


async def existing_log(nc: Client) -> LogIdentity | None:
    """Return which log there is, also one that is only half restored; None if there is none."""
    try:
        metadata = await _log_metadata(nc, await _log_state(nc))
    except NotFoundOnBusError:
        return None
    check_format(metadata)
    return _identity(metadata)


async def lost_log(nc: Client) -> LogIdentity:
    """Return which log the other streams belong to, with an empty id if nothing shows it."""
    return _identity(_copied((await _found(nc, f"STREAM.INFO.{ROWS}")).get("metadata", {})))


async def _streams(nc: Client, metadata: Mapping[str, str], first_position: int) -> list[Config]:
    return [
        _rejections(),  # before the log, which names a format that is not without it
        {**_resources(), "metadata": metadata},
        _timers(),
        await _intake(nc, first_position),
        _states(),
        _observations(),
        _dead_letters(),
        _rates(),
        {**_rows(), "metadata": {**_OWN, **_copied(metadata)}},
    ]


def _resources() -> Config:
    return _file_stream(
        LOG,
        discard="new",
        deny_delete=True,
        deny_purge=True,
        allow_atomic=True,
    )


async def _intake(nc: Client, first_position: int) -> Config:
    config = _file_stream(
        INTAKE,
        discard="new",
        max_bytes=4 * 1024**3,
        allow_atomic=True,
        # One space of ids for all who publish would let a tenant silence another one (ADR 0059).
        duplicate_window=_NO_DUPLICATE_WINDOW,
        subject_transform={
            "src": "rec.*.*.*.*",
            "dest": f"in.{{{{partition({PARTITIONS},2,3,4)}}}}."
            + ".".join(f"{{{{wildcard({token})}}}}" for token in (1, 2, 3, 4)),
        },
        sources=[
            {
                "name": TIMERS,
                "subject_transforms": [
                    {
                        "src": "fired.*.*.*",
                        "dest": f"in.{{{{partition({PARTITIONS},1,2,3)}}}}.timer."
                        + ".".join(f"{{{{wildcard({token})}}}}" for token in (1, 2, 3)),
                    }
                ],
            }
        ],
    )
    if not first_position or await _exists(nc, INTAKE):
        return config
    return {**config, "first_seq": first_position}


def _timers() -> Config:
    return _file_stream(
        TIMERS,
        allow_msg_schedules=True,
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,  # schedules need it
        max_msgs_per_subject=1,
        max_age=TIMERS_KEPT.days * _DAY,
    )


def _rejections() -> Config:
    return _file_stream(
        REJECTIONS, max_age=30 * _DAY, duplicate_window=_DUPLICATE_WINDOW, allow_atomic=True
    )


def _states() -> Config:
    return _file_stream(
        STATES,
        max_msgs_per_subject=1,
    )


def _observations() -> Config:
    return _file_stream(
        LISTINGS,
        max_age=_HOUR,
        max_bytes=1024**3,
    )


def _dead_letters() -> Config:
    return _file_stream(
        DEADLETTERS,
        discard="new",  # what does not fit waits where it is: nothing dead goes unseen
        max_age=90 * _DAY,
        max_bytes=512 * 1024**2,
        duplicate_window=_DUPLICATE_WINDOW,
        allow_atomic=True,
    )


def _rates() -> Config:
    return _file_stream(RATES, max_msgs_per_subject=1)


def _rows() -> Config:
    return _file_stream(
        ROWS,
        max_msgs_per_subject=1,
        discard="new",
        allow_rollup_hdrs=True,
        allow_atomic=True,
    )


_STREAM_DEFAULTS: Final[Config] = {
    "retention": "limits",
    "discard": "old",
    "discard_new_per_subject": False,
    "max_age": 0,
    "max_msgs": -1,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "max_consumers": -1,
    "no_ack": False,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_atomic": False,
    "allow_rollup_hdrs": False,
    "allow_msg_schedules": False,
    "allow_msg_ttl": False,
    "subject_delete_marker_ttl": 0,
    "subject_transform": None,
    "republish": None,
    "consumer_limits": {"max_ack_pending": 0, "inactive_threshold": 0},
    "sources": [],
    "mirror": None,
}
"""Fields that lose, refuse, change or copy messages: each is compared, also where the default is
wanted."""

_CONSUMER_DEFAULTS: Final[Config] = {
    "ack_policy": "explicit",
    "deliver_policy": "all",
    "replay_policy": "instant",
    "max_deliver": _UNLIMITED,
    "deliver_subject": "",
    "filter_subjects": [],
    "headers_only": False,
    "max_batch": 0,
    "max_bytes": 0,
    "max_expires": 0,
    "max_waiting": 512,  # the server's default: pull requests at the same time
    "inactive_threshold": 0,
    "backoff": [],
    "mem_storage": False,
    "num_replicas": 0,
    "pause_until": None,
}
"""Fields by which a consumer delivers less, later, or not at all."""


def _file_stream(name: str, **more: object) -> Config:
    """Configure a stream. One that refuses what has no room may have a limit of an operator."""
    limit = {} if more.get("discard") == "new" else {"max_bytes": _UNLIMITED}
    return {
        **_STREAM_DEFAULTS,
        **limit,
        "name": name,
        "subjects": list(SUBJECTS[name]),
        "metadata": _OWN,
        "storage": "file",
        "allow_direct": True,
        "compression": "none",  # a copy with compressed blocks is lost by a crash (ADR 0014)
        **more,
    }


async def _consumers(nc: Client) -> list[tuple[str, Config]]:
    """Return what every log has, and those of the configurations that workers have made."""
    filters = [f"in.{partition}.>" for partition in range(PARTITIONS)] + ["rec.>"]
    deciders = [
        (INTAKE, _decider_consumer(name, subject_filter))
        for name, subject_filter in zip(decider_consumers(), filters, strict=True)
    ]
    names = [each["name"] for each in await worker_consumers(nc)]
    return [*deciders, *((LOG, _worker_consumer(name)) for name in names)]


def _worker_consumer(name: str) -> Config:
    place = f"action.{name.removeprefix(_WORKERS)}"
    return {
        **_CONSUMER_DEFAULTS,
        "durable_name": name,
        "filter_subject": subjects.log(ResourceKey("*", "*", "*"), place),
        "ack_wait": _LEASE,
        "max_ack_pending": 4_096,
    }


def _decider_consumer(name: str, subject_filter: str) -> Config:
    return {
        **_CONSUMER_DEFAULTS,
        "durable_name": name,
        "filter_subject": subject_filter,
        "ack_wait": _LEASE,
        "max_ack_pending": MAX_UNACKNOWLEDGED,
        "priority_policy": "pinned_client",
        "priority_groups": [DECIDER_GROUP],
        "priority_timeout": _PIN_TIMEOUT,
    }


async def _exists(nc: Client, stream: str) -> bool:
    try:
        await stream_state(nc, stream)
    except NotFoundOnBusError:
        return False
    return True
