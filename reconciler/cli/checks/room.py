"""Checks whether there is room left: in the streams that must not drop anything, on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from nats.aio.client import Client

from infra.bus.streams import DEADLETTERS, INTAKE, LOG, ROWS
from infra.jetstream.reads import stream_state
from reconciler.cli.checks.finding import Finding, Verdict, some
from reconciler.cli.connection import DATA_FOLDER, read_up_file

_KEPT = (LOG, INTAKE, DEADLETTERS, ROWS)
_FULL_PERCENT = 90
_LONG_MESSAGE_BYTES = 4_096
_LITTLE_BYTES = 1024**3
_TOO_LITTLE_BYTES = 64 * 1024**2


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
    """Return which streams are full or nearly full, by the bytes that each has and may have."""
    full = [name for name, (used, most) in limited.items() if most - used < _LONG_MESSAGE_BYTES]
    nearly = [name for name, (used, most) in limited.items() if used * 100 >= most * _FULL_PERCENT]
    if not full and not nearly:
        return Finding("stream limits", "ok", "no stream is nearly full")
    verdict: Verdict = "fail" if full else "warn"
    remedy = (
        "Raise the limit: `nats stream edit STREAM --max-bytes=BYTES`. A full stream refuses new "
        "messages, and keeps the stored ones."
    )
    return Finding("stream limits", verdict, f"full or nearly full: {some(full or nearly)}", remedy)


def check_own_disk() -> list[Finding]:
    """Check the disk of the server that a running `up` has started in this folder."""
    return [] if read_up_file(DATA_FOLDER) is None else [check_disk(DATA_FOLDER)]


def check_disk(folder: Path) -> Finding:
    """Check how much space a server's disk has left."""
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e6:.0f} MB free in {folder}"
    if free >= _LITTLE_BYTES:
        return Finding("disk", "ok", text)
    verdict: Verdict = "fail" if free < _TOO_LITTLE_BYTES else "warn"
    remedy = (
        "Free disk space. A NATS server on a full disk stops responding. `reconciler up` then "
        "restarts it, and all acknowledged messages are kept."
    )
    return Finding("disk", verdict, text, remedy)
