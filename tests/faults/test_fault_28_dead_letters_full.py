"""Fault 28: more unusable messages than a partition delivers, and a full dead-letter stream.

Other resources still converge, and discarded messages are counted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from events.manifest import Metadata
from events.names import ResourceKey
from events.subjects import intake, log
from infra.bus.dead_letters import read_discarded
from infra.bus.streams import DEADLETTERS, INTAKE, PARTITIONS
from infra.jetstream.connection import api_request
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import publish, publish_in_batches
from infra.jetstream.reads import stream_state
from reconciler.cli.doctor import run_checks
from reconciler.roles.decider.postponed import MAX_POSTPONED
from tests.faulty_api import FaultyApi
from tests.scenarios.harness import Human, World, api_config, manifest

TIMEOUT_SECONDS = 300.0
UNUSABLE = 20_000
NEIGHBORS = 40
HOSTILE = ResourceKey("hostile", "Shape", "bad")
MISFIT = "rec.desired.hostile"
QUARTER = MAX_POSTPONED


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    process = FaultyApi()
    human = Human(await process.start(tmp_path / "api"))
    async with World(tmp_path / "nats", human).open() as world:
        await world.start_reconciler()
        await world.configure(api_config(human.url))
        yield world
    await human.close()
    await process.stop()


def compute_partition(key: ResourceKey) -> int:
    """Return the partition as the server computes it: FNV-1a of the tokens."""
    hash_value = 2_166_136_261
    for byte in f"{key.namespace}{key.kind}{key.name}".encode():
        hash_value = (hash_value ^ byte) * 16_777_619 % 2**32
    return hash_value % PARTITIONS


def neighbors() -> list[str]:
    """Return names of resources in the flooded partition."""
    expected, names = compute_partition(HOSTILE), (f"n{number}" for number in range(10_000))
    found = [
        name
        for name in names
        if compute_partition(ResourceKey("default", "Shape", name)) == expected
    ]
    return found[:NEIGHBORS]


async def limit_dead_letters(world: World, limit_bytes: int) -> None:
    state = await stream_state(world.nc, DEADLETTERS)
    limited = {**state.config, "max_bytes": limit_bytes}
    await api_request(world.nc, f"STREAM.UPDATE.{DEADLETTERS}", limited)


async def flood(
    world: World, subject: str, *, count: int = UNUSABLE, payload: bytes = b"not JSON"
) -> None:
    messages = [OutgoingMessage(subject, payload)] * count
    results = await publish_in_batches(world.nc, messages)
    assert not [each for each in results if isinstance(each, Exception)]


async def pending(
    world: World, partition: int | str = compute_partition(HOSTILE)
) -> tuple[int, int]:
    """Return how many of a partition's messages are waiting for a slot, and how many have one."""
    name = f"CONSUMER.INFO.{INTAKE}.decider-{partition}"
    info = await api_request(world.nc, name, None)
    return info["num_pending"], info["num_ack_pending"]


async def count_discarded(world: World, namespace: str = HOSTILE.namespace) -> int:
    discarded_counts = await read_discarded(world.nc)
    return sum(each.count for each in discarded_counts if each.namespace == namespace)


async def until_discarded(world: World, expected: int, namespace: str = HOSTILE.namespace) -> None:
    async def is_counted() -> bool:
        return await count_discarded(world, namespace) >= expected

    what = f"{expected} messages are counted"
    await world.until(is_counted, what, seconds=TIMEOUT_SECONDS)
    assert await count_discarded(world, namespace) == expected


async def until_a_quarter_waits(
    world: World, partition: int | str = compute_partition(HOSTILE)
) -> None:
    """Wait until only a quarter has slots: a message is counted before it is acknowledged."""

    async def is_acknowledged() -> bool:
        return await pending(world, partition) == (0, QUARTER)

    await world.until(is_acknowledged, "all but a quarter are acknowledged")


