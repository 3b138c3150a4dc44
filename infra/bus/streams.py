"""Define, create and upgrade all streams and consumers.

==============  ==================================  ===========================================
stream          subjects                            content
==============  ==================================  ===========================================
INTAKE          ``rec.>``, stored as ``in.<p>.>``   unprocessed messages (trimmed afterwards)
TIMERS          ``sched.>``, ``fired.>``            message schedules; fired timers go to INTAKE
LOG_1           ``log.>``                           the permanent event log, including outcomes
REJECTIONS      ``rejection.>``                     rejected declarations
STATES          ``state.>``                         the newest state of each resource (a cache)
LISTINGS        ``listing.>``                       listings from other observers, for one hour
DEADLETTERS     ``deadletter.>``                    messages that could not be processed
RATES           ``rate.>``, ``discarded``           when each rate limit's next call may start;
                                                    counts of discarded messages
KV_reconciler   ``$KV.reconciler.>``                rows of the read models (a cache)
==============  ==================================  ===========================================
"""

from __future__ import annotations

import secrets
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
from events.envelope import InvalidMessageError, decode_log
from events.epochs import first_epoch, next_epoch
from events.log import ActionDecided
from events.names import ResourceKey
from events.subjects import DISCARDED
from events.wording import plural
from infra.jetstream.connection import api_request, is_clustered
from infra.jetstream.errors import (
    BusDeniedError,
    BusUnavailableError,
    IncompatibleStreamError,
    LogFormatError,
    NotFoundOnBusError,
    StreamExistsError,
    StreamFullError,
)
from infra.jetstream.reads import StreamState, read_subject, stream_state
from infra.jetstream.topology import (
    consumer_names,
    delete_consumer,
    delete_stream,
    differences,
    ensure_consumer,
    ensure_stream,
    with_raised_limit,
)
from reconciler.errors import ConfigurationError
from reconciler.failpoints import Failpoint, reach
from reconciler.resource.owner_label import OWNER_LABEL

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
"""The subjects of each stream. INTAKE stores its messages as ``in.>``."""

PARTITIONS: Final = 8
FOLLOWERS: Final = 5
"""Number of concurrent outcome streams per service, across all its processes.

The service user's JWT lists each by name, and must fit in a protocol line.
"""

SERVICE_PULLS: Final = 16
"""Maximum number of open pull requests on a service's consumer, one per process.

The server sends heartbeats for each request at an interval that the client chooses. Hundreds of
requests with a heartbeat every nanosecond delayed other clients by half a minute.
"""

MAX_UNACKNOWLEDGED: Final = 16_000
"""Maximum number of unacknowledged messages in a partition. At this limit, the server delivers no
more.

It limits how far a decider can read past a namespace that floods the intake (ADR 0062).
"""

DEAD_LETTERS_PER_NAMESPACE: Final = 0.25
"""Share of the stream's `max_bytes` per namespace. Operators may raise that limit (ADR 0017)."""

DECIDER_GROUP: Final = "deciders"
_WORKERS: Final = "workers="

TIMERS_MAX_AGE: Final = timedelta(days=30)
"""Age at which the stream drops timers. Timers further in the future are not set, because the
sweeper wakes their resources."""

OWN_METADATA: Final = "reconciler-own"
"""Marks Reconciler's streams. No kind may list, adopt, change or delete such a stream."""

LOG_ID_METADATA: Final = "reconciler-log-id"
UNKNOWN_LOG_ID: Final = "unknown"
"""Stands for the id of a log that another client recreated."""

EPOCH_METADATA: Final = "reconciler-log-epoch"
RESTORED_METADATA: Final = "reconciler-log-restored-as-of"
RESTORED_END_METADATA: Final = "reconciler-log-restored-end"
"""The log's last position at the end of its last restore. Up to that position, bus timestamps are
those of the restore."""

RESTORING_METADATA: Final = "reconciler-log-restoring"
SAVED_METADATA: Final = "reconciler-log-saved"
"""The names of the files that an unfinished restore saved next to the backup, separated by
slashes."""

FORMAT_METADATA: Final = "reconciler-log-format"

LOG_FORMAT: Final = 7
"""Format of the stored data: events, streams, rows. A log in another format is rejected (ADR 0020).

It increases with each change to stored data that the previous release could not read, or would
undo.
"""

_REVISIONS: Final[Mapping[int, str]] = {
    0: "16875afe to 05ae88b7",
    1: "53197204 to 15bde999",
    2: "42133b17 to ea1d6db7",
    3: "47477a7f to ae3be583",
    4: "972e29a5 to e3cff6de",
    5: "f3cace6f to 451d2563",
    6: "a08e3a34 to ea7ec89b",
}
"""The revisions of this project that wrote each older format. None of them was released."""

