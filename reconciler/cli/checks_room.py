"""Checks whether the streams that must not drop anything have room left."""

from __future__ import annotations

from collections.abc import Mapping

from nats.aio.client import Client

from infra.bus.streams import DEADLETTERS, INTAKE, ROWS, SHAPES
from infra.jetstream.reads import stream_state
from reconciler.cli.finding import Finding, Verdict, some

_KEPT = (SHAPES, INTAKE, DEADLETTERS, ROWS)
_FULL_PERCENT = 90
_LONG_MESSAGE_BYTES = 4_096


async def check_room_of_streams(nc: Client) -> list[Finding]:
    """Check how much of its limit each stream uses that refuses what does not fit."""
    limited: dict[str, tuple[int, int]] = {}
    for name in _KEPT:
        state = await stream_state(nc, name)
        limit = int(state.config.get("max_bytes", -1))
        if limit > 0:
            limited[name] = (state.bytes, limit)
    return [judge_room(limited)]


def judge_room(limited: Mapping[str, tuple[int, int]]) -> Finding:
    """Tell which streams are full or nearly full, by the bytes that each has and may have."""
    full = [name for name, (used, most) in limited.items() if most - used < _LONG_MESSAGE_BYTES]
    nearly = [name for name, (used, most) in limited.items() if used * 100 >= most * _FULL_PERCENT]
    if not full and not nearly:
        return Finding("room", "ok", "every stream has room for more")
    verdict: Verdict = "fail" if full else "warn"
    remedy = (
        "raise the limit: `nats stream edit <stream> --max-bytes=…`; a full stream refuses what "
        "comes, and loses nothing that it took"
    )
    return Finding("room", verdict, f"full or nearly full: {some(full or nearly)}", remedy)
