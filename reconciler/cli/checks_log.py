"""Checks of what the log says: actions, ownership, dead letters, and the rows folded from it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from nats.aio.client import Client

from events.dead_letter import DeadLetterRecord
from events.integrity import LogDamage
from events.manifest import PROVIDER_CONFIG_KIND
from events.names import ShapeKey
from events.subjects import log
from infra.bus.rows import JetStreamRows
from infra.bus.shape_log import JetStreamShapeLog
from infra.bus.streams import DEADLETTERS, INTAKE, SHAPES, WORKERS, decider_consumers
from infra.jetstream.connection import api_request
from infra.jetstream.reads import last_for_subjects, last_from_leader, stream_state
from projections.read_models import (
    CHECKPOINT,
    ReadModels,
    decode_checkpoint,
    ownership_name,
    status_name,
)
from projections.status import StatusRow
from reconciler.cli.finding import Finding, some
from reconciler.cli.reading import current_models, log_of, models_of
from reconciler.cli.rebuilding import Rebuild, compare, differences

SAMPLE = 50
_OVERDUE = timedelta(seconds=30)
_LOOKS = 3
_WELL_WITHOUT_OWNING = ("Converged", "Unowned", "Drifted", "Paused")


def check_damage(found: Iterable[LogDamage]) -> Finding:
    """Tell where the log is not what was written."""
    places = [f"{one.problem}: {one}" for one in found]
    if not places:
        return Finding("log", "ok", "no damage is known (`replay --verify` reads all of it)")
    remedy = (
        "the shapes named are held; restore the log from a backup: see "
        '"When the log is damaged" in the operating guide'
    )
    return Finding("log", "fail", f"damaged in {len(places)} places: {some(places)}", remedy)


async def check_actions(nc: Client) -> Finding:
    """Prove that every decided action has an outcome, a live lease or a scheduled retry.

    An action between two stages may look lost for a moment: only what looks lost each time counts.
    """
    lost: set[str] | None = None
    in_flight = 0
    for _ in range(_LOOKS):
        models = await current_models(nc)
        in_flight = sum(bool(row.action_id) for row in models.status.values())
        now = await _lost_actions(nc, models)
        lost = now if lost is None else lost & now
        if not lost:
            return Finding("lost actions", "ok", f"none; {in_flight} in flight")
    remedy = "run an observer: its sweeper wakes them; see `reconciler history` of the first"
    return Finding("lost actions", "fail", f"{len(lost or ())}: {some(sorted(lost or ()))}", remedy)


async def _lost_actions(nc: Client, models: ReadModels) -> set[str]:
    """Name the shapes whose action nobody has, nobody waits for, and no result is under way."""
    now = datetime.now(UTC)
    suspects = [
        row
        for row in models.status.values()
        if (row.action_id and (row.retry_at is None or row.retry_at < now - _OVERDUE))
        or (row.retry_at is not None and row.retry_at < now - _OVERDUE)
    ]
    if not suspects or not await _intake_is_empty(nc):
        return set()
    worker = await api_request(nc, f"CONSUMER.INFO.{SHAPES}.{WORKERS}", None)
    acknowledged = int(worker["ack_floor"]["stream_seq"])
    if not worker["num_pending"] and not worker["num_ack_pending"]:
        acknowledged = (await stream_state(nc, SHAPES)).last_seq
    by_subject = {log(row.key, "action"): row for row in suspects}
    found = await last_for_subjects(nc, SHAPES, list(by_subject))
    return {
        str(by_subject[message.subject].key)
        for message in found
        if message.seq <= acknowledged or by_subject[message.subject].retry_at is not None
    }


async def _intake_is_empty(nc: Client) -> bool:
    for name in decider_consumers():
        info = await api_request(nc, f"CONSUMER.INFO.{INTAKE}.{name}", None)
        if info["num_pending"] or info["num_ack_pending"]:
            return False
    return True


def check_ownership(rows: Iterable[StatusRow]) -> list[Finding]:
    """Tell what is owned and not wanted, and what is wanted and not owned."""
    external = [row for row in rows if row.kind != PROVIDER_CONFIG_KIND]
    return [_owned_only(external), _declared_only(external)]


def _owned_only(rows: Sequence[StatusRow]) -> Finding:
    leaving = [row for row in rows if row.owned and not row.declared]
    if not leaving:
        return Finding("owned, not declared", "ok", "none")
    stuck = [_how(row) for row in leaving if not row.action_id and row.retry_at is None]
    if not stuck:
        return Finding("owned, not declared", "ok", f"{len(leaving)}, all of them under way")
    remedy = "what is shown as the reason must be done, or the API be asked: `reconciler describe`"
    return Finding("owned, not declared", "warn", f"{len(stuck)}: {some(stuck)}", remedy)


def _declared_only(rows: Sequence[StatusRow]) -> Finding:
    wanting = [
        _how(row)
        for row in rows
        if row.declared and not row.owned and row.outcome not in _WELL_WITHOUT_OWNING
    ]
    if not wanting:
        return Finding("declared, not owned", "ok", "none without a reason")
    remedy = "the reason says what is missing: `reconciler describe`"
    return Finding("declared, not owned", "warn", f"{len(wanting)}: {some(wanting)}", remedy)


def check_watched(rows: Iterable[StatusRow]) -> Finding:
    """Tell what belongs to a ProviderConfig that is not declared (any more)."""
    rows = list(rows)
    known = {row.name for row in rows if row.kind == PROVIDER_CONFIG_KIND and row.declared}
    lost = [
        f"{row.key} ({row.provider_config})"
        for row in rows
        if row.kind != PROVIDER_CONFIG_KIND
        and (row.declared or row.owned or row.action_id)
        and row.provider_config not in known
    ]
    if not lost:
        return Finding("without an API", "ok", "none")
    remedy = "declare the ProviderConfig again: until then nobody watches, makes or deletes them"
    return Finding("without an API", "warn", f"{len(lost)}: {some(lost)}", remedy)


def _how(row: StatusRow) -> str:
    return f"{row.key} ({row.outcome or 'Pending'}{f', {row.reason}' if row.reason else ''})"


async def check_dead_letters(nc: Client) -> Finding:
    """Count what could not be used, and show the newest."""
    count = (await stream_state(nc, DEADLETTERS)).messages
    if not count:
        return Finding("dead letters", "ok", "none")
    newest = await last_from_leader(nc, DEADLETTERS, "deadletter.>")
    text = f"{count}"
    if newest is not None:
        try:
            record = msgspec.json.decode(newest.payload, type=DeadLetterRecord)
            text += f"; newest, of {record.at:%Y-%m-%dT%H:%M:%SZ}: {record.reason[:120]}"
        except msgspec.DecodeError:
            text += "; the newest cannot be read"
    remedy = "look with `nats stream view DEADLETTERS`; the publisher must send it right"
    return Finding("dead letters", "warn", text, remedy)


async def check_rows(nc: Client, *, full: bool) -> Finding:
    """Compare stored rows with the log: all of them, or those of some shapes."""
    wrong, what = await (_all_rows(nc) if full else _sampled_rows(nc))
    if not wrong:
        return Finding("rows equal the log", "ok", what)
    remedy = "the log is right: `reconciler replay --verify` shows the rows, and how to remake them"
    return Finding("rows equal the log", "fail", f"{len(wrong)}: {some(wrong)}", remedy)


async def _all_rows(nc: Client) -> tuple[list[str], str]:
    async with Rebuild(await log_of(nc)) as rebuild:
        found = await compare(nc, rebuild, lambda _done: None)
    what = found.note or f"all {found.rows}, at position {found.checkpoint}"
    return [one.row for one in found.differences], what


async def _sampled_rows(nc: Client) -> tuple[list[str], str]:
    """Fold the histories of some shapes; a projector may write meanwhile, so look twice."""
    log_reader = await log_of(nc)
    names = list((await current_models(nc)).status)
    chosen = random.sample(names, min(SAMPLE, len(names)))
    wrong = await _wrong_of(nc, log_reader, chosen)
    if wrong:
        again = await _wrong_of(nc, log_reader, chosen)
        wrong = [row for row in wrong if row in again]
    return wrong, f"sampled {len(chosen)} of {len(names)} shapes (--full compares all)"


async def _wrong_of(nc: Client, reader: JetStreamShapeLog, names: Sequence[str]) -> list[str]:
    store = JetStreamRows(nc)
    wrong: list[str] = []
    for name in names:
        key = ShapeKey.parse(name)
        wanted = (status_name(key), ownership_name(key))
        live = dict(await store.get([*wanted, CHECKPOINT]))
        if CHECKPOINT not in live:
            return []
        checkpoint = decode_checkpoint(live.pop(CHECKPOINT)).position
        history = await reader.history(key)
        models = models_of([stored for stored in history if stored.position <= checkpoint])
        rebuilt = {row: payload for row, payload in models.rows() if row in wanted}
        wrong += [one.row for one in differences(rebuilt, live, checkpoint)]
    return wrong