_FIRST_LOG: Final = "SHAPES"
"""Stream of the log in format 0, which does not store the format in metadata."""

_SECOND: Final = 1_000_000_000
_HOUR: Final = 3_600 * _SECOND
_DAY: Final = 24 * _HOUR
_DUPLICATE_WINDOW: Final = 120 * _SECOND
_NO_DUPLICATE_WINDOW: Final = 0
"""Since version 2.14, the server accepts 0 for a stream with sources."""

_LEASE: Final = 10 * _SECOND
_SERVICE_LEASE: Final = 120 * _SECOND
_PIN_TIMEOUT: Final = 3 * _SECOND
_UNLIMITED: Final = -1
"""No limit on the deliveries of a message, or on the bytes of a stream that drops its oldest
messages. Beyond a limit, the server would silently drop messages."""

_NEW_SERVER_REMEDY: Final = (
    "All other streams and consumers are correct, but no role starts until this one is. Back up "
    "the log with `reconciler backup`, and restore it to another server or account with "
    "`reconciler restore`"
)
"""The remedy for a difference that the server cannot change in place. It must not require deleting
a stream."""

_OTHER_SERVER_REMEDY: Final = (
    " This run removed nothing. Restore the backup to another server or account"
)

_PAGE_MESSAGES: Final = 1_000

_RESTORING_SUBJECT: Final = "restoring.intake"
"""Subject of the intake while a restore is incomplete, even if the metadata is lost."""

_COPIES: Final = (
    f"STREAM.INFO.{ROWS}",
    f"STREAM.INFO.{INTAKE}",
    f"CONSUMER.INFO.{INTAKE}.decider-misfits",
    f"STREAM.INFO.{STATES}",
    f"STREAM.INFO.{TIMERS}",
)
"""Requests for the copies of the log's metadata. A tool that redeclares all streams does not change
consumers."""

Config = dict[str, Any]

_OWN: Final = {OWN_METADATA: "yes"}


class LogIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """Identity of a log: its random id, and its epoch, which each restore changes.

    ``restored_as_of``: the time of the backup that the restore used.
    """

    log_id: str
    epoch: str = ""
    restored_as_of: str = ""


class Topology(msgspec.Struct, frozen=True):
    """Result of ``ensure_topology``: the log's id, and the change to each stream and consumer."""

    log_id: str
    changes: Mapping[str, str]


def follower_names(namespace: str) -> list[str]:
    """Return the names of a service's consumers of outcomes and rejections.

    They do not need acknowledgements. Their names are fixed, because permissions match whole
    tokens. Namespaces and durable names do not contain =, and worker consumers' names do not start
    with it.
    """
    return [f"={namespace}={number}" for number in range(FOLLOWERS)]


def service_consumers(namespace: str) -> list[tuple[str, Config]]:
    """Return the consumers of outcomes and rejections for one namespace's services (ADR 0064)."""
    tokens = ResourceKey(namespace, "*", "*").tokens
    consumers: list[tuple[str, Config]] = []
    for stream, subject_filter in (
        (LOG, subjects.outcome_filter(tokens)),
        (REJECTIONS, subjects.rejection_filter(tokens)),
    ):
        consumers.append((stream, durable_outcomes(namespace, subject_filter)))
        for name in follower_names(namespace):
            config = {
                **_CONSUMER_DEFAULTS,
                "durable_name": name,
                "filter_subject": subject_filter,
                "ack_policy": "none",
                "max_waiting": SERVICE_PULLS,
            }
            consumers.append((stream, config))
    return consumers


async def service_namespaces(nc: Client) -> list[str]:
    """Return the namespaces whose services have consumers."""
    service_names = (name for name in await consumer_names(nc, LOG) if name.startswith("="))
    return sorted({name[1:].partition("=")[0] for name in service_names})


def durable_outcomes(name: str, subject_filter: str) -> Config:
    """Return the configuration of a durable consumer, which stores its progress."""
    return {
        **_CONSUMER_DEFAULTS,
        "durable_name": name,
        "filter_subject": subject_filter,
        "ack_wait": _SERVICE_LEASE,
        "max_ack_pending": 1,  # in order, including redeliveries
        "max_waiting": SERVICE_PULLS,
    }


def decider_consumers() -> list[str]:
    """Return the names of the intake's consumers: one per partition, and one for the rest."""
    return [f"decider-{partition}" for partition in range(PARTITIONS)] + ["decider-misfits"]


def worker_consumer(provider_config: str) -> str:
    """Return the name of the consumer for a configuration's actions. No other name contains =."""
    return f"{_WORKERS}{provider_config}"


