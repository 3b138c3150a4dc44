"""`doctor` names a cluster's lost server in time, and reports no other failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from reconciler.cli.exits import Exit
from reconciler.wiring import Role
from tests.cli.runner import Cli, CommandResult
from tests.cluster.one_server import Fault, cut_off, hung, stopped
from tests.cluster.routes import Routes
from tests.cluster.servers import NODES, node_name
from tests.cluster.story import Story, running_story, until

ROLES: Sequence[Role] = ("decider", "worker", "observer", "projector")
MAX_SECONDS = 30.0
"""From the fault to the end of the first `doctor` that names the server, on a busy machine."""

UNPROVEN = {"bus", "replicas", "streams", "intake", "actions"}
"""Checks that may fail until the cluster has elected its leaders, and only until then."""


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_doctor_names_only_the_lost_server(
    routes: Routes, api_url: str, logs: Path, tmp_path: Path
) -> None:
    cluster, cli = routes.cluster, Cli(tmp_path, routes.cluster.url)
    async with running_story(cluster, ROLES, api_url, logs) as story:
        await story.until_replicated()
        index = await story.find_server("follower")
        await _assert_named(story, cli, index, cut_off(routes, index))
        index = await story.find_server("leader")
        await _assert_named(story, cli, index, hung(cluster, index))
        index = await story.find_server("leader")
        await _assert_named(story, cli, index, stopped(cluster, index))


async def _assert_named(story: Story, cli: Cli, index: int, fault: Fault) -> None:
    """Let a server fail, and run `doctor` until it names that server."""
    began = time.monotonic()
    await fault.begin()
    result: CommandResult | None = None

    async def is_named() -> bool:
        nonlocal result
        result = await asyncio.to_thread(cli.run, "doctor", "-o", "json")
        wrong = _verdicts(result)
        assert {check for check, verdict in wrong.items() if verdict == "fail"} <= UNPROVEN, result
        assert not any(node_name(each) in result.out for each in range(NODES) if each != index), (
            result
        )
        return wrong.get("replicas") == "warn"

    await until(is_named, lambda: f"{node_name(index)} is not named: {result}")
    seconds = time.monotonic() - began
    assert result is not None
    strict = await asyncio.to_thread(cli.run, "doctor", "--strict", "-o", "json")
    await fault.end()
    print(f"\n{fault.name}: `doctor` named the server after {seconds:.1f} s")
    assert node_name(index) in result.out
    assert (result.status, strict.status) == (Exit.OK, Exit.FAILED), (result, strict)
    assert seconds < MAX_SECONDS, result
    await story.until_replicated()


def _verdicts(result: CommandResult) -> dict[str, str]:
    return {each["check"]: each["status"] for each in result.json if each["status"] != "ok"}
