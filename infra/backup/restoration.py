"""Restore a log from a backup to a server without one, or in place of a damaged one.

The log keeps its id, so that owner labels stay valid, but its epoch changes, because versions after
the backup are reused, and the keys of their actions must differ (ADR 0010). The intake is recreated
with positions after all those in the log. Only declarations are restored to it, because old results
and observations may refer to lost events.

The server's data is saved to a file before it is deleted. The file has a temporary name until the
restore is complete, so that a repeated restore finds it. It may contain declarations that exist
nowhere else.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import msgspec
from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from events.epochs import next_epoch
from events.excerpt import list_first
from events.integrity import LogDamage, next_digest
from events.subjects import ALL_STORED_INTAKE, REPLY_HEADER
from infra.backup.backup import intake_position, save_log, to_recorded
from infra.backup.file import PARTIAL, Backup, SavedMessage
from infra.backup.inspection import LogSummary, content_of
from infra.bus.intake import store_all
from infra.bus.removals import find_intake_problem
from infra.bus.streams import (
    INTAKE,
    LOG,
    UNKNOWN_LOG_ID,
    LogIdentity,
    begin_restoration,
    check_format,
    check_stream_owners,
    decider_consumers,
    end_restoration,
    ensure_topology,
    existing_log,
    is_log_being_restored,
    lost_log,
    new_id,
    prepare_restoration,
    saved_files,
    worker_consumers,
)
from infra.jetstream.append import append
from infra.jetstream.connection import api_request
from infra.jetstream.errors import IncompatibleStreamError, NotFoundOnBusError
from infra.jetstream.follow import follow
from infra.jetstream.outgoing import MESSAGE_ID, OutgoingMessage
from infra.jetstream.reads import StoredMessage, read_subject, stream_state
from infra.jetstream.topology import delete_stream
from reconciler.errors import ReconcilerError
from reconciler.failpoints import Failpoint, reach

Progress = Callable[[int], object]
"""Called with the number of processed events."""

_BATCH_EVENTS: Final = 500
_BATCH_BYTES: Final = 4 * 1024 * 1024
_SERVER_HEADERS: Final = "Nats-"
_UNFINISHED: Final = ".replacing-"
_FINISHED: Final = ".replaced-"


class RestoreRefusedError(ReconcilerError):
    """The server's state does not permit the restore. The message contains reason and remedy."""


class LogState(msgspec.Struct, frozen=True):
    """Identifies the state of a log: it changes if the log grows or is recreated."""

    created: str
    last: int


class Plan(msgspec.Struct, frozen=True):
    """The steps of a restore, planned before anything is written.

    ``present``: number of the backup's events that the server already has. ``log``: identity of the
    server's log. ``log_state``: its state at planning time. Both are None if there is no log.
    """

    mode: Literal["new", "continue", "replace", "nothing"]
    present: int = 0
    log: LogIdentity | None = None
    log_state: LogState | None = None