async def worker_consumers(nc: Client) -> list[dict[str, Any]]:
    """Return the server's information about each worker consumer, or [] if there is no log."""
    try:
        names = await consumer_names(nc, LOG)
    except NotFoundOnBusError:
        return []
    worker_names = sorted(name for name in names if name.startswith(_WORKERS))
    return [await api_request(nc, f"CONSUMER.INFO.{LOG}.{name}", None) for name in worker_names]


async def ensure_worker_consumer(nc: Client, provider_config: str) -> str:
    """Create the consumer for a configuration's actions if it is missing. Return its name.

    An existing one stays unchanged: ``ensure_topology`` upgrades it.
    """
    name = worker_consumer(provider_config)
    if not await _existing_config(nc, f"CONSUMER.INFO.{LOG}.{name}"):
        await ensure_consumer(nc, LOG, _worker_consumer(name))
    return name


async def ensure_topology(
    nc: Client,
    *,
    replicas: int | None = None,
    restored: LogIdentity | None = None,
    namespaces: Sequence[str] = (),
) -> Topology:
    """Create or upgrade every stream and consumer. This is idempotent.

    ``replicas``: None for the largest number that any stream has, or 1. ``restored``: the identity
    of a log that is being restored, which stays marked. ``namespaces``: namespaces with services
    that read outcomes.

    Raises:
        IncompatibleStreamError: a difference cannot be changed in place.
    """
    _check_replicas(nc, replicas)
    await check_stream_owners(nc)
    if replicas is None:
        replicas = await _max_replicas(nc)
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
    errors: list[str] = []
    for config in await _stream_configs(nc, metadata, first_position):
        is_new_log = config["name"] == LOG and is_new
        try:
            wanted: Config = {**config, "num_replicas": replicas}
            if restored is not None and config["name"] == INTAKE:
                wanted["subjects"] = [*wanted["subjects"], _RESTORING_SUBJECT]
            change = await ensure_stream(nc, wanted, remedy="", must_be_new=is_new_log)
        except StreamExistsError:  # another process has just created the log, with its own id
            return await ensure_topology(nc, replicas=replicas, namespaces=namespaces)
        except IncompatibleStreamError as error:  # continue with the other streams
            errors.append(str(error))
            continue
        changes[config["name"]] = change
        reach(Failpoint.INIT_STEP)
    for stream, consumer in await _consumer_configs(nc, metadata):
        name = f"{stream}/{consumer['durable_name']}"
        changes[name] = await ensure_consumer(nc, stream, consumer)
        reach(Failpoint.INIT_STEP)
    for namespace in sorted({*namespaces, *await service_namespaces(nc)}):
        for stream, consumer in service_consumers(namespace):
            name = f"{stream}/{consumer['durable_name']}"
            changes[name] = await _ensure_service_consumer(
                nc, stream, consumer, skip_old=restored is None
            )
            reach(Failpoint.INIT_STEP)
    if errors:
        raise IncompatibleStreamError(" ".join((*errors, _NEW_SERVER_REMEDY)))
    return Topology(identity.log_id, changes)


def _check_replicas(nc: Client, replicas: int | None) -> None:
    """Raise ``ConfigurationError`` for several replicas on a server that is not in a cluster."""
    if replicas is not None and replicas > 1 and not is_clustered(nc):
        raise ConfigurationError(
            f"{replicas} replicas require a cluster, but this NATS server is not in one; use 1 "
            "replica. Nothing was changed"
        )


async def _max_replicas(nc: Client) -> int:
    """Return the largest number of replicas of any stream. Another client may have reduced some."""
    configs = [await _existing_config(nc, f"STREAM.INFO.{name}") for name in SUBJECTS]
    return max(int(each.get("num_replicas", 1)) for each in configs)


async def _ensure_service_consumer(
    nc: Client, stream: str, consumer: Config, *, skip_old: bool
) -> str:
    """Create or upgrade a service's consumer. With `skip_old`, a new one skips old messages."""
    name = consumer["durable_name"]
    end = (await stream_state(nc, stream)).last_seq
    change = await ensure_consumer(nc, stream, consumer)
    if change == "created" and skip_old:
        await api_request(nc, f"CONSUMER.RESET.{stream}.{name}", {"seq": end + 1})
    return change