async def assert_others_converge(world: World) -> None:
    names = neighbors()
    await world.declare_all([manifest(name) for name in names])
    for name in names:
        key = f"default/Shape/{name}"
        outcome = await world.client.wait_for(key, generation=1, timeout_seconds=TIMEOUT_SECONDS)
        assert outcome.outcome == "Converged"


async def test_fault_28_others_converge_while_a_flood_exceeds_every_limit(world: World) -> None:
    await limit_dead_letters(world, 1)
    await flood(world, intake("desired", HOSTILE))

    await assert_others_converge(world)

    await until_discarded(world, UNUSABLE - QUARTER)
    await until_a_quarter_waits(world)
    [finding] = [
        each for each in await run_checks(world.nc, full=False) if each.check == "discarded"
    ]
    assert finding.verdict == "warn"
    assert "hostile: " in finding.details
    assert "at stage quota" in finding.details, "some must be discarded unread"

    await limit_dead_letters(world, 64 * 1024**2)
    await world.until_settled()
    assert len(await world.dead_letters()) == QUARTER, (
        "waiting messages are kept when there is space"
    )
    assert await count_discarded(world) == UNUSABLE - QUARTER


async def test_fault_28_a_flood_gets_no_more_than_a_quarter_of_the_dead_letters(
    world: World,
) -> None:
    limit_bytes = 1024**2
    await limit_dead_letters(world, limit_bytes)
    await flood(world, intake("desired", HOSTILE))
    await flood(world, intake("desired", ResourceKey("default", "Shape", "typo")), count=1)

    await assert_others_converge(world)
    await world.until_settled()

    dead_letters = await world.dead_letters()
    other_dead_letters = [each for each in dead_letters if ".default." in each.subject]
    assert len(other_dead_letters) == 1
    kept_state = await stream_state(world.nc, DEADLETTERS)
    assert limit_bytes // 16 < kept_state.bytes < limit_bytes // 4 + 4_096
    assert await count_discarded(world) == UNUSABLE - len(dead_letters) + 1


async def test_fault_28_messages_without_a_partition_have_their_own_quota(world: World) -> None:
    await limit_dead_letters(world, 1)
    await flood(world, MISFIT, count=3 * QUARTER)

    await until_discarded(world, 2 * QUARTER, namespace="=")
    await until_a_quarter_waits(world, "misfits")


async def test_fault_28_a_new_decider_reduces_waiting_messages_to_a_quarter_again(
    world: World,
) -> None:
    async def is_under_the_quarter() -> bool:
        return await pending(world) == (0, QUARTER)

    await limit_dead_letters(world, 1)
    for _ in range(2):
        await flood(world, intake("desired", HOSTILE), count=3 * QUARTER)
        await world.until(is_under_the_quarter, "a quarter waits", seconds=TIMEOUT_SECONDS)
        await world.restart_reconciler()
    await assert_others_converge(world)
    assert await count_discarded(world) == 5 * QUARTER


async def test_fault_28_valid_messages_for_a_damaged_resource_are_not_discarded(
    world: World,
) -> None:
    """The history of the resource is damaged, but its declarations are valid."""
    await publish(world.nc, log(HOSTILE, "fact"), b"from a newer release")
    await world.restart_reconciler()
    await limit_dead_letters(world, 1)
    declared = replace(manifest(""), metadata=Metadata(HOSTILE.name, HOSTILE.namespace))
    good = msgspec.json.encode(declared)
    await flood(world, intake("desired", HOSTILE), payload=good, count=2 * QUARTER)

    await assert_others_converge(world)

    assert await count_discarded(world) == 0
    await limit_dead_letters(world, 64 * 1024**2)

    async def are_stored() -> bool:
        return len(await world.dead_letters()) == 2 * QUARTER

    await world.until(are_stored, "each is a dead letter", seconds=TIMEOUT_SECONDS)
    assert {each.stage for each in await world.dead_letters()} == {"decision"}
    assert await count_discarded(world) == 0
