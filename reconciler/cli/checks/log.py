"""Check the log's content: damage, ownership, holds, dead letters, and the stored rows."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from nats.aio.client import Client

from events.epochs import is_restored
from events.excerpt import list_first
from events.hold import Hold, hold_of
from events.names import ResourceKey
from events.provider_config import is_config
from events.wording import plural
from infra.bus.dead_letters import read_discarded, read_letters
from infra.bus.rows import JetStreamRows
from infra.bus.streams import find_log
from projections.read_models import CHECKPOINT, read_checkpoint, rebuild, status_name
from projections.status import StatusRow
from reconciler.cli.checks.finding import Finding
from reconciler.cli.dead_letter_list import discarded_text
from reconciler.cli.folded_log import replay_from_start
from reconciler.cli.row_comparison import compare, differences
from reconciler.sdk.dead_letters import collect, filter_letters
from reconciler.sdk.history import History
from reconciler.sdk.log_replay import LogReplay

SAMPLE_SIZE = 50
_MAX_DEAD_LETTERS = 20_000
_CHECKPOINT_TIMEOUT_SECONDS = 3.0
_POLL_SECONDS = 0.2
_DISCARDED_WARNING_PERIOD = timedelta(days=7)
_POSSIBLE_LOSS_REASONS = frozenset(
    {
        ("Disputed", "LabelNotInLog"),
        ("Disputed", "OwnedByAnother"),  # the log may lack the events of that owner
        ("Disputed", "OwnershipNotInLog"),
        ("Conflict", "AlreadyExists"),
        ("Held", Hold.DELETION_GUARD),
        ("Held", Hold.LOSS_GUARD),
    }
)
_EXPECTED_WITHOUT_OBJECT = ("Converged", "Unowned", "Drifted", "Paused")


def check_damage(replay: LogReplay) -> Finding:
    """Report damage of the log."""
    places = [f"{damage.problem}: {damage}" for damage in replay.damage]
    if not places:
        part = f" since position {replay.since} (--full reads all)" if replay.since else ""
        return Finding(
            "log", "ok", f"{plural(replay.events, 'event')} read, none missing or changed{part}"
        )
    remedy = (
        "Keep all streams: they may contain the lost events. Run the newest release that has "
        "written to this log, or restore the log from a backup. Until then, Reconciler holds the "
        "damaged resources, or does not start any roles if lost events may belong to other "
        'resources. See "When the log is damaged" in docs/how-to/back-up-and-restore.md.'
    )
    text = f"damaged in {plural(len(places), 'place')}: {list_first(places)}"
    return Finding("log", "fail", text, remedy)


async def check_restore(nc: Client, rows: Iterable[StatusRow]) -> list[Finding]:
    """Report the last restore, and the resources that lost events may affect."""
    identity = await find_log(nc)
    if not is_restored(identity.epoch):
        return []
    as_of = f" made at {identity.restored_as_of}" if identity.restored_as_of else ""
    origin = f"from a backup{as_of} (epoch {identity.epoch})"
    waiting = [
        _format_row(row) for row in rows if (row.outcome, row.reason) in _POSSIBLE_LOSS_REASONS
    ]
    if not waiting:
        return [Finding("restored", "ok", origin)]
    remedy = (
        "The log may lack events that are newer than the backup. If you created the objects after "
        "it, declare them with spec.policy.adoption: Adopt. If you withdrew resources after it, "
        'withdraw them again before you approve anything. See "What a restore cannot bring back" '
        "in docs/how-to/back-up-and-restore.md."
    )
    text = f"{origin}; {plural(len(waiting), 'resource')} may be affected: {list_first(waiting)}"
    return [Finding("restored", "warn", text, remedy)]


def check_disputes(rows: Iterable[StatusRow]) -> Finding:
    """Report resources with disputed ownership, whose objects are never deleted."""
    disputed = [_format_row(row) for row in rows if row.outcome == "Disputed"]
    if not disputed:
        return Finding("disputed", "ok", "none")
    remedy = (
        "Read the message of each resource with `reconciler describe RESOURCE`: the evidence that "
        "contradicts the log, such as an owner label, and the remedy. Until you apply it, "
        "Reconciler does not change the objects of these resources."
    )
    return Finding("disputed", "warn", f"{len(disputed)}: {list_first(disputed)}", remedy)


def check_holds(rows: Iterable[StatusRow]) -> Finding:
    """Report held resources by reason."""
    held = [row for row in rows if row.outcome == "Held"]
    if not held:
        return Finding("held", "ok", "none")
    reasons = Counter(row.reason for row in held)
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    first = ", ".join(
        str(next(row.key for row in held if row.reason == reason)) for reason in reasons
    )
    holds = [hold for hold in map(hold_of, ["Held"] * len(reasons), reasons) if hold is not None]
    remedies = "".join(f" {hold}: {hold.remedy}." for hold in holds)
    remedy = f"List them with `reconciler get -A --outcome Held`.{remedies}"
    return Finding("held", "warn", f"{len(held)} ({counts}), for example {first}", remedy)


def check_ownership(rows: Iterable[StatusRow]) -> list[Finding]:
    """Report resources that are owned but not declared, or declared but not owned."""
    # A kind without an API, such as ShapeRef, owns nothing.
    external = [row for row in rows if row.provider_config]
    return [_check_undeclared(external), _check_unowned(external)]


def _check_undeclared(rows: Sequence[StatusRow]) -> Finding:
    undeclared = [row for row in rows if row.owned and not row.declared]
    if not undeclared:
        return Finding("owned, not declared", "ok", "none")
    stuck = [_format_row(row) for row in undeclared if not row.action_id and row.retry_at is None]
    if not stuck:
        return Finding("owned, not declared", "ok", f"{len(undeclared)}, all in progress")
    remedy = (
        "Fix the cause that `reconciler describe RESOURCE` shows, or read the API with"
        " `reconciler reconcile RESOURCE`."
    )
    return Finding("owned, not declared", "warn", f"{len(stuck)}: {list_first(stuck)}", remedy)


def _check_unowned(rows: Sequence[StatusRow]) -> Finding:
    unowned = [
        _format_row(row)
        for row in rows
        if row.declared and not row.owned and row.outcome not in _EXPECTED_WITHOUT_OBJECT
    ]
    if not unowned:
        return Finding("declared, not owned", "ok", "none")
    remedy = "Fix the cause that `reconciler describe RESOURCE` shows."
    return Finding("declared, not owned", "warn", f"{len(unowned)}: {list_first(unowned)}", remedy)


def check_provider_configs(rows: Iterable[StatusRow]) -> Finding:
    """Report resources whose ProviderConfig is not declared."""
    rows = list(rows)
    declared = {row.name for row in rows if is_config(row.key) and row.declared}
    unconfigured = [
        f"{row.key} ({row.provider_config})"
        for row in rows
        if row.provider_config
        and (row.declared or row.owned or row.action_id)
        and row.provider_config not in declared
    ]
    if not unconfigured:
        return Finding("no ProviderConfig", "ok", "none")
    remedy = (
        "Declare the ProviderConfig again. Until then, Reconciler neither reads nor changes the "
        "objects of these resources."
    )
    return Finding(
        "no ProviderConfig", "warn", f"{len(unconfigured)}: {list_first(unconfigured)}", remedy
    )


def _format_row(row: StatusRow) -> str:
    return f"{row.key} ({row.outcome or 'Pending'}{f', {row.reason}' if row.reason else ''})"


async def check_dead_letters(nc: Client) -> Finding:
    """Count the open dead letters by stage, and show the oldest and the newest."""
    stored = await read_letters(nc, limit=_MAX_DEAD_LETTERS)
    letters = filter_letters(collect(stored.letters, stored.handled))
    if not letters:
        return Finding("dead letters", "ok", "none open")
    stages = Counter(each.record.stage for each in letters)
    counts = ", ".join(f"{count} {stage}" for stage, count in stages.most_common())
    more = "at least " if stored.more else ""
    oldest, newest = letters[0].record, letters[-1].record
    text = (
        f"{more}{len(letters)} open ({counts}); oldest from {oldest.at:%Y-%m-%dT%H:%M:%SZ}; newest "
        f"from {newest.at:%Y-%m-%dT%H:%M:%SZ}: {newest.reason[:120]}"
    )
    remedy = (
        "Read them with `reconciler deadletters list`. Remove the cause, and then retry them with "
        "`reconciler deadletters retry`, or `dismiss` those that need no action."
    )
    return Finding("dead letters", "warn", text, remedy)


async def check_discarded(nc: Client) -> Finding:
    """Report messages that were discarded without a dead letter, because of a quota."""
    counts = await read_discarded(nc)
    if not counts:
        return Finding(
            "discarded", "ok", "none: every message that was not processed is a dead letter"
        )
    last = max(each.last_at for each in counts)
    text = discarded_text(counts)
    if datetime.now(UTC) - last > _DISCARDED_WARNING_PERIOD:
        return Finding(
            "discarded", "ok", f"{text}; none in the last {_DISCARDED_WARNING_PERIOD.days} days"
        )
    remedy = (
        "Stop the publisher, or correct its messages. At the quota stage, too many messages from a "
        "namespace were waiting: publish more slowly. Each namespace may use at most a quarter of "
        "the space for dead letters (`reconciler deadletters list`). To make room, see "
        '"Handle dead letters" in docs/how-to/operate.md. This warning disappears '
        f"{_DISCARDED_WARNING_PERIOD.days} days after the last discarded message."
    )
    return Finding("discarded", "warn", text, remedy)


async def _read_stored_checkpoint(nc: Client) -> bytes:
    """Return the rows' checkpoint, waiting for a projector that has just started."""
    rows, deadline = JetStreamRows(nc), time.monotonic() + _CHECKPOINT_TIMEOUT_SECONDS
    while True:
        payload, _ = await rows.checkpoint()
        if read_checkpoint(payload) is not None or time.monotonic() >= deadline:
            return payload
        await asyncio.sleep(_POLL_SECONDS)


