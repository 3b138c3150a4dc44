"""Checks of what a cluster adds: copies of each stream, and leaders."""

from __future__ import annotations

from collections.abc import Sequence

from nats.aio.client import Client

from events.excerpt import some
from infra.bus.copies import Copies, copies
from reconciler.cli.checks.finding import Finding


async def check_copies(nc: Client) -> list[Finding]:
    """Check that every stream has a leader, and as many copies as it should."""
    return [judge_copies(await copies(nc))]


def judge_copies(found: Sequence[Copies]) -> Finding:
    """Return which streams have no leader, or copies that are away or not up to date."""
    wanted = min((each.wanted for each in found), default=1)
    leaderless = [each.stream for each in found if not each.leader]
    if leaderless:
        remedy = (
            "Wait 10 seconds for an election, and run `reconciler doctor` again. If the leader is "
            "still missing, start the servers that are down: more than half must run and reach "
            "each other."
        )
        return Finding("replicas", "fail", f"no leader: {some(leaderless)}", remedy)
    behind = [f"{each.stream} on {', '.join(each.behind)}" for each in found if each.behind]
    if behind:
        remedy = (
            "Start the servers that are down, and restart those that do not respond. One more "
            "failure may stop the bus or lose data."
        )
        return Finding(
            "replicas", "warn", f"replicas are missing or outdated: {some(behind)}", remedy
        )
    if wanted == 1:
        return Finding(
            "replicas", "ok", "one replica of each stream; back up the log (`reconciler backup`)"
        )
    return Finding("replicas", "ok", f"{wanted} replicas of each stream, all up to date")