async def prepare_restoration(
    nc: Client, *, replicas: int = 1, namespaces: Sequence[str] = ()
) -> None:
    """Create or repair the streams that a restore keeps, before it deletes others.

    This reserves their storage. ``namespaces``: namespaces with services that read outcomes.

    Raises:
        StreamFullError: there is no space, or the account does not allow all streams and consumers.
        IncompatibleStreamError: a stream cannot be changed in place, or another client's stream
            uses Reconciler's subjects, so a restore could not finish.
    """
    _check_replicas(nc, replicas)
    await check_stream_owners(nc)
    await _check_subjects(nc)
    await _check_account(nc, replicas, {*namespaces, *await _existing_services(nc)})
    for config in (_listings(), _dead_letters(), _rates()):
        await ensure_stream(nc, {**config, "num_replicas": replicas}, remedy=_OTHER_SERVER_REMEDY)


async def _check_account(nc: Client, replicas: int, namespaces: Collection[str]) -> None:
    """Raise ``StreamFullError`` if the account does not allow all of a log's streams and consumers.

    An account may have separate limits for each number of replicas. The limit on consumers applies
    to each stream.
    """
    account = await api_request(nc, "INFO", None)
    tiers: Mapping[str, Config] = account.get("tiers") or {}
    tier = tiers.get(f"R{replicas}", account)
    limits: Config = tier.get("limits") or {}
    used = int(tier.get("streams", 0))
    missing = [name for name in SUBJECTS if not await _exists(nc, name)]
    allowed = int(limits.get("max_streams", -1))
    if 0 < allowed < used + len(missing):
        raise _build_account_error(
            f"max_streams is {allowed}, but {plural(used, 'stream exists', 'streams exist')} and "
            f"{len(missing)} more are needed; set max_streams to at least {used + len(missing)}"
        )
    consumer_counts = Counter(
        stream for each in namespaces for stream, _ in service_consumers(each)
    )
    consumer_counts[LOG] += 1  # each reader of the log has one
    consumer_counts[INTAKE] = len(decider_consumers())
    stream, needed = max(consumer_counts.items(), key=lambda each: each[1])
    allowed = int(limits.get("max_consumers", -1))
    if 0 < allowed < needed:
        raise _build_account_error(
            f"max_consumers is {allowed}, but stream {stream} needs {needed}; set max_consumers to "
            f"at least {needed}"
        )


def _build_account_error(limit: str) -> StreamFullError:
    return StreamFullError(f"the NATS account is too small: its {limit}. Nothing was changed")


async def begin_restoration(
    nc: Client,
    identity: LogIdentity,
    *,
    first_position: int = 0,
    replicas: int = 1,
    saved: Sequence[str] = (),
) -> None:
    """Create the log's stream, or mark the existing one, so that no other process opens it.

    The old intake, and streams derived from the log, are deleted. Dead letters and listings stay.
    The intake is created first, to reserve its storage, and does not accept messages until
    ``ensure_topology`` is called. Only existing streams are deleted, so no permission to delete is
    required on an empty server.

    ``saved``: the names of the saved files that are required to complete the restore.
    ``end_restoration`` removes the mark.
    """
    for stream in (INTAKE, TIMERS, REJECTIONS, STATES, ROWS):
        existing = await _existing_config(nc, f"STREAM.INFO.{stream}")
        if existing and not _has_other_owner(stream, existing):
            await delete_stream(nc, stream)
            reach(Failpoint.RESTORE_STEP)
    intake = await _intake(nc, first_position)
    for field in ("sources", "subject_transform", "duplicate_window"):
        del intake[field]
    await ensure_stream(nc, {**intake, "subjects": [_RESTORING_SUBJECT], "num_replicas": replicas})
    reach(Failpoint.RESTORE_STEP)
    mark = {RESTORING_METADATA: "yes", SAVED_METADATA: "/".join(saved)}
    metadata = {**_metadata(identity), **mark}
    await ensure_stream(nc, {**_log(), "metadata": metadata, "num_replicas": replicas})
    reach(Failpoint.RESTORE_STEP)
    for consumer in await worker_consumers(nc):
        await delete_consumer(nc, LOG, consumer["name"])


async def end_restoration(nc: Client, identity: LogIdentity) -> None:
    """Remove the mark from the log once its events are complete."""
    await ensure_stream(nc, {"name": INTAKE, "subjects": [*SUBJECTS[INTAKE]]})
    reach(Failpoint.RESTORE_STEP)
    end = (await stream_state(nc, LOG)).last_seq
    metadata = {**_metadata(identity), SAVED_METADATA: "", RESTORED_END_METADATA: str(end)}
    await ensure_stream(nc, {**_log(), "metadata": metadata})


