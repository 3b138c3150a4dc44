"""Check the clocks of this machine and of the machines that run the roles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from nats.aio.client import Client

from events.excerpt import list_first
from events.log import SOURCE
from events.subjects import parse_stored_intake
from infra.bus.bus_clock import MAX_CLOCK_DIFFERENCE, compute_clock, read_clock
from infra.bus.streams import INTAKE, LOG, RESTORED_END_METADATA
from infra.jetstream.errors import BusDeniedError
from infra.jetstream.reads import StoredMessage, read_subject, stream_state
from reconciler.cli.checks.finding import Finding, Verdict

_WARN_SECONDS = 1.0
_NEWEST_MESSAGES = 50  # messages per stream
_RECENT_PERIOD = timedelta(minutes=10)
_DECIDER: Final = "a decider"
_ROLES: Final = {
    "result": "worker",
    "observed": "observer",
    "reference": "observer",
    "timer": "observer",
}


class _MessageHeader(msgspec.Struct):
    time: datetime
    source: str = ""


_decoder = msgspec.json.Decoder(_MessageHeader)


def check_clock(server_time: str, requested_at: float, responded_at: float) -> Finding:
    """Compare the server's clock with the local one, allowing for the duration of the request."""
    if not server_time:
        return Finding(
            "clock",
            "warn",
            "the server does not report its time",
            "Compare the clocks of this machine and of the server.",
        )
    clock = compute_clock(server_time, requested_at, responded_at)
    verdict: Verdict = "ok"
    if clock.difference.total_seconds() > _WARN_SECONDS:
        verdict = "fail" if clock.difference > MAX_CLOCK_DIFFERENCE else "warn"
    remedy = (
        "" if verdict == "ok" else "Synchronize the clocks (NTP). Timers use the server's clock."
    )
    offset = round(clock.offset.total_seconds(), 3) + 0.0
    return Finding("clock", verdict, f"the server's clock differs by {offset:+.3f} s", remedy)


async def check_role_clocks(nc: Client) -> list[Finding]:
    """Compare the times that roles wrote into recent messages with the bus's times."""
    oldest = (await read_clock(nc)).now() - _RECENT_PERIOD
    clocks: dict[str, list[timedelta]] = defaultdict(list)
    for stream in (LOG, INTAKE):
        try:
            state = await stream_state(nc, stream)
            first = max(state.last_seq - _NEWEST_MESSAGES, _read_restored_end(state.config)) + 1
            messages = await read_subject(nc, stream, ">", start_seq=first)
        except BusDeniedError:
            if stream == LOG:
                raise
            continue  # an auditor can read only the log, which has the deciders' times
        for role, offset in _read_offsets(stream, messages, oldest):
            clocks[role].append(offset)
    wrong = {
        role: error
        for role, offsets in clocks.items()
        if abs(error := _clock_error(role, offsets)) > MAX_CLOCK_DIFFERENCE
    }
    if not wrong:
        plural_text = f"the clocks of {len(clocks)} processes agree"
        text = "the clock of one process agrees" if len(clocks) == 1 else plural_text
        text += " with the bus's clock"
        minutes = _RECENT_PERIOD.total_seconds() / 60
        idle_text = f"no role has written anything in the last {minutes:.0f} minutes"
        return [Finding("role clocks", "ok", text if clocks else idle_text)]
    texts = [f"{role} ({_format_offset(offset)})" for role, offset in wrong.items()]
    remedy = (
        "Synchronize the clocks of these machines (NTP). Until then, the times in the log are "
        "wrong, and retries wait for an observer's sweeper."
    )
    if any(offset < timedelta(0) for offset in wrong.values()):
        remedy += (
            " If the bus recently accepted no writes, for example because its disk was full, the "
            "clock may be correct; this check then passes after ten minutes."
        )
    return [
        Finding("role clocks", "fail", f"differ from the bus's clock: {list_first(texts)}", remedy)
    ]


def read_clock_offset(message: StoredMessage) -> timedelta:
    """Return the difference between the clock that wrote a message and the bus's clock.

    Raises:
        ValueError: the message is not a CloudEvent with a time.
    """
    return _decoder.decode(message.payload).time.astimezone(UTC) - message.time


def _clock_error(role: str, offsets: list[timedelta]) -> timedelta:
    """Return the error of a role's clock, computed from the offsets of its messages.

    A message that is stored late looks like a slow clock, so a process's message that is furthest
    ahead reflects its clock best. Messages from different deciders cannot be distinguished.
    """
    return max(offsets, key=abs) if role == _DECIDER else max(offsets)


def _read_restored_end(config: Mapping[str, Any]) -> int:
    """Return the last position that a restore wrote, or 0.

    Up to this position, the bus's times are those of the restore, not of the decisions.
    """
    metadata: Mapping[str, Any] = config.get("metadata") or {}
    end = str(metadata.get(RESTORED_END_METADATA, ""))
    return int(end) if end.isdecimal() else 0


def _read_offsets(
    stream: str, messages: list[StoredMessage], oldest: datetime
) -> Iterator[tuple[str, timedelta]]:
    """Yield each message's role, and how far its clock was ahead of the bus's."""
    for message in messages:
        if message.time < oldest:
            continue
        try:
            offset = read_clock_offset(message)
            if stream == LOG:
                yield _DECIDER, offset
                continue
            role = _ROLES.get(parse_stored_intake(message.subject)[0])
            source = _decoder.decode(message.payload).source
        except (ValueError, RecursionError):
            continue  # the message is damaged, or becomes a dead letter
        # A timer message carries the time at which the timer was set.
        if role is not None and source != SOURCE:
            yield f"{role} {source}", offset


def _format_offset(offset: timedelta) -> str:
    seconds = offset.total_seconds()
    if seconds > 0:
        return f"{seconds:.0f} s ahead"
    return f"{-seconds:.0f} s behind, or its messages were stored with a delay"
