"""Check the free space in streams that reject messages when full, and on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from nats.aio.client import Client

from events.excerpt import list_first
from infra.bus.streams import DEADLETTERS, INTAKE, LOG, ROWS
from infra.jetstream.reads import StreamState, stream_state
from reconciler.cli.checks.finding import Finding, Verdict
from reconciler.cli.connection import DATA_DIRECTORY, read_up_file

_REJECTING_STREAMS = (LOG, INTAKE, DEADLETTERS, ROWS)
_FULL_PERCENT = 90
LONG_MESSAGE_BYTES = 4_096
_WARN_BYTES = 1024**3
_FAIL_BYTES = 64 * 1024**2


async def check_stream_limits(nc: Client) -> list[Finding]:
    """Check the limits of the streams that reject messages when full."""
    return [
        judge_stream_limits({name: await stream_state(nc, name) for name in _REJECTING_STREAMS})
    ]


def judge_stream_limits(streams: Mapping[str, StreamState]) -> Finding:
    """Report streams that are full or nearly full, by bytes or messages."""
    full: list[str] = []
    nearly_full: list[str] = []
    for name, state in streams.items():
        for used, limit, min_free in (
            (state.bytes, int(state.config.get("max_bytes", -1)), LONG_MESSAGE_BYTES),
            (state.messages, int(state.config.get("max_msgs", -1)), 1),
        ):
            if limit > 0 and limit - used < min_free:
                full.append(name)
            elif limit > 0 and used * 100 >= limit * _FULL_PERCENT:
                nearly_full.append(name)
    if not full and not nearly_full:
        return Finding("stream limits", "ok", "no stream is nearly full")
    verdict: Verdict = "fail" if full else "warn"
    remedy = (
        "Raise the limit: `nats stream edit STREAM --max-bytes=BYTES`. `reconciler init` removes a "
        "limit on messages (max_msgs). A full stream refuses new messages, and keeps the stored "
        "ones."
    )
    return Finding(
        "stream limits", verdict, f"full or nearly full: {list_first(full or nearly_full)}", remedy
    )


def check_local_disk() -> list[Finding]:
    """Check the disk of the server that a running `up` started in this directory."""
    return [] if read_up_file(DATA_DIRECTORY) is None else [check_disk(DATA_DIRECTORY)]


def check_disk(directory: Path) -> Finding:
    """Check the free space on a server's disk."""
    free = shutil.disk_usage(directory).free
    text = f"{free / 1e6:.0f} MB free in {directory}"
    if free >= _WARN_BYTES:
        return Finding("disk", "ok", text)
    verdict: Verdict = "fail" if free < _FAIL_BYTES else "warn"
    remedy = (
        "Free disk space. A NATS server on a full disk stops responding. `reconciler up` then "
        "restarts it, and all acknowledged messages are kept."
    )
    return Finding("disk", verdict, text, remedy)