async def topology_differences(nc: Client) -> Mapping[str, Mapping[str, tuple[Any, Any]]]:
    """Return the differences of every stream and consumer from its definition.

    Maps the path of each differing field to (wanted, found). For a missing stream or consumer, all
    fields differ. The number of replicas is not compared, because operators choose it.
    """
    result: dict[str, Mapping[str, tuple[Any, Any]]] = {}
    identity, first_position = await _existing_log(nc)
    metadata = _metadata(identity)
    for config in await _stream_configs(nc, metadata, first_position):
        existing = await _existing_config(nc, f"STREAM.INFO.{config['name']}")
        wanted = with_raised_limit(config, existing)
        result[config["name"]] = differences(wanted, existing)
    services = [service_consumers(each) for each in await _existing_services(nc)]
    for stream, config in [*await _consumer_configs(nc, metadata), *chain.from_iterable(services)]:
        name = f"{stream}/{config['durable_name']}"
        existing = await _existing_config(nc, f"CONSUMER.INFO.{stream}.{config['durable_name']}")
        result[name] = differences(config, existing)
    return result


async def _existing_services(nc: Client) -> list[str]:
    try:
        return await service_namespaces(nc)
    except NotFoundOnBusError:
        return []


async def _existing_config(nc: Client, subject_suffix: str) -> Config:
    try:
        return (await api_request(nc, subject_suffix, None))["config"]
    except NotFoundOnBusError:
        return {}


async def find_log(nc: Client) -> LogIdentity:
    """Return the identity of the log.

    Raises:
        NotFoundOnBusError: `init` has not run yet.
    """
    try:
        state = await _log_state(nc)
        metadata = _check_usable(await _log_metadata(nc, state))
    except NotFoundOnBusError:
        await _check_no_lost_log(nc)
        raise
    log_id = metadata.get(LOG_ID_METADATA)
    if not log_id:
        await _check_no_lost_metadata(nc, state)
        await _check_no_lost_log(nc)
        raise NotFoundOnBusError(
            f"stream {LOG} has no {LOG_ID_METADATA} metadata, so `reconciler init` did not "
            "create it"
        )
    return _identity(metadata)


def find_lost_beginning(state: StreamState) -> str:
    """Return an error message if the log lacks its first event, or "".

    The first event in a stream has position 1, and the server removes none unless a client changed
    the stream's configuration.
    """
    if state.first_seq <= 1:
        return ""
    return (
        f"stream {LOG} begins at position {state.first_seq}: the events before it were removed, so "
        "ownership cannot be rebuilt"
    )


async def _log_metadata(nc: Client, log: StreamState) -> Mapping[str, str]:
    """Return the log's metadata, completed from its copies if another client removed some.

    A library that declares the stream again removes all metadata. A copy describes this log only if
    the log is older than the copy. Otherwise the log was recreated.
    """
    metadata: dict[str, str] = log.config.get("metadata", {})
    if LOG_ID_METADATA in metadata and FORMAT_METADATA not in metadata:
        return metadata  # format 1
    if LOG_ID_METADATA not in metadata and await _is_intake_being_restored(nc):
        metadata = {**metadata, RESTORING_METADATA: "yes"}
    for subject_suffix in _COPIES:
        with suppress(NotFoundOnBusError, BusDeniedError):
            holder = await api_request(nc, subject_suffix, None)
            copied = _copied_metadata(holder["config"].get("metadata") or {})
            log_id = copied.get(LOG_ID_METADATA)
            is_same = log_id and metadata.get(LOG_ID_METADATA, log_id) == log_id
            if is_same and _is_older(log, holder["created"]):
                return {**copied, **metadata}
    return metadata


async def _is_intake_being_restored(nc: Client) -> bool:
    with suppress(BusDeniedError):
        intake = await _existing_config(nc, f"STREAM.INFO.{INTAKE}")
        return _RESTORING_SUBJECT in (intake.get("subjects") or ())
    return False


def _is_older(log: StreamState, created: str) -> bool:
    return _parse_time(log.created) <= _parse_time(created)


def _copied_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the log's metadata that is copied, without the restore mark."""
    copied = (LOG_ID_METADATA, EPOCH_METADATA, RESTORED_METADATA, FORMAT_METADATA)
    return {field: value for field in copied if (value := metadata.get(field))}


async def _log_state(nc: Client) -> StreamState:
    """Return the log's state.

    Raises:
        NotFoundOnBusError: there is no log.
        IncompatibleStreamError: the log has format 0.
    """
    try:
        return await stream_state(nc, LOG)
    except NotFoundOnBusError:
        if _FIRST_LOG in await _streams_with_subject(nc, "log.>"):
            raise _build_too_old_error(_FIRST_LOG, 0) from None
        raise