class RestoredLog(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a restore.

    ``continued``: number of events after the backup's end that were kept from the replaced log.
    ``lost``: number of those that were not kept. ``declarations``: number restored to the intake.
    ``replaced``: the files with the server's former data.
    """

    log_id: str
    epoch: str
    events: int
    present: int
    continued: int
    lost: int
    declarations: int
    damage: list[LogDamage]
    replaced: list[str] = []
    changed: bool = True


async def plan_restoration(
    nc: Client, backup: Backup, summary: LogSummary, replace: str | None
) -> Plan:
    """Read the server's state, and return the steps of a restore.

    Raises:
        RestoreRefusedError: the state does not permit the restore.
    """
    _check_format(backup)
    await check_stream_owners(nc)
    existing = await existing_log(nc)
    await _check_no_clients(nc)
    if existing is None:
        _check_no_other_restore(backup.path)
        return Plan("new")
    state = await stream_state(nc, LOG)
    state_id = LogState(state.created, state.last_seq)
    is_restoring = await is_log_being_restored(nc)
    if is_restoring and replace != existing.log_id:
        _check_same_file(backup, existing)
        _check_saved_files(backup, existing, saved_files(state.config.get("metadata", {})))
    if state.last_seq == 0:
        return Plan("new", log=existing, log_state=state_id)
    # A partly restored log may have lost its metadata; its events show which backup it is from.
    ids = {backup.header.identity.log_id, UNKNOWN_LOG_ID if is_restoring else ""}
    if existing.log_id in ids and state.messages == state.last_seq:
        present = await _count_shared_events(nc, backup, state.last_seq)
        if present == state.last_seq:
            if present == summary.events and not is_restoring:
                is_incomplete = await _needs_new_intake(nc) or await _lacks_saved_messages(
                    nc, backup, summary
                )
                return Plan("continue" if is_incomplete else "nothing", present, existing, state_id)
            return Plan("continue", present, existing, state_id)
    is_repeated = is_restoring and _unfinished_files(backup.path)
    if replace == existing.log_id or is_repeated:
        return Plan("replace", 0, existing, state_id)
    if replace is not None:
        raise RestoreRefusedError(
            f"this server has log {existing.log_id}, not {replace}; nothing was changed"
        )
    raise RestoreRefusedError(
        f"this server already has a log ({existing.log_id}, {state.messages} events), and this "
        f"backup (of log {backup.header.identity.log_id}) does not continue it; restore to "
        f"another server, or use --replace {existing.log_id} to save that log to a file next to "
        "the backup and replace it"
    )


def _check_same_file(backup: Backup, existing: LogIdentity) -> None:
    """Raise an error if the interrupted restore used another backup."""
    if existing.restored_as_of not in ("", _format_time(backup)):
        raise RestoreRefusedError(
            f"the restore of the backup made at {existing.restored_as_of} was interrupted, but "
            f"this one was made at {_format_time(backup)}; run `reconciler restore` with the "
            "earlier file again: the files next to it may contain declarations that exist nowhere "
            f"else. Without that file, use --replace {existing.log_id}"
        )


def _check_saved_files(backup: Backup, existing: LogIdentity, saved: Sequence[str]) -> None:
    """Raise an error if the saved files are not next to the backup, which may be a copy or link."""
    present = {each.name for each in _unfinished_files(backup.path)}
    if missing := [name for name in saved if name not in present]:
        raise RestoreRefusedError(
            f"the interrupted restore saved {list_first(missing)}, which may contain declarations "
            f"that exist nowhere else, but is not next to {backup.path}; run `reconciler "
            "restore` with the same path as before. Without these files, use --replace "
            f"{existing.log_id}"
        )


def _check_no_other_restore(path: Path) -> None:
    """Raise an error if another restore was interrupted between deleting and marking the log."""
    others = [each for each in path.absolute().parent.iterdir() if _UNFINISHED in each.name]
    own_files = _unfinished_files(path)
    if names := sorted(
        each.name for each in others if each not in own_files and _is_complete(each)
    ):
        raise RestoreRefusedError(
            f"{names[0]}: the restore of {names[0].partition(_UNFINISHED)[0]} was interrupted; run "
            "`reconciler restore` with the same file again. If that was for another server, move "
            "this backup to another directory, and restore it from there"
        )


def _format_time(backup: Backup) -> str:
    return f"{backup.header.made_at:%Y-%m-%dT%H:%M:%SZ}"


async def restore_log(
    nc: Client,
    backup: Backup,
    summary: LogSummary,
    plan: Plan,
    progress: Progress,
    *,
    replicas: int = 1,
) -> RestoredLog:
    """Write the backup to the server, and verify what was written.

    If repeated, it continues after the last completed step.

    Raises:
        BackupFileError, OSError: a file cannot be read or written.
        RestoreRefusedError: the server's state has changed, or differs from what was written.
        BusError: a request failed.
    """
    services = _services(backup, *map(Backup, _unfinished_files(backup.path)))
    await prepare_restoration(nc, replicas=replicas, namespaces=services)
    epoch = _new_epoch(backup, plan.log)
    identity = LogIdentity(backup.header.identity.log_id, epoch, _format_time(backup))
    floor = await _save_existing(nc, backup.path, plan)
    reach(Failpoint.RESTORE_STEP)
    saved_backups = [Backup(path) for path in _unfinished_files(backup.path)]
    for saved_backup in saved_backups:
        positions = (saved.position for saved in _messages_of(saved_backup.declarations()))
        floor = max(floor, max(positions, default=0))
    if plan.log is not None and plan.mode in ("new", "replace"):
        await delete_stream(nc, LOG)
        reach(Failpoint.RESTORE_STEP)
    # After every position that may have been used in the old intake or the log.
    first = max(time.time_ns() // 1_000, summary.newest_cause + 1, floor + 1)
    saved = [each.path.name for each in saved_backups]
    await begin_restoration(nc, identity, first_position=first, replicas=replicas, saved=saved)
    writer = _Writer(nc, plan.present, progress)
    for message in islice(_messages_of(backup.events()), plan.present, None):
        await writer.add(message)
    continued, lost = await _keep_newer_events(writer, saved_backups, summary, identity)
    await writer.flush()
    await _verify_events(nc, summary)
    services = _services(backup, *saved_backups)
    await ensure_topology(nc, replicas=replicas, restored=identity, namespaces=services)
    declared = await _restore_declarations(nc, [backup, *saved_backups], summary)
    reach(Failpoint.RESTORE_STEP)
    await end_restoration(nc, identity)
    reach(Failpoint.RESTORE_STEP)
    return RestoredLog(
        identity.log_id,
        identity.epoch,
        summary.events,
        plan.present,
        continued,
        lost,
        declared,
        summary.damage,
        rename_saved_files(backup.path),
    )


def _services(*sources: Backup) -> list[str]:
    """Return the namespaces whose services had consumers of the saved logs."""
    return sorted({name for each in sources for name in each.header.services})


def _new_epoch(backup: Backup, existing: LogIdentity | None) -> str:
    """Return a new epoch that contains earlier ones, which object keys still use (ADR 0065).

    The existing log may have lost its earlier epochs together with its metadata.
    """
    log = backup.header.identity
    saved = (Backup(path).header.identity for path in _unfinished_files(backup.path))
    known = (each for each in (existing, log, *saved) if each and each.log_id == log.log_id)
    return next_epoch(new_id(), *(each.epoch for each in known))


def rename_saved_files(path: Path) -> list[str]:
    """Rename the files next to a restored backup to their final names. Return the new paths."""
    finished: list[str] = []
    for each in _unfinished_files(path):
        name = each.name.replace(_UNFINISHED, _FINISHED)
        finished.append(str(each.replace(each.with_name(name))))
    return finished


def _unfinished_files(path: Path) -> list[Path]:
    """Return the files that an incomplete restore of a backup saved, oldest first."""
    prefix = f"{path.name}{_UNFINISHED}"
    files = [each for each in path.absolute().parent.iterdir() if each.name.startswith(prefix)]
    return sorted(filter(_is_complete, files))


def _is_complete(path: Path) -> bool:
    return not path.name.endswith(PARTIAL)


def _check_format(backup: Backup) -> None:
    try:
        check_format(backup.header.config.get("metadata") or {})
    except IncompatibleStreamError as error:
        raise RestoreRefusedError(f"{backup.path}: {error}") from None


# --- the server's state


async def _needs_new_intake(nc: Client) -> bool:
    """Return whether a complete log needs a new intake."""
    return await intake_position(nc) > 0 and await find_intake_problem(nc) != ""


async def _lacks_saved_messages(nc: Client, backup: Backup, summary: LogSummary) -> bool:
    """Return whether an interrupted restore saved events or declarations that the log lacks.

    Another restore, from a copy of the backup, may have completed in the meantime.
    """
    saved_backups = [Backup(path) for path in _unfinished_files(backup.path)]
    saved = _events_of_log(saved_backups, backup.header.identity.log_id)
    if any(_compare(event, summary) == "next" for event in saved):
        return True
    names = {
        _declaration_id(declaration)
        for saved_backup in saved_backups
        for block in _missing_declarations(saved_backup, summary)
        for declaration in block
    }
    if not names or not await intake_position(nc):
        return bool(names)
    stored = await read_subject(nc, INTAKE, ALL_STORED_INTAKE)
    return bool(names - {_declaration_id(_declaration(_to_saved(message))) for message in stored})


async def _check_no_clients(nc: Client) -> None:
    consumers = await worker_consumers(nc)
    for name in decider_consumers():
        with contextlib.suppress(NotFoundOnBusError):
            consumers.append(await api_request(nc, f"CONSUMER.INFO.{INTAKE}.{name}", None))
    for consumer in consumers:
        if consumer.get("num_waiting"):
            name, stream = consumer["name"], consumer["stream_name"]
            raise RestoreRefusedError(
                f"the log is in use (a client reads consumer {name} of {stream}); stop all "
                "deciders, workers, observers and projectors, then retry"
            )


async def _count_shared_events(nc: Client, backup: Backup, last: int) -> int:
    """Count the leading events that the log and backup share, up to a position in the log."""
    events = _messages_of(backup.events())
    async with follow(nc, LOG) as follower:
        while follower.position < last:
            for message in await anext(follower):
                saved = next(events, None)
                if saved is None or content_of(_to_saved(message)) != content_of(saved):
                    return message.seq - 1
    return last


async def _save_existing(nc: Client, path: Path, plan: Plan) -> int:
    """Save the log and the intake that will be deleted. Return the intake's last position."""
    floor = await intake_position(nc)
    identity = plan.log
    if identity is None:
        if not floor:
            await _check_unchanged(nc, plan)
            return 0
        identity = await lost_log(nc)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    saved_path = path.with_name(f"{path.name}{_UNFINISHED}{stamp}")
    await save_log(nc, saved_path, identity, lambda _done: None, all_declarations=True)
    try:
        await _check_unchanged(nc, plan)
    except RestoreRefusedError:
        saved_path.unlink()  # its content is still on the server
        raise
    return floor


async def _check_unchanged(nc: Client, plan: Plan) -> None:
    """Raise an error if the log has changed since the restore was planned."""
    try:
        state = await stream_state(nc, LOG)
    except NotFoundOnBusError:
        current = None
    else:
        current = LogState(state.created, state.last_seq)
    if current != plan.log_state:
        raise RestoreRefusedError(
            f"another client has changed stream {LOG} in the meantime (for example, another "
            "`reconciler restore`); this one changed nothing. Wait until the other one has "
            "finished, then retry"
        )


# --- writing


class _Writer:
    """Appends events in atomic batches, with a compare-and-set on the whole log."""

    def __init__(self, nc: Client, position: int, progress: Progress) -> None:
        self._nc = nc
        self._position = position
        self._progress = progress
        self._pending: list[OutgoingMessage] = []
        self._bytes = 0

    async def add(self, saved: SavedMessage) -> None:
        headers = {
            name: value
            for name, value in (saved.headers or {}).items()
            if not name.startswith(_SERVER_HEADERS)
        }
        is_first = not self._pending
        self._pending.append(
            OutgoingMessage(
                saved.subject,
                saved.payload,
                headers or None,
                expected_filter="log.>" if is_first else None,
                expected_last=self._position,
            )
        )
        self._bytes += len(saved.payload)
        if len(self._pending) >= _BATCH_EVENTS or self._bytes >= _BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        if self._pending:
            self._position = (await append(self._nc, self._pending))[-1]
            self._pending, self._bytes = [], 0
            reach(Failpoint.RESTORE_STEP)
            self._progress(self._position)


async def _keep_newer_events(
    writer: _Writer, saved_backups: Sequence[Backup], summary: LogSummary, identity: LogIdentity
) -> tuple[int, int]:
    """Keep a replaced log's events after the backup, if they continue their resources' chains.

    An event is kept if its digest shows that it directly continues the history in the backup.
    """
    continued = lost = 0
    for saved in _events_of_log(saved_backups, identity.log_id):
        comparison = _compare(saved, summary)
        if comparison == "known":
            continue
        if comparison == "lost":
            lost += 1
            continue
        continued += 1
        kept = msgspec.structs.replace(saved, position=summary.events + 1)
        summary.add(kept)
        await writer.add(kept)
    return continued, lost


def _events_of_log(sources: Sequence[Backup], log_id: str) -> Generator[SavedMessage]:
    for source in sources:
        if source.header.identity.log_id == log_id:
            yield from _messages_of(source.events())


def _compare(saved: SavedMessage, summary: LogSummary) -> Literal["known", "next", "lost"]:
    fields = to_recorded(saved)
    try:
        event = decode_log(fields.payload)
    except InvalidMessageError:
        return "lost"
    chain = summary.chains.chains.get(event.subject)
    version, digest = (0, "") if chain is None else (chain.version or 0, chain.digest)
    if event.resourceversion <= version:
        return "known"
    if event.resourceversion != version + 1 or fields.digest != next_digest(digest, fields.payload):
        return "lost"
    return "next"


async def _verify_events(nc: Client, summary: LogSummary) -> None:
    """Read the whole log, and compare it with what was written."""
    written = LogSummary()
    async with follow(nc, LOG) as follower:
        async for messages in follower.replay():
            for message in messages:
                written.add(_to_saved(message))
    if (written.events, written.content) != (summary.events, summary.content):
        raise RestoreRefusedError(
            f"the server returns {written.events} events, which differ from the "
            f"{summary.events} that were written; check its disk and its log, and restore to "
            "another server"
        )


async def _restore_declarations(nc: Client, sources: Sequence[Backup], summary: LogSummary) -> int:
    """Store the declarations that the log lacks in the new intake, in order."""
    known: set[tuple[str, str]] = set()
    log_id = sources[0].header.identity.log_id
    for source in sources:
        if source.header.identity.log_id != log_id:
            continue
        for block in _missing_declarations(source, summary):
            # The file of an interrupted restore may repeat declarations that were already stored.
            new_declarations = {
                declaration_id: declaration
                for declaration in block
                if (declaration_id := _declaration_id(declaration)) not in known
            }
            if not new_declarations:
                continue
            known.update(new_declarations)
            for result in await store_all(nc, [*new_declarations.values()]):
                if isinstance(result, Exception):
                    raise result
            reach(Failpoint.RESTORE_STEP)
    return len(known)


def _missing_declarations(source: Backup, summary: LogSummary) -> Generator[list[OutgoingMessage]]:
    """Yield a file's declarations that the log lacks, in blocks."""
    is_behind = 0 < source.header.intake_position < summary.newest_cause
    for messages in source.declarations():
        yield [
            _declaration(message)
            for message in messages
            if not summary.includes(message, is_behind=is_behind)
        ]


def _declaration_id(declaration: OutgoingMessage) -> tuple[str, str]:
    return declaration.subject, (declaration.headers or {})[MESSAGE_ID]


def _declaration(saved: SavedMessage) -> OutgoingMessage:
    """Return a declaration as it was first published, without its reply subject."""
    headers = {
        name: value
        for name, value in (saved.headers or {}).items()
        if not name.startswith(_SERVER_HEADERS) and name != REPLY_HEADER
    }
    message_id = (saved.headers or {}).get(MESSAGE_ID) or f"intake-{saved.position}"
    subject = f"rec.{'.'.join(saved.subject.split('.')[2:])}"
    return OutgoingMessage(subject, saved.payload, {**headers, MESSAGE_ID: message_id})


def _to_saved(message: StoredMessage) -> SavedMessage:
    headers = dict(message.headers) if message.headers else None
    return SavedMessage(message.seq, message.subject, message.time_ns, headers, message.payload)


def _messages_of(blocks: Iterable[Sequence[SavedMessage]]) -> Generator[SavedMessage]:
    for messages in blocks:
        yield from messages
