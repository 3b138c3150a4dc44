"""Compare stored rows, byte for byte, with rows rebuilt from the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from nats.aio.client import Client

from infra.bus.event_log import open_log
from infra.bus.rows import JetStreamRows
from projections.read_models import CHECKPOINT, SCHEMA, read_checkpoint
from reconciler.sdk.log_replay import LogReplay
from reconciler.sdk.timeline import Progress

_MAX_ATTEMPTS = 5
"""A projector may write between comparisons, so only a repeated difference counts."""


class Difference(msgspec.Struct, frozen=True, rename="camel"):
    """A stored row that differs from the row rebuilt from the log."""

    row: str
    problem: Literal["missing", "unexpected", "different"]
    rebuilt: str = ""
    live: str = ""


class Comparison(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a comparison at the checkpoint of the stored rows."""

    checkpoint: int
    rows: int
    differences: list[Difference]
    note: str = ""


async def compare(nc: Client, replay: LogReplay, progress: Progress) -> Comparison:
    """Replay the log up to the checkpoint of the stored rows, and compare all rows."""
    comparison = await _compare_once(nc, replay, progress)
    for _ in range(_MAX_ATTEMPTS):
        previous = comparison.differences
        if previous:
            comparison = await _compare_once(nc, replay, progress)
        if comparison.differences == previous:
            break
    return comparison


async def _compare_once(nc: Client, replay: LogReplay, progress: Progress) -> Comparison:
    rows = await JetStreamRows(nc).load()
    if CHECKPOINT not in rows:
        log = await open_log(nc)
        is_empty = await log.last_position() == 0
        note = "the log is empty" if is_empty else "no projector has stored rows yet"
        return Comparison(0, len(rows), [], note)
    checkpoint = read_checkpoint(rows[CHECKPOINT])
    if checkpoint is None:
        live = rows[CHECKPOINT].decode(errors="replace")
        return Comparison(0, len(rows), [Difference(CHECKPOINT, "different", live=live)])
    if checkpoint.schema != SCHEMA:
        note = (
            f"the rows have schema {checkpoint.schema}; the next projector will write "
            f"schema {SCHEMA}"
        )
        return Comparison(checkpoint.position, len(rows), [], note)
    if not checkpoint.is_whole:
        note = "a projector has not finished writing the rows; it or the next projector will do so"
        return Comparison(checkpoint.position, len(rows), [], note)
    await replay.advance(checkpoint.position, progress)
    row_differences = differences(dict(replay.models.rows()), rows)
    return Comparison(checkpoint.position, len(rows), row_differences)


def differences(rebuilt: Mapping[str, bytes], live: Mapping[str, bytes]) -> list[Difference]:
    """Compare rebuilt and stored rows at one log position."""
    return [
        _difference(name, rebuilt.get(name), live.get(name))
        for name in sorted(rebuilt.keys() | live.keys())
        if rebuilt.get(name) != live.get(name)
    ]


def _difference(name: str, rebuilt: bytes | None, live: bytes | None) -> Difference:
    if live is None:
        return Difference(name, "missing", rebuilt=(rebuilt or b"").decode(errors="replace"))
    if rebuilt is None:
        return Difference(name, "unexpected", live=live.decode(errors="replace"))
    return Difference(
        name, "different", rebuilt.decode(errors="replace"), live.decode(errors="replace")
    )