async def _check_no_lost_log(nc: Client) -> None:
    """Raise ``IncompatibleStreamError`` if the log is missing, but other streams refer to it."""
    for state in await _states_after_log(nc):
        stream = state.config["name"]
        raise IncompatibleStreamError(
            f"stream {LOG} was deleted or recreated, but stream {stream} still has its messages "
            f"(up to its position {state.last_seq}). Keep all streams, and restore the log from a "
            "backup with `reconciler restore`. To start with an empty log instead, use another "
            "NATS account or an empty data directory"
        )


async def _check_no_lost_metadata(nc: Client, log: StreamState) -> None:
    """Raise ``IncompatibleStreamError`` if a log without an id lost its metadata."""
    if await _has_lost_metadata(nc, log):
        raise _build_lost_metadata_error(log)


def _build_lost_metadata_error(log: StreamState) -> IncompatibleStreamError:
    return IncompatibleStreamError(
        f"stream {LOG} lost its metadata, which contains the id of the log, but still has its "
        f"{plural(log.messages, 'event')}; keep all streams, and run `reconciler init` as a user "
        f"that may read messages of {LOG}, which restores the metadata"
    )


async def _has_lost_metadata(nc: Client, log: StreamState) -> bool:
    """Return whether a log without an id is older than the streams that refer to it."""
    return any(_is_older(log, each.created) for each in await _states_after_log(nc))


async def _recover_metadata(nc: Client, log: StreamState) -> dict[str, str]:
    """Rebuild the metadata of a log from its events, because no copy exists.

    Only owner labels contain the id. If there are none, no object has one, so any id is valid. The
    newest epoch may have no actions, so a new one keeps the keys distinct, as after a restore.
    """
    try:
        log_id, epochs = await _find_recorded_identity(nc)
    except BusDeniedError:
        raise _build_lost_metadata_error(log) from None
    epoch = next_epoch(new_id(), *epochs) if epochs else _first_epoch()
    return {LOG_ID_METADATA: log_id or new_id(), EPOCH_METADATA: epoch}


async def _find_recorded_identity(nc: Client) -> tuple[str, list[str]]:
    """Return the log id in the owner labels of actions, or "", and the epochs of all actions."""
    log_id, epochs = "", dict[str, None]()
    actions = subjects.log(ResourceKey("*", "*", "*"), "action.*")
    start = 1
    while messages := await read_subject(nc, LOG, actions, start_seq=start, limit=_PAGE_MESSAGES):
        for message in messages:
            with suppress(InvalidMessageError):  # `doctor` reports damaged events
                data = decode_log(message.payload).data
                if not isinstance(data, ActionDecided):
                    continue
                epochs[data.action.epoch] = None
                key = ".".join(message.subject.split(".")[1:4])
                label = data.action.labels.get(OWNER_LABEL, "")
                if label.endswith(f".{key}"):
                    log_id = log_id or label.removesuffix(f".{key}")
        start = messages[-1].seq + 1
    return log_id, list(epochs)


async def _states_after_log(nc: Client) -> list[StreamState]:
    """Return the states of the streams whose messages prove that a log existed."""
    states: list[StreamState] = []
    for stream in (ROWS, INTAKE):
        with suppress(NotFoundOnBusError, BusDeniedError):
            state = await stream_state(nc, stream)
            if state.last_seq and not _has_other_owner(stream, state.config):
                states.append(state)
    return states


async def check_stream_owners(nc: Client) -> None:
    """Raise ``IncompatibleStreamError`` if another client has a stream with a required name.

    An upgrade would change its configuration, which may delete messages, and a restore would delete
    the stream.
    """
    for name in SUBJECTS:
        if _has_other_owner(name, await _existing_config(nc, f"STREAM.INFO.{name}")):
            raise IncompatibleStreamError(
                f"stream {name} belongs to another client, but Reconciler requires a stream with "
                "this name; use another NATS account. Nothing was changed"
            )


def _has_other_owner(name: str, config: Config) -> bool:
    """Return whether an existing stream has neither Reconciler's mark nor any of its subjects.

    A library that declares a stream again removes the mark, but keeps the subjects.
    """
    if not config or is_own(config.get("metadata") or {}):
        return False
    own_subjects = {*SUBJECTS.get(name, ()), _RESTORING_SUBJECT}
    return not own_subjects & {*(config.get("subjects") or ())}


async def _check_subjects(nc: Client) -> None:
    """Raise ``IncompatibleStreamError`` if another client's stream uses Reconciler's subjects.

    Otherwise the server might reject the second of several streams after the first was created.
    """
    for stream, wanted in SUBJECTS.items():
        for subject in wanted:
            if others := [
                name for name in await _streams_with_subject(nc, subject) if name != stream
            ]:
                raise IncompatibleStreamError(
                    f"another client's stream {others[0]} uses subjects in {subject!r}, which "
                    f"Reconciler's stream {stream} requires; use another NATS account, or change "
                    f"the subjects of stream {others[0]}. Nothing was created"
                )


