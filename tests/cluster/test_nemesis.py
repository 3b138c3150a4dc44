"""Fault 4: nodes and roles die and hang while work is in progress; each test prints the gap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from infra.bus.streams import INTAKE, LOG
from reconciler.wiring import Role
from tests.cluster.servers import NODES, EmbeddedCluster
from tests.cluster.story import Story, running_story

COUNT = 2_000
MAX_GAP_SECONDS = 15.0
SECOND_COUNT = 500
ROLES: Sequence[Role] = (
    *("decider", "decider"),
    *("worker", "worker", "worker", "worker"),
    "observer",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_leaders_and_roles_die_and_hang_and_nothing_is_lost_or_duplicated(
    cluster: EmbeddedCluster, api_url: str, logs: Path
) -> None:
    async with running_story(cluster, ROLES, api_url, logs) as story:
        await _hang_and_kill_roles_and_the_log_leader(story)
        await story.until_replicated()  # or the next one to die takes the majority with it
        await _kill_the_intake_leader(story)
        print(f"\nleaders killed: at most {story.longest_gap:.1f} s without a converged resource")
        await story.assert_nothing_lost_or_duplicated()
        assert story.roles.exits == []


async def _hang_and_kill_roles_and_the_log_leader(story: Story) -> None:
    """Paused processes resume where they were, long after others have done their work."""
    deciders, workers = story.roles.of("decider"), story.roles.of("worker")
    declaring = asyncio.create_task(story.declare("Red", COUNT))
    await story.until_converged(1, COUNT // 20)
    paused_processes = [deciders[0], workers[0]]
    for each in paused_processes:
        each.pause()
    dead = await story.kill_leader(LOG)
    assert len(story.converged[1]) < COUNT
    story.roles.restart(workers[1])
    await story.until_converged(1, COUNT // 4)
    await story.cluster.start_node(dead)
    story.roles.restart(deciders[1])
    await declaring
    await story.until_converged(1, COUNT)
    for each in paused_processes:
        each.resume()


async def _kill_the_intake_leader(story: Story) -> None:
    declaring = asyncio.create_task(story.declare("Blue", SECOND_COUNT))
    await story.until_converged(2, SECOND_COUNT // 20)
    dead = await story.kill_leader(INTAKE)
    assert len(story.converged[2]) < SECOND_COUNT
    await declaring
    await story.until_converged(2, SECOND_COUNT)
    await story.cluster.start_node(dead)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_all_nodes_are_restarted_one_by_one_and_no_role_gives_up(
    cluster: EmbeddedCluster, api_url: str, logs: Path
) -> None:
    roles: Sequence[Role] = ("decider", "worker", "observer", "projector")
    async with running_story(cluster, roles, api_url, logs) as story:
        for index in range(NODES):
            await cluster.nodes[index].stop()
            await story.declare(("Red", "Blue", "Green")[index], 100)
            await story.until_converged(index + 1, 50)
            await cluster.start_node(index)
            await story.until_converged(index + 1, 100)
            await story.until_replicated()
        print(f"\nrolling restart: at most {story.longest_gap:.1f} s without a converged resource")
        await story.assert_nothing_lost_or_duplicated()
        assert story.longest_gap < MAX_GAP_SECONDS
        assert story.roles.exits == []
