"""ProviderConfigs: two APIs of one kind, a second kind, and changes of configurations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from events.intake import ForcedRelease, Withdrawn
from events.log import ActionDecided, DriftDetected, FieldDifference
from events.manifest import EXTERNAL_NAME_ANNOTATION, Manifest, Metadata
from events.names import ResourceKey, name_for_external
from events.provider_config import Scope
from reconciler.resource.owner_label import OWNER_LABEL, owner
from tests.faulty_api import FaultyApi
from tests.scenarios.harness import Human, World, api_config, every, only, shape

CONFIG = ResourceKey("system", "ProviderConfig", "default")


@pytest.fixture
async def other_human(tmp_path: Path) -> AsyncIterator[Human]:
    """A client of a second API of the same kind."""
    process = FaultyApi()
    human = Human(await process.start(tmp_path / "other-api"))
    yield human
    await human.close()
    await process.stop()


async def test_two_apis_of_one_kind_do_not_affect_each_other(world: World, other_human: Human):
    await world.configure(
        api_config(other_human.url, scope=Scope(namespace="second")), name="second"
    )
    await world.declare("here", color="Red")
    await world.declare("there", color="Purple", config="second")
    await world.until_outcome("here", "Converged")
    await world.until_outcome("there", "Converged")
    assert [each["name"] for each in await world.human.list_all()] == ["here"]
    assert [each["name"] for each in await other_human.list_all()] == ["there"]

    await other_human.create("here", color="Green")  # the same name, in the other API
    await other_human.update("there", color="Green")

    unmanaged_key = ResourceKey("second", "Shape", "here")
    await world.until_outcome(unmanaged_key, "Unowned")

    async def is_repainted() -> bool:
        return (await other_human.get("there"))["color"] == "Purple"

    await world.until(is_repainted, "drift in the second API is corrected in that API")
    await world.until_observed_again()
    assert await world.human.effects() == ["POST"]
    assert await other_human.effects("here") == ["human POST"]
    assert every(DriftDetected, await world.facts("here")) == []


async def test_two_undeclared_objects_with_the_same_name_do_not_alternate(
    world: World, other_human: Human
):
    await world.human.create("bar")
    await world.until_outcome("bar", "Unowned")
    await other_human.create("bar", color="Green")
    await world.configure(api_config(other_human.url), name="second")
    other_key = ResourceKey("default", "Shape", name_for_external("bar", "second"))
    await world.until_outcome(other_key, "Unowned")
    await world.until_observed_again()

    position = await world.log_position()
    await world.until_observed_again(4)
    assert await world.log_position() == position


async def test_an_object_named_like_a_resource_in_another_api_is_reported(world: World):
    other_api = Metadata("bar", annotations={EXTERNAL_NAME_ANNOTATION: "foo"})
    await world.declare_all(
        [Manifest("shapes/v1", "Shape", other_api, {"type": "Square", "color": "Red"})]
    )
    await world.until_outcome("bar", "Converged")

    await world.human.create("bar", color="Green")

    key = ResourceKey("default", "Shape", name_for_external("bar", "default"))
    await world.until_outcome(key, "Unowned")
    assert (await world.human.get("foo"))["color"] == "Red"


async def test_a_resource_waits_for_its_configuration(bare_world: World):
    world = bare_world
    await world.start_reconciler()
    await world.declare("foo")
    held = await world.until_outcome("foo", "Held", reason="ProviderConfigMissing")
    assert "'default' is not declared" in held.message

    await world.configure(api_config(world.human.url))

    await world.until_outcome("foo", "Converged")
    assert await world.human.effects() == ["POST"]


async def test_a_withdrawn_configuration_stays_in_effect_until_nothing_uses_it(world: World):
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")

    await world.publish(CONFIG, Withdrawn())

    held = await world.until_outcome(CONFIG, "Held", reason="Referenced")
    assert "1 resource uses it: default/Shape/foo" in held.message
    await world.human.delete("foo")
    await world.until(lambda: world.human.find("foo"), "foo is recreated")
    await world.until_outcome("foo", "Converged")
    await world.declare("bar")
    await world.until_outcome("bar", "Held", reason="ProviderConfigMissing")

    await world.withdraw("foo")
    await world.until_outcome("foo", "Deleted")
    await world.withdraw("bar")
    await world.until_outcome(CONFIG, "Deleted")
    assert await world.human.list_all() == []


async def test_a_forced_release_of_a_configuration_stops_all_calls(world: World):
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.until_observed_again()

    await end_config(world)

    await world.until_settled()
    await world.human.delete("foo")
    await world.declare("bar")
    await world.until_outcome("bar", "Held", reason="ProviderConfigMissing")
    assert await world.human.find("foo") is None

    await world.configure(api_config(world.human.url))

    await world.until_outcome("bar", "Converged")
    await world.until(lambda: world.human.find("foo"), "foo is recreated")
    await world.until_outcome("foo", "Converged")


async def end_config(world: World) -> None:
    """Withdraw the configuration, and end it although resources use it."""
    await world.publish(CONFIG, Withdrawn())
    await world.publish(CONFIG, ForcedRelease("the API is gone"), "approval")
    await world.until_outcome(CONFIG, "Deleted")


async def test_objects_of_an_api_without_a_configuration_are_forgotten_by_a_release(
    world: World,
):
    await world.declare("foo")
    await world.human.create("bar", color="Green")
    foreign = shape("bar")
    await world.until_outcome(foreign, "Unowned")
    await world.until_outcome("foo", "Converged")
    await end_config(world)
    await world.publish(shape("foo"), Withdrawn())
    await world.until_outcome("foo", "Held", reason="ProviderConfigMissing")
    released = [shape("foo"), foreign]

    await world.client.force_release_many(released, reason="the API is gone", orphan=True)

    async def is_empty() -> bool:
        rows = {each.key for each in await world.client.statuses()}
        return not rows.intersection(released)

    await world.until(is_empty, "no row is left")
    assert await world.human.find("foo") is not None

    await world.configure(api_config(world.human.url))
    await world.until_outcome(foreign, "Unowned")
    await world.until_outcome("foo", "Released")
    assert sorted(await world.human.effects()) == ["POST", "human POST"]

    await world.declare("foo", policy={"adoption": "Adopt"})
    await world.until_outcome("foo", "Converged")


async def test_resources_follow_a_configuration_to_its_new_endpoint(
    world: World, other_human: Human
):
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")

    await world.configure(api_config(other_human.url))

    await world.until(lambda: other_human.find("foo"), "foo is created at the new endpoint")
    assert await world.human.effects() == ["POST"]
    assert await other_human.effects() == ["POST"]


# --- a second kind


def record(*values: str, ttl: int = 60) -> Manifest:
    spec = {
        "type": "A",
        "values": list(values),
        "ttl": ttl,
        "providerConfigRef": {"name": "zone"},
    }
    return Manifest("records/v1", "Record", Metadata("www"), spec)


async def test_a_record_is_created_corrected_changed_and_deleted(
    bare_world: World, records_url: str
):
    """The API has no idempotency keys, and returns values in a different order."""
    world, key = bare_world, ResourceKey("default", "Record", "www")
    zone = records_url + "/zones/example.org"
    await world.start_reconciler()
    await world.configure(api_config(zone, provider="records"), name="zone")
    async with httpx.AsyncClient(base_url=zone) as api:

        async def values() -> list[str]:
            return sorted((await api.get("/records/www")).raise_for_status().json()["values"])

        await world.declare_all([record("10.0.0.1", "10.0.0.2")])
        await world.until_outcome(key, "Converged", generation=1)
        found = (await api.get("/records/www")).json()
        assert await values() == ["10.0.0.1", "10.0.0.2"]
        assert f"{OWNER_LABEL}={owner(world.log.log_id, key)}" in found["tags"]

        position = await world.log_position()
        await world.declare_all([record("10.0.0.2", "10.0.0.1", "10.0.0.2")])
        await world.until_observed_again()
        assert await world.log_position() == position  # the same set in another order

        etag = (await api.get("/records/www")).headers["ETag"]
        changed_record = {"type": "A", "values": ["10.6.6.6"], "ttl": 60, "tags": found["tags"]}
        response = await api.put("/records/www", json=changed_record, headers={"If-Match": etag})
        response.raise_for_status()

        async def is_corrected() -> bool:
            return await values() == ["10.0.0.1", "10.0.0.2"]

        await world.until(is_corrected, "the values are restored")
        await world.until_observed_again()
        drift = only(DriftDetected, await world.facts(key))
        assert drift.differences == (
            FieldDifference("values", ["10.0.0.1", "10.0.0.2"], ["10.6.6.6"]),
        )

        await world.declare_all([record("10.0.0.3", ttl=120)])
        await world.until_outcome(key, "Converged", generation=2)
        assert await values() == ["10.0.0.3"]
        await world.publish(key, Withdrawn())
        await world.until_outcome(key, "Deleted", generation=3)
        assert (await api.get("/records/www")).status_code == 404


async def test_a_record_waits_until_its_configuration_names_its_provider(
    world: World, records_url: str
):
    key = ResourceKey("default", "Record", "www")
    await world.configure(api_config(world.human.url), name="zone")  # an API of shapes
    await world.declare_all([record("10.0.0.1")])
    held = await world.until_outcome(key, "Held", reason="WrongProvider")
    assert "Record requires 'records'" in held.message

    await world.publish(key, Withdrawn())
    await world.until_outcome(key, "Deleted", generation=2)
    await world.declare_all([record("10.0.0.1")])
    await world.until_outcome(key, "Held", generation=3)
    assert every(ActionDecided, await world.facts(key)) == []

    zone = records_url + "/zones/example.com"
    await world.configure(api_config(zone, provider="records"), name="zone")
    await world.until_outcome(key, "Converged", generation=3)


async def test_resources_of_two_kinds_can_have_the_same_name(world: World, records_url: str):
    zone = records_url + "/zones/example.net"
    await world.configure(api_config(zone, provider="records"), name="zone")
    await world.declare("www")
    await world.declare_all([record("10.0.0.1")])

    await world.until_outcome(shape("www"), "Converged")
    await world.until_outcome(ResourceKey("default", "Record", "www"), "Converged")
    await world.until_observed_again()
    assert await world.human.effects() == ["POST"]


async def test_a_resource_waits_until_its_namespace_is_allowed_but_can_always_be_withdrawn(
    world: World,
):
    for_others = api_config(world.human.url, namespaces=("billing",))
    await world.configure(for_others)
    await world.declare("foo")
    await world.until_outcome("foo", "Held", reason="NotPermitted")
    assert await world.human.effects() == []

    await world.configure(api_config(world.human.url))
    await world.until_outcome("foo", "Converged")

    await world.configure(for_others)
    await world.human.update("foo", color="Green")
    await world.until_outcome("foo", "Held", reason="NotPermitted")
    assert (await world.human.get("foo"))["color"] == "Green"
    await world.withdraw("foo")
    await world.until_outcome("foo", "Deleted")
    assert await world.human.list_all() == []