async def _streams_with_subject(nc: Client, subject: str) -> list[str]:
    """Return the names of the streams whose subjects overlap with a subject."""
    return list((await api_request(nc, "STREAM.NAMES", {"subject": subject})).get("streams") or ())


async def check_log_format(nc: Client) -> None:
    """Raise ``LogFormatError`` for a log in another format, if this user may read its metadata."""
    # Services may not read the metadata, and their account may have no log.
    with suppress(BusDeniedError, BusUnavailableError, NotFoundOnBusError):
        check_format(await _log_metadata(nc, await _log_state(nc)))


async def has_log(nc: Client) -> bool:
    """Return whether an event log exists, with a request that every user may send."""
    return LOG in await _streams_with_subject(nc, "log.>")


def _parse_time(created: str) -> datetime:
    return datetime.fromisoformat(created)


async def find_log_id(nc: Client) -> str:
    """Return the id of the log.

    Raises:
        NotFoundOnBusError: `init` has not run yet.
    """
    return (await find_log(nc)).log_id


def new_id() -> str:
    """Return a random id, for a log or for one of its restores."""
    return uuid.uuid4().hex[:12]


def _first_epoch() -> str:
    return first_epoch(secrets.token_hex(16))


async def _existing_log(nc: Client) -> tuple[LogIdentity, int]:
    """Return the log's identity, and the first position for a new intake.

    Positions are the logical clock. An intake that is recreated for an existing log must not start
    from 1 again, because its messages would appear older than those in the log.
    """
    try:
        state = await _log_state(nc)
    except NotFoundOnBusError:
        await _check_no_lost_log(nc)
        return LogIdentity(new_id(), _first_epoch()), 0
    metadata = _check_usable(await _log_metadata(nc, state))
    if LOG_ID_METADATA not in metadata:
        if await _has_lost_metadata(nc, state):
            metadata = await _recover_metadata(nc, state)
        else:
            await _check_no_lost_log(nc)
            metadata = {**metadata, LOG_ID_METADATA: new_id(), EPOCH_METADATA: _first_epoch()}
    identity = _identity(metadata)
    return identity, 0 if state.last_seq == 0 else time.time_ns() // 1_000


def _metadata(identity: LogIdentity) -> dict[str, str]:
    name = {**_OWN, LOG_ID_METADATA: identity.log_id, FORMAT_METADATA: str(LOG_FORMAT)}
    if not identity.epoch:
        return name
    # Set explicitly, because an update keeps fields that it does not contain.
    as_of = {RESTORED_METADATA: identity.restored_as_of} if identity.restored_as_of else {}
    return {**name, **as_of, EPOCH_METADATA: identity.epoch, RESTORING_METADATA: "no"}


def _identity(metadata: Mapping[str, str]) -> LogIdentity:
    fields = (LOG_ID_METADATA, EPOCH_METADATA, RESTORED_METADATA)
    return LogIdentity(*(str(metadata.get(field, "")) for field in fields))


