"""Compare stored rows with the rows that the log gives, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from nats.aio.client import Client

from infra.bus.rows import JetStreamRows
from projections.read_models import CHECKPOINT, SCHEMA, read_checkpoint
from reconciler.cli.folded_log import log_of
from reconciler.sdk.log_replay import LogReplay
from reconciler.sdk.timeline import Progress

_LOOKS = 5
"""Number of comparisons. A projector may write meanwhile, so only a repeated difference counts."""


class Difference(msgspec.Struct, frozen=True, rename="camel"):
    """A stored row that differs from the log."""

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
    """Replay the log up to the checkpoint of the stored rows, and compare all of them."""
    comparison = await _look(nc, replay, progress)
    for _ in range(_LOOKS):
        previous = comparison.differences
        if previous:
            comparison = await _look(nc, replay, progress)
        if comparison.differences == previous:
            break
    return comparison


async def _look(nc: Client, replay: LogReplay, progress: Progress) -> Comparison:
    rows = await JetStreamRows(nc).load()
    if CHECKPOINT not in rows:
        log = await log_of(nc)
        is_empty = await log.last_position() == 0
        note = "the log is empty" if is_empty else "no projector has stored rows yet"
        return Comparison(0, len(rows), [], note)
    checkpoint = read_checkpoint(rows[CHECKPOINT])
    if checkpoint is None:
        live = rows[CHECKPOINT].decode(errors="replace")
        return Comparison(0, len(rows), [Difference(CHECKPOINT, "different", live=live)])
    if checkpoint.schema != SCHEMA:
        note = (
            f"the rows have schema {checkpoint.schema}; the next projector writes schema {SCHEMA}"
        )
        return Comparison(checkpoint.position, len(rows), [], note)
    if not checkpoint.is_whole:
        note = "a projector has not finished writing all rows; it or the next one completes them"
        return Comparison(checkpoint.position, len(rows), [], note)
    await replay.advance(checkpoint.position, progress)
    rows_differing = differences(dict(replay.models.rows()), rows)
    return Comparison(checkpoint.position, len(rows), rows_differing)


def differences(rebuilt: Mapping[str, bytes], live: Mapping[str, bytes]) -> list[Difference]:
    """Compare the rows at one position."""
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