async def check_rows(nc: Client, replay: LogReplay, *, full: bool) -> Finding:
    """Compare stored rows with the log: all rows if ``full``, else a sample."""
    if replay.damage:
        text = "not compared, because the log is damaged"
        return Finding("stored rows", "warn", text, "See the `log` check.")
    payload = await _read_stored_checkpoint(nc) if replay.position else b""
    if replay.position and read_checkpoint(payload) is None:
        text = (
            "another client has overwritten their checkpoint" if payload else "no rows are stored"
        )
        remedy = "Start a projector, or restart it. It then rebuilds the rows from the log."
        return Finding("stored rows", "fail", text, remedy)
    wrong, text = await (_compare_all_rows(nc) if full else _compare_sampled_rows(nc, replay))
    if not wrong:
        return Finding("stored rows", "ok", text)
    remedy = (
        "The log is correct. If the server's disk is full (see the `server health` check), "
        "free space and restart the server first: it may have stored only some of the rows. "
        "`reconciler replay --verify` shows the rows and how to rebuild them."
    )
    text = f"{plural(len(wrong), 'row differs', 'rows differ')} from the log: {list_first(wrong)}"
    return Finding("stored rows", "fail", text, remedy)


async def _compare_all_rows(nc: Client) -> tuple[list[str], str]:
    async with replay_from_start(nc) as replay:
        comparison = await compare(nc, replay, lambda _done: None)
    text = (
        comparison.note
        or f"all {comparison.rows} rows match the log at position {comparison.checkpoint}"
    )
    return [difference.row for difference in comparison.differences], text


