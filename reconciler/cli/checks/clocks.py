"""Check the clocks of this machine, and of the machines where the roles run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from nats.aio.client import Client

from events.excerpt import some
from events.log import SOURCE
from events.subjects import parse_stored_intake
from infra.bus.bus_clock import MAX_CLOCK_DIFFERENCE, clock_of, read_clock
from infra.bus.streams import INTAKE, LOG, RESTORED_END_METADATA
from infra.jetstream.errors import BusDeniedError
from infra.jetstream.reads import StoredMessage, read_subject, stream_state
from reconciler.cli.checks.finding import Finding, Verdict

_WARN_SECONDS = 1.0
_NEWEST = 50  # number of messages of each stream
_RECENT = timedelta(minutes=10)
_DECIDER: Final = "a decider"
_ROLES: Final = {
    "result": "worker",
    "observed": "observer",
    "reference": "observer",
    "timer": "observer",
}


class _Written(msgspec.Struct):
    time: datetime
    source: str = ""


_decoder = msgspec.json.Decoder(_Written)


def check_clock(server_time: str, asked_at: float, answered_at: float) -> Finding:
    """Compare the server's clock with the local one, allowing for the duration of the request."""
    if not server_time:
        return Finding(
            "clock",
            "warn",
            "the server does not report its time",
            "Compare the clocks of this machine and of the server.",
        )
    clock = clock_of(server_time, asked_at, answered_at)
    verdict: Verdict = "ok"
    if clock.difference.total_seconds() > _WARN_SECONDS:
        verdict = "fail" if clock.difference > MAX_CLOCK_DIFFERENCE else "warn"
    remedy = (
        "" if verdict == "ok" else "Synchronize the clocks (NTP). Timers use the server's clock."
    )
    ahead = round(clock.ahead.total_seconds(), 3) + 0.0
    return Finding("clock", verdict, f"the server's clock differs by {ahead:+.3f} s", remedy)


async def check_role_clocks(nc: Client) -> list[Finding]:
    """Compare the times in recent messages of the roles with the bus's times."""
    oldest = (await read_clock(nc)).now() - _RECENT
    clocks: dict[str, list[timedelta]] = defaultdict(list)
    for stream in (LOG, INTAKE):
        try:
            state = await stream_state(nc, stream)
            first = max(state.last_seq - _NEWEST, _restored_end(state.config)) + 1
            messages = await read_subject(nc, stream, ">", start_seq=first)
        except BusDeniedError:
            if stream == LOG:
                raise
            continue  # an auditor can only read the log, which has the deciders' times
        for role, ahead in _differences(stream, messages, oldest):
            clocks[role].append(ahead)
    wrong = {
        role: error
        for role, ahead in clocks.items()
        if abs(error := _error(role, ahead)) > MAX_CLOCK_DIFFERENCE
    }
    if not wrong:
        many = f"the clocks of {len(clocks)} processes agree"
        who = "the clock of one process agrees" if len(clocks) == 1 else many
        who += " with the bus's clock"
        minutes = _RECENT.total_seconds() / 60
        nothing = f"no role has written anything in the last {minutes:.0f} minutes"
        return [Finding("role clocks", "ok", who if clocks else nothing)]
    texts = [f"{role} ({_shown(ahead)})" for role, ahead in wrong.items()]
    remedy = (
        "Synchronize the clocks of these machines (NTP). Until then, the times in the log are "
        "wrong, and retries wait for the sweeper of an observer."
    )
    if any(ahead < timedelta(0) for ahead in wrong.values()):
        remedy += (
            " If the bus accepted no writes for that time, for example because its disk was full, "
            "the clock may be correct, and this check passes ten minutes later."
        )
    return [Finding("role clocks", "fail", f"differ from the bus's clock: {some(texts)}", remedy)]


def ahead_of_bus(message: StoredMessage) -> timedelta:
    """Return the difference between the clock that wrote a message and the bus's clock.

    Raises:
        ValueError: the message is not a CloudEvent with a time.
    """
    return _decoder.decode(message.payload).time.astimezone(UTC) - message.time


def _error(role: str, ahead: list[timedelta]) -> timedelta:
    """Return the error of a role's clock, from the differences of its messages.

    A message that is stored late looks like a slow clock. So the message that is furthest ahead
    shows the clock of one process. Messages of several deciders cannot be distinguished.
    """
    return max(ahead, key=abs) if role == _DECIDER else max(ahead)


def _restored_end(config: Mapping[str, Any]) -> int:
    """Return the last position that a restore wrote, or 0.

    Up to it, events have the times of their decisions, and the bus's times are those of the
    restore.
    """
    metadata: Mapping[str, Any] = config.get("metadata") or {}
    end = str(metadata.get(RESTORED_END_METADATA, ""))
    return int(end) if end.isdecimal() else 0


def _differences(
    stream: str, messages: list[StoredMessage], oldest: datetime
) -> Iterator[tuple[str, timedelta]]:
    """Yield each role, and how far its clock was ahead of the bus's at a message."""
    for message in messages:
        if message.time < oldest:
            continue
        try:
            ahead = ahead_of_bus(message)
            if stream == LOG:
                yield _DECIDER, ahead
                continue
            role = _ROLES.get(parse_stored_intake(message.subject)[0])
            source = _decoder.decode(message.payload).source
        except (ValueError, RecursionError):
            continue  # damage, or a message that becomes a dead letter
        # A timer message was written when the timer was set.
        if role is not None and source != SOURCE:
            yield f"{role} {source}", ahead


def _shown(ahead: timedelta) -> str:
    seconds = ahead.total_seconds()
    if seconds > 0:
        return f"{seconds:.0f} s ahead"
    return f"{-seconds:.0f} s behind, or its messages were stored with a delay"
