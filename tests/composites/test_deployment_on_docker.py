"""Scenario 37 on a real Engine, through the whole loop: the rollout of three replicas."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from events.intake import Withdrawn
from events.log import OutcomeRecorded
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import Retry, Scope
from infra.components.caddy import Caddy
from infra.providers.caddy.route import ROUTE
from infra.providers.deployment import DEPLOYMENT
from infra.providers.docker.container import CONTAINER
from reconciler.provider.kind import KindRegistry
from tests.caddy import Visitors
from tests.cli.runner import Cli
from tests.engines import TestEngine
from tests.scenarios.conftest import api_url
from tests.scenarios.harness import Human, World, api_config, every

__all__ = ["api_url"]

pytestmark = pytest.mark.dockerd

PAGE = Path(__file__).parents[2] / "docs" / "kinds" / "deployment.md"
APPLIED_BLOCK = r"<!-- applied by [^\n]*-->\n```yaml\n(.*?)```"


@pytest.fixture
def prefix(engine: TestEngine, unique: str) -> Iterator[str]:
    yield unique
    engine.admin.remove_all(unique)


@pytest.fixture
async def docked(
    tmp_path: Path, api_url: str, engine: TestEngine, prefix: str
) -> AsyncGenerator[World]:
    human = Human(api_url)
    async with World(tmp_path / "nats", human).open() as world:
        world.kinds = KindRegistry([CONTAINER, DEPLOYMENT, ROUTE])
        await world.start_reconciler()
        breaker = Retry(initial_seconds=0.2, max_seconds=1.0)
        await world.configure(
            api_config(
                engine.endpoint,
                provider="docker",
                resync=3600,
                least_resync_seconds=0.2,
                scope=Scope(prefix=prefix),
                retry=breaker,
            ),
            "docker",
        )
        await world.configure(
            api_config(
                world.server.url,
                provider="composition",
                resync=5,
                least_resync_seconds=0.2,
                consistency_grace_seconds=0.5,
                retry=breaker,
            ),
            "composition",
        )
        yield world
    await human.close()


def deployment(name: str, image: str, command: list[str], replicas: int = 3) -> Manifest:
    """Return the documented example with a local image and command."""
    (block,) = re.findall(APPLIED_BLOCK, PAGE.read_text(), re.DOTALL)
    config, example = [msgspec.convert(each, Manifest) for each in yaml.safe_load_all(block)]
    assert config.spec["provider"] == example.spec["providerConfigRef"]["name"] == "composition"
    template = example.spec["template"]
    its = {**template["spec"], "image": image, "command": command, "stopSeconds": 0}
    spec = {**example.spec, "replicas": replicas, "template": {**template, "spec": its}}
    return msgspec.structs.replace(example, metadata=Metadata(name), spec=spec)


async def wait_until_ready(world: World, key: ResourceKey, generation: int) -> None:
    async def is_ready() -> bool:
        row = await world.client.status(key)
        return (
            row is not None
            and (row.outcome, row.observed_generation) == ("Converged", generation)
            and row.not_ready is None
        )

    try:
        await world.until(is_ready, f"{key} is ready", seconds=60)
    except AssertionError:
        for row in await world.client.statuses(namespace=key.namespace):
            print(row.key, row.outcome, row.not_ready, row.since)
            for event in (await world.history(row.key))[-12:]:
                print("  ", event.time.time(), type(event.data).__name__, str(event.data)[:600])
        raise


@asynccontextmanager
async def count_running(engine: TestEngine, prefix: str) -> AsyncGenerator[list[int]]:
    """Count the running containers continuously; yield the counts."""
    counts: list[int] = []

    async def count() -> None:
        while True:
            counts.append(len(await asyncio.to_thread(running, engine, prefix)))
            await asyncio.sleep(0.02)

    counter = asyncio.create_task(count())
    try:
        yield counts
    finally:
        counter.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await counter


def running(engine: TestEngine, prefix: str) -> list[dict[str, Any]]:
    containers: list[dict[str, Any]] = engine.admin.http.get("/containers/json").json()
    return [each for each in containers if each["Names"][0].startswith(f"/{prefix}")]


async def test_37_a_rollout_with_a_bad_image_halts_with_three_serving_and_is_undone(
    docked: World, engine: TestEngine, prefix: str, tmp_path: Path
) -> None:
    key = ResourceKey("default", "Deployment", f"{prefix}-web")
    one, two = (["/bin/sleep", seconds] for seconds in ("1001", "1002"))
    await docked.declare_all([deployment(key.name, engine.image, one)])
    await wait_until_ready(docked, key, 1)
    assert len(running(engine, prefix)) == 3
    row = await docked.client.status(key)
    assert row is not None
    assert len(row.outputs["backends"]) == 3
    assert {each["port"] for each in row.outputs["backends"]} == {8080}

    async with count_running(engine, prefix) as counts:
        await docked.declare_all([deployment(key.name, engine.image, two)])
        await wait_until_ready(docked, key, 2)
    assert min(counts) >= 3
    assert max(counts) <= 4
    assert {each["Command"] for each in running(engine, prefix)} == {"/bin/sleep 1002"}
    ids_before = {each["Id"] for each in running(engine, prefix)}

    async def has_halted() -> bool:
        row = await docked.client.status(key)
        not_ready = None if row is None else row.not_ready
        return not_ready is not None and not_ready.reason == "Stalled"

    async with count_running(engine, prefix) as counts:
        await docked.declare_all([deployment(key.name, "no-such-image:1", two)])
        await docked.until(has_halted, "it halts", seconds=60)
        row = await docked.client.status(key)
        assert row is not None
        assert row.not_ready is not None
        assert "no-such-image" in row.not_ready.message
        assert {each["Id"] for each in running(engine, prefix)} == ids_before, (
            "the old containers are serving"
        )

        undo = ("rollback", f"Deployment/{key.name}", "--wait", "--reason", "no such image")
        cli = Cli(tmp_path)
        await asyncio.to_thread(cli.ok, *undo, "--nats-url", docked.server.url)
        await wait_until_ready(docked, key, 4)
    assert min(counts) == max(counts) == 3, "the old containers served the whole time"
    assert {each["Id"] for each in running(engine, prefix)} == ids_before, (
        "no container was recreated"
    )

    outcomes = every(OutcomeRecorded, await docked.facts(key))
    assert "Failed" not in {each.outcome for each in outcomes}
    await docked.publish(key, Withdrawn())
    await docked.until_outcome(key, "Deleted")
    assert running(engine, prefix) == []


async def test_43_a_crashing_template_stops_with_three_serving_and_is_undone(
    docked: World, engine: TestEngine, prefix: str, tmp_path: Path
) -> None:
    key = ResourceKey("default", "Deployment", f"{prefix}-web")

    def declare(command: list[str]) -> Manifest:
        manifest = deployment(key.name, engine.image, command)
        spec = {**manifest.spec, "minReadySeconds": 2, "progressDeadlineSeconds": 12}
        return msgspec.structs.replace(manifest, spec=spec)

    def good_ids() -> set[str]:
        containers = running(engine, prefix)
        return {each["Id"] for each in containers if each["Command"] == "/bin/sleep 1001"}

    await docked.declare_all([declare(["/bin/sleep", "1001"])])
    await wait_until_ready(docked, key, 1)
    ids_before = good_ids()
    assert len(ids_before) == 3
    row = await docked.client.status(key)
    assert row is not None
    assert (row.outputs["available"], row.outputs["updated"]) == (3, 3)

    async def has_stalled() -> bool:
        row = await docked.client.status(key)
        not_ready = None if row is None else row.not_ready
        assert await asyncio.to_thread(good_ids) == ids_before, "the old containers are serving"
        return not_ready is not None and not_ready.reason == "Stalled"

    async with count_running(engine, prefix) as counts:
        await docked.declare_all([declare(["/bin/sh", "-c", "sleep 1; exit 1"])])
        await docked.until(has_stalled, "it stalls", seconds=60)
        row = await docked.client.status(key)
        assert row is not None
        assert row.not_ready is not None
        assert "0 of 3 containers are available, 3 with the old" in row.not_ready.message
        assert (row.outputs["available"], row.outputs["updated"]) == (3, 1)
        undo = ("rollback", f"Deployment/{key.name}", "--wait", "--reason", "it exits")
        await asyncio.to_thread(Cli(tmp_path).ok, *undo, "--nats-url", docked.server.url)
    assert max(counts) <= 4
    assert good_ids() == ids_before, "no container was recreated"


DRAINING = """
trap 'sleep 2; exit' TERM
mkdir -p /tmp/www && echo VERSION > /tmp/www/index.html
httpd -p 8080 -h /tmp/www
while :; do sleep 1 & wait $!; done
"""
"""A server that responds for two seconds after SIGTERM, like a graceful one."""


@pytest.mark.caddy
async def test_37_a_rollout_under_load_through_a_route_does_not_fail_requests(
    docked: World, engine: TestEngine, prefix: str, caddy_server: Caddy
) -> None:
    host, config = f"{prefix.lower()}.example.org", "caddy"
    await docked.configure(
        api_config(
            caddy_server.endpoint,
            provider="caddy",
            resync=3600,
            least_resync_seconds=0.2,
            scope=Scope(prefix=prefix.lower()),
        ),
        config,
    )
    key = ResourceKey("default", "Deployment", f"{prefix}-web")

    def version(number: int) -> Manifest:
        command = ["/bin/sh", "-c", DRAINING.replace("VERSION", f"version-{number}")]
        manifest = deployment(key.name, engine.image, command)
        manifest.spec["template"]["spec"]["stopSeconds"] = 5
        manifest.spec["template"]["spec"]["healthCheck"] = {
            "command": ["/bin/test", "-e", "/tmp/www/index.html"],
            "intervalSeconds": 1,
        }
        return manifest

    route = Manifest(
        "caddy/v1",
        "Route",
        Metadata(f"{prefix.lower()}-web"),
        {
            "providerConfigRef": {"name": config},
            "hosts": [host],
            "backends": {"$ref": f"Deployment/{key.name}", "field": "outputs.backends"},
        },
    )
    await docked.declare_all([version(1), route])
    await wait_until_ready(docked, key, 1)
    await docked.until_outcome(route.key, "Converged")
    url = f"http://127.0.0.1:{caddy_server.http_port}/"
    async with Visitors(url, host).send_requests() as visitors:
        await docked.until(lambda: has_responses(visitors, "version-1", 50), "requests succeed")
        await docked.declare_all([version(2)])
        await wait_until_ready(docked, key, 2)
        await docked.until(
            lambda: has_responses(visitors, "version-2", 200), "requests continue to succeed"
        )
    assert visitors.failed == []
    assert visitors.responses.keys() == {"version-1\n", "version-2\n"}
    for each in (route.key, key):
        await docked.publish(each, Withdrawn())
        await docked.until_outcome(each, "Deleted")


async def has_responses(visitors: Visitors, text: str, times: int) -> bool:
    return visitors.responses[f"{text}\n"] >= times


async def test_37_a_container_that_is_removed_out_of_band_is_recreated_by_its_own_kind(
    docked: World, engine: TestEngine, prefix: str
) -> None:
    key = ResourceKey("default", "Deployment", f"{prefix}-web")
    command = ["/bin/sleep", "1001"]
    await docked.declare_all([deployment(key.name, engine.image, command, 2)])
    await wait_until_ready(docked, key, 1)
    deleted_id = running(engine, prefix)[0]["Id"]
    engine.admin.delete(f"/containers/{deleted_id}", force="true")

    async def is_healed() -> bool:
        containers = await asyncio.to_thread(running, engine, prefix)
        return len(containers) == 2 and deleted_id not in {each["Id"] for each in containers}

    await docked.until(is_healed, "two containers exist again", seconds=30)
    await wait_until_ready(docked, key, 1)
