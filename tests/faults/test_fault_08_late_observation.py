"""Fault 8: late, duplicate and reordered observations never undo newer state."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime

import pytest

from events.envelope import encode_intake
from events.external import ExternalObject
from events.intake import Observed
from events.log import DriftDetected, ExternalObserved, OwnershipReleased
from events.subjects import intake
from infra.bus.streams import INTAKE, LOG
from infra.jetstream.publish import publish
from infra.jetstream.reads import stream_state
from tests.crashes.lane import Lane, key

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROLES_WITHOUT_OBSERVER = ("decider", "worker", "projector")


async def observe(lane: Lane, name: str) -> Observed:
    """Return an observation of the current state, as another observer would publish it."""
    as_of = (await stream_state(lane.nc, INTAKE)).last_seq
    began = datetime.now(UTC)
    response = await lane.http.get(f"/shapes/{name}")
    if response.status_code == 404:
        return Observed("default", name, None, "CompleteListing", as_of, began)
    shape = response.raise_for_status().json()
    fields = {"type": shape["type"], "color": shape["color"]}
    observed_object = ExternalObject(
        name, fields, shape["uid"], str(shape["version"]), shape["labels"]
    )
    return Observed("default", name, observed_object, "CompleteListing", as_of, began)


async def publish_observation(lane: Lane, name: str, observed: Observed) -> None:
    payload = encode_intake(uuid.uuid4().hex, "observer-b", observed, time=datetime.now(UTC))
    await publish(lane.nc, intake("observed", key(name)), payload)


@pytest.mark.parametrize("seed", range(3))
async def test_8_observations_older_than_our_effects_change_nothing_in_any_order(
    lane: Lane, name: str, seed: int
) -> None:
    process = lane.fork(roles=ROLES_WITHOUT_OBSERVER)
    late = [await observe(lane, name)]
    for generation, color in enumerate(("Red", "Green", "Purple"), start=1):
        await lane.declare(name, color)
        await lane.wait_for_outcome(name, "Converged", generation)
        late.append(await observe(lane, name))
    await lane.wait_until_idle()
    newest = late.pop()
    position = (await stream_state(lane.nc, LOG)).last_seq
    order = [*late, *late, newest]
    random.Random(seed).shuffle(order)
    for each in order:
        await publish_observation(lane, name, each)
    await lane.wait_until_idle()
    assert (await stream_state(lane.nc, LOG)).last_seq == position
    assert await lane.effects(name) == ["POST", "PUT", "PUT"]
    await lane.assert_sound()
    await process.stop()


async def test_8_an_absence_that_was_observed_before_the_recreation_is_ignored(
    lane: Lane, name: str
) -> None:
    process = lane.fork(roles=ROLES_WITHOUT_OBSERVER)
    await lane.declare(name)
    await lane.wait_for_outcome(name, "Converged")
    await lane.wait_until_idle()
    await lane.delete_object(name)
    absence = await observe(lane, name)
    await publish_observation(lane, name, absence)

    async def is_recreated() -> bool:
        return (await lane.effects(name)).count("POST") == 2

    await lane.wait_until(is_recreated, "it is recreated")
    await lane.wait_until_idle()
    for _ in range(3):
        await publish_observation(lane, name, absence)
    await lane.wait_until_idle()
    assert await lane.effects(name) == ["POST", "human DELETE", "POST"]
    facts = [type(each.data) for each in await lane.history(name)]
    for event_type in (ExternalObserved, DriftDetected, OwnershipReleased):
        assert facts.count(event_type) == 1
    await lane.assert_sound()
    await process.stop()