async def _compare_sampled_rows(nc: Client, replay: LogReplay) -> tuple[list[str], str]:
    """Compare a sample of rows; compare again if they differ, as a projector may be writing."""
    names = list(replay.models.status)
    sample = random.sample(names, min(SAMPLE_SIZE, len(names)))
    wrong = await _find_wrong_rows(nc, sample)
    if wrong:
        repeated = await _find_wrong_rows(nc, sample)
        wrong = [row for row in wrong if row in repeated]
    return (
        wrong,
        f"the rows of {len(sample)} of {len(names)} resources match the log (--full compares all)",
    )


async def _find_wrong_rows(nc: Client, names: Sequence[str]) -> list[str]:
    store, reader = JetStreamRows(nc), History(nc)
    wrong: list[str] = []
    for name in names:
        key = ResourceKey.parse(name)
        row_name = status_name(key)
        live = dict(await store.get([row_name, CHECKPOINT]))
        stored = read_checkpoint(live.pop(CHECKPOINT, b""))
        if stored is None:
            return []
        past = await reader.get(key)
        models = rebuild([each for each in past.events if each.position <= stored.position])
        rebuilt = {row: payload for row, payload in models.rows() if row == row_name}
        wrong += [difference.row for difference in differences(rebuilt, live)]
    return wrong
