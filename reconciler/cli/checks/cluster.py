"""Check the replicas and the leader of each stream in a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from nats.aio.client import Client

from events.excerpt import list_first
from infra.bus.replicas import StreamReplicas, read_replicas
from reconciler.cli.checks.finding import Finding

_ELECTION_SECONDS: Final = 4.0
_PAUSE_SECONDS: Final = 0.5


async def check_stream_replicas(nc: Client) -> list[Finding]:
    """Check that every stream has a leader and all of its replicas.

    Wait a few seconds for an election, because `doctor` repeats the check only three times.
    """
    deadline = time.monotonic() + _ELECTION_SECONDS
    while True:
        streams = await read_replicas(nc)
        if all(each.leader for each in streams) or time.monotonic() > deadline:
            return [judge_replicas(streams)]
        await asyncio.sleep(_PAUSE_SECONDS)


def judge_replicas(streams: Sequence[StreamReplicas]) -> Finding:
    """Report streams without a leader, or with replicas that are offline or not up to date."""
    replicas = max((each.configured for each in streams), default=1)
    incomplete = [
        f"{each.stream} has {min(each.configured, each.present)} of {replicas}"
        for each in streams
        if min(each.configured, each.present) < replicas
    ]
    leaderless = [each.stream for each in streams if not each.leader]
    behind = [f"{each.stream} on {', '.join(each.behind)}" for each in streams if each.behind]
    outdated = f"replicas are missing or outdated: {list_first(behind)}"
    if leaderless:
        remedy = (
            "Wait 10 seconds for an election, and run `reconciler doctor` again. If the leader is "
            "still missing, start the servers that are down: more than half must be running and "
            "able to reach each other."
        )
        text = f"no leader: {list_first(leaderless)}" + (f"; {outdated}" if behind else "")
        return Finding("replicas", "fail", text, remedy)
    if behind:
        remedy = (
            "Start the servers that are down, and restart those that do not respond. If a server's "
            "disk is full, free space first. One more failure may stop the bus or cause data loss."
        )
        return Finding("replicas", "warn", outdated, remedy)
    if incomplete:
        remedy = (
            f"Run `reconciler init --replicas {replicas}` while all servers are "
            "running. If a server was removed from the cluster, add one. Until then, one failure "
            "may stop the bus or cause data loss."
        )
        return Finding("replicas", "warn", f"too few replicas: {list_first(incomplete)}", remedy)
    if replicas == 1:
        return Finding(
            "replicas", "ok", "one replica of each stream; back up the log (`reconciler backup`)"
        )
    return Finding("replicas", "ok", f"{replicas} replicas of each stream, all up to date")
