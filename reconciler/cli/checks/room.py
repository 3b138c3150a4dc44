"""Check the remaining room in streams that reject messages when full, and on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from nats.aio.client import Client

from events.excerpt import some
from infra.bus.streams import DEADLETTERS, INTAKE, LOG, ROWS
from infra.jetstream.reads import StreamState, stream_state
from reconciler.cli.checks.finding import Finding, Verdict
from reconciler.cli.connection import DATA_FOLDER, read_up_file

_KEPT = (LOG, INTAKE, DEADLETTERS, ROWS)
_FULL_PERCENT = 90
LONG_MESSAGE_BYTES = 4_096
_LITTLE_BYTES = 1024**3
_TOO_LITTLE_BYTES = 64 * 1024**2


async def check_room_of_streams(nc: Client) -> list[Finding]:
    """Check the use of the limits of streams that reject messages when full."""
    return [judge_room({name: await stream_state(nc, name) for name in _KEPT})]


def judge_room(streams: Mapping[str, StreamState]) -> Finding:
    """Report streams that are full or nearly full, by bytes or messages."""
    full: list[str] = []
    nearly: list[str] = []
    for name, state in streams.items():
        for used, limit, least in (
            (state.bytes, int(state.config.get("max_bytes", -1)), LONG_MESSAGE_BYTES),
            (state.messages, int(state.config.get("max_msgs", -1)), 1),
        ):
            if limit > 0 and limit - used < least:
                full.append(name)
            elif limit > 0 and used * 100 >= limit * _FULL_PERCENT:
                nearly.append(name)
    if not full and not nearly:
        return Finding("stream limits", "ok", "no stream is nearly full")
    verdict: Verdict = "fail" if full else "warn"
    remedy = (
        "Raise the limit: `nats stream edit STREAM --max-bytes=BYTES`. `reconciler init` removes a "
        "limit on messages (max_msgs). A full stream refuses new messages, and keeps the stored "
        "ones."
    )
    return Finding("stream limits", verdict, f"full or nearly full: {some(full or nearly)}", remedy)


def check_own_disk() -> list[Finding]:
    """Check the disk of the server that a running `up` has started in this directory."""
    return [] if read_up_file(DATA_FOLDER) is None else [check_disk(DATA_FOLDER)]


def check_disk(folder: Path) -> Finding:
    """Check the free space on a server's disk."""
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