def _check_usable(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Check that the log is usable, and return its metadata.

    Raises:
        IncompatibleStreamError: the log has another format, or is only partially restored.
    """
    check_format(metadata)
    if _is_being_restored(metadata):
        raise IncompatibleStreamError(
            f"stream {LOG} is being restored, or its restore was interrupted; run `reconciler "
            "restore` with the same file again"
        )
    return metadata


def check_format(metadata: Mapping[str, str]) -> None:
    """Raise ``LogFormatError`` for a log that is too new or too old for this release."""
    # A stream without an id was not created by `init`.
    first = "1" if LOG_ID_METADATA in metadata else str(LOG_FORMAT)
    version = metadata.get(FORMAT_METADATA, first)
    if not version.isdecimal() or int(version) > LOG_FORMAT:
        raise LogFormatError(
            f"stream {LOG} was written by a newer release (format {version}, this release reads "
            f"{LOG_FORMAT}); upgrade"
        )
    if int(version) < LOG_FORMAT:
        raise _build_too_old_error(LOG, int(version))


def _build_too_old_error(stream: str, version: int) -> LogFormatError:
    return LogFormatError(
        f"stream {stream} has the older format {version}, and this release reads format "
        f"{LOG_FORMAT}; use the revision that wrote it, which is in the range {_REVISIONS[version]}"
    )


def is_own(metadata: Mapping[str, str]) -> bool:
    """Return whether a stream, and thus its consumers, belongs to Reconciler."""
    return OWN_METADATA in metadata or LOG_ID_METADATA in metadata


def saved_files(metadata: Mapping[str, str]) -> list[str]:
    """Return the names of the files that an unfinished restore saved."""
    return [*filter(None, metadata.get(SAVED_METADATA, "").split("/"))]


async def is_log_being_restored(nc: Client) -> bool:
    """Return whether a restore of the log has started and not ended."""
    return _is_being_restored(await _log_metadata(nc, await _log_state(nc)))


def _is_being_restored(metadata: Mapping[str, str]) -> bool:
    return metadata.get(RESTORING_METADATA) == "yes"


async def existing_log(nc: Client) -> LogIdentity | None:
    """Return the identity of the existing log, even if only partially restored, or None.

    Raises:
        IncompatibleStreamError: the log lost its metadata.
    """
    try:
        state = await _log_state(nc)
    except NotFoundOnBusError:
        return None
    metadata = await _log_metadata(nc, state)
    check_format(metadata)
    if LOG_ID_METADATA not in metadata and not _is_being_restored(metadata):
        await _check_no_lost_metadata(nc, state)
    return _identity({LOG_ID_METADATA: UNKNOWN_LOG_ID, **metadata})


async def lost_log(nc: Client) -> LogIdentity:
    """Return the identity of the missing log from the rows stream, with id "" if unknown."""
    return _identity(
        _copied_metadata((await _existing_config(nc, f"STREAM.INFO.{ROWS}")).get("metadata", {}))
    )


async def _stream_configs(
    nc: Client, metadata: Mapping[str, str], first_position: int
) -> list[Config]:
    copy = {"metadata": {**_OWN, **_copied_metadata(metadata)}}
    return [
        _rejections(),  # before the log, because a log in this format implies that it exists
        {**_log(), "metadata": metadata},
        {**_timers(), **copy},
        {**await _intake(nc, first_position), **copy},
        {**_states(), **copy},
        _listings(),
        _dead_letters(),
        _rates(),
        {**_rows(), **copy},
    ]


def _log() -> Config:
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
        # Ids shared by all publishers would let one tenant suppress another's messages (ADR 0059).
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
        allow_rollup_hdrs=True,  # schedules require it
        max_msgs_per_subject=1,
        max_age=TIMERS_MAX_AGE.days * _DAY,
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


def _listings() -> Config:
    return _file_stream(
        LISTINGS,
        max_age=_HOUR,
        max_bytes=1024**3,
    )


def _dead_letters() -> Config:
    return _file_stream(
        DEADLETTERS,
        discard="new",  # a dead letter that does not fit stays at its source, so none is lost
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
"""Fields that can cause messages to be lost, rejected, changed or copied. All are compared, even
those with default values."""

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
    "max_waiting": 512,  # the server's default: number of concurrent pull requests
    "inactive_threshold": 0,
    "backoff": [],
    "mem_storage": False,
    "num_replicas": 0,
    "pause_until": None,
}
"""Fields that can make a consumer deliver fewer messages, later, or none."""


def _file_stream(name: str, **overrides: object) -> Config:
    """Return a stream's configuration. A stream that drops old messages has unlimited size.

    An operator may limit a stream that rejects new messages when it is full.
    """
    limit = {} if overrides.get("discard") == "new" else {"max_bytes": _UNLIMITED}
    return {
        **_STREAM_DEFAULTS,
        **limit,
        "name": name,
        "subjects": list(SUBJECTS[name]),
        "metadata": _OWN,
        "storage": "file",
        "allow_direct": True,
        "compression": "none",  # a crash loses a replica with compressed blocks (ADR 0014)
        **overrides,
    }


async def _consumer_configs(nc: Client, metadata: Mapping[str, str]) -> list[tuple[str, Config]]:
    """Return the consumers that every log has, and those that workers have created."""
    copy = {"metadata": _copied_metadata(metadata)}
    filters = [f"in.{partition}.>" for partition in range(PARTITIONS)] + ["rec.>"]
    deciders = [
        (INTAKE, {**_decider_consumer(name, subject_filter), **copy})
        for name, subject_filter in zip(decider_consumers(), filters, strict=True)
    ]
    names = [each["name"] for each in await worker_consumers(nc)]
    return [*deciders, *((LOG, _worker_consumer(name)) for name in names)]


def _worker_consumer(name: str) -> Config:
    suffix = f"action.{name.removeprefix(_WORKERS)}"
    return {
        **_CONSUMER_DEFAULTS,
        "durable_name": name,
        "filter_subject": subjects.log(ResourceKey("*", "*", "*"), suffix),
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
