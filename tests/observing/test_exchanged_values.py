"""Streams that exchange their subjects, which the server refuses (ADR 0089)."""

from __future__ import annotations

import pytest

from events.intake import Withdrawn
from events.log import ActionDecided, ActionFailed, ActionRetried
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from infra.providers.jetstream.stream import STREAM
from projections.read_models import rebuild
from reconciler.cli.past.exchanges import explain_exchange
from reconciler.provider.kind import KindRegistry
from reconciler.sdk.history import History
from reconciler.sdk.plan import compute_plan
from tests.resource.building import every
from tests.scenarios.conftest import bare_world_on_own_server as bare_world
from tests.scenarios.harness import World, api_config

__all__ = ["bare_world"]


def stream(name: str, subject: str, namespace: str = "default") -> Manifest:
    spec = {"providerConfigRef": {"name": "jetstream"}, "subjects": [subject]}
    return Manifest("jetstream/v1", "Stream", Metadata(name, namespace), spec)


async def explain(world: World, key: ResourceKey) -> str:
    past = await History(world.nc).get(key)
    row = rebuild(past.events).status[str(key)]
    return await explain_exchange(world.nc, row, past.events)


async def declare_streams(world: World, names: tuple[str, ...], namespace: str = "default") -> None:
    world.kinds = KindRegistry([STREAM])
    await world.start_reconciler()
    config = api_config(world.server.url, provider="jetstream", resync=3600)
    await world.configure(config, name="jetstream")
    await world.declare_all([stream(each, f"{each}.>") for each in names[:-1]])
    await world.declare_all([stream(names[-1], f"{names[-1]}.>", namespace)])
    for name in names[:-1]:
        await world.until_outcome(ResourceKey("default", "Stream", name), "Converged")
    await world.until_outcome(ResourceKey(namespace, "Stream", names[-1]), "Converged")


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
async def test_exchanged_subjects_are_explained_and_end_with_a_temporary_value(
    bare_world: World, names: tuple[str, ...]
) -> None:
    world = bare_world
    await declare_streams(world, names)
    keys = [ResourceKey("default", "Stream", each) for each in names]
    wanted = [stream(name, f"{names[number - 1]}.>") for number, name in enumerate(names)]

    plan = await compute_plan(world.nc, wanted, kinds=world.kinds)
    for each in plan.resources:
        assert "`subjects`" in each.warning
        assert all(str(key) in each.warning for key in keys)
        assert each.warning.endswith("declare one of them with a temporary value first")

    await world.declare_all(wanted)
    for key in keys:
        await world.until_outcome(key, "Degraded", reason="NotDone")
    for key in keys:
        text = await explain(world, key)
        assert "`subjects`" in text
        assert all(str(each) in text for each in keys)
        assert "Declare one of them with a temporary value." in text

    await world.declare_all([stream(names[0], "temporary")])
    for key in keys:
        await world.until_outcome(key, "Converged")
        assert await explain(world, key) == ""
    await world.declare_all([wanted[0]])
    await world.until_outcome(keys[0], "Converged", generation=4)
    await world.until_settled()
    for key in keys:
        facts = await world.facts(key)
        attempts = len(every(ActionDecided, facts)) + len(every(ActionRetried, facts))
        assert attempts <= 4 + len(every(ActionFailed, facts))
        assert len(every(ActionFailed, facts)) < 12, "each refusal waits longer"


async def test_the_stream_of_another_namespace_is_not_named(bare_world: World) -> None:
    world = bare_world
    await declare_streams(world, ("a", "b"), namespace="team")
    first, second = ResourceKey("default", "Stream", "a"), ResourceKey("team", "Stream", "b")
    wanted = [stream("a", "b.>"), stream("b", "a.>", "team")]
    plan = await compute_plan(world.nc, wanted, kinds=world.kinds)
    assert [each.warning for each in plan.resources] == ["", ""]
    await world.declare_all(wanted)
    for key in (first, second):
        await world.until_outcome(key, "Degraded", reason="NotDone")
        assert await explain(world, key) == ""
    await world.publish(second, Withdrawn())
    await world.until_outcome(second, "Deleted")
    await world.until_outcome(first, "Converged")
