"""Listings from another team's observer are accepted by the same rules as our own listings.

Our own observer lists once at the start and then not for an hour, so each finding comes from the
foreign listing.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from events.envelope import encode_listing_part
from events.external import ExternalObject
from events.intake import ListingBegan, ListingCompleted, ListingItem, ListingPart
from events.log import DriftDetected
from events.provider_config import Scope
from events.subjects import listing
from reconciler.roles.observer import foreign_listings
from reconciler.roles.observer.listing import ListingAssembler, ListingRefusedError
from tests.scenarios.harness import World, api_config, every, manifest, now, only

HOUR = 3600.0
NAMES = ("team-1", "team-2", "team-3")


@pytest.fixture
async def converged_world(bare_world: World) -> World:
    """Return a world with three converged resources, whose changes only the listings report."""
    world = bare_world
    await world.start_reconciler()
    await world.configure(
        api_config(
            world.human.url, resync=HOUR, scope=Scope(mode="Exclusive", prefix="team-", labels={})
        )
    )
    await world.declare_all([manifest(name) for name in NAMES])
    for name in NAMES:
        await world.until_outcome(name, "Converged")
    await world.until_settled()
    return world


async def refusals(world: World) -> list[str]:
    """Return the reasons for refused listings from the dead letters."""
    return [each.reason for each in await world.dead_letters() if each.stage == "listing"]


async def read_api(world: World, *omitted: str) -> list[ExternalObject]:
    """Return the objects that the foreign observer reads from the API."""
    return [
        ExternalObject(
            each["name"],
            {"type": each["type"], "color": each["color"]},
            each["uid"],
            str(each["version"]),
            each["labels"],
        )
        for each in await world.human.list_all()
        if each["name"] not in omitted
    ]


async def send(world: World, parts: Sequence[ListingPart]) -> None:
    subject = listing("default", "Shape", uuid.uuid4().hex)
    for number, part in enumerate(parts):
        await world.nc.request(
            subject, encode_listing_part(f"p-{number}", "their-observer", part, time=now())
        )


async def send_listing(
    world: World,
    objects: Sequence[ExternalObject],
    *,
    kind: str = "Shape",
    prefix: str | None = "team-",
    as_of: int | None = None,
) -> None:
    if as_of is None:
        as_of = await world.client.observation_time()
    began = ListingBegan("default", kind, as_of, prefix)
    items = [ListingItem(each) for each in objects]
    await send(world, [began, *items, ListingCompleted(len(objects))])


async def check_refused(world: World, position: int, reason: str) -> None:
    async def is_refused() -> bool:
        return any(reason in refusal for refusal in await refusals(world))

    await world.until(is_refused, f"refused: {reason}")
    await world.until_settled()
    assert await world.log_position() == position


async def test_a_complete_listing_detects_drift_loss_and_unmanaged_objects(converged_world: World):
    world = converged_world
    await world.human.update("team-1", color="Green")
    await world.human.delete("team-2")
    await world.human.create("team-x")

    began = await world.client.observation_time()
    async with world.client.listing("default", "Shape", prefix="team-") as writer:
        for each in await read_api(world):
            await writer.add(each)
    assert began > 0
    await world.until_outcome("team-x", "Degraded", reason="AwaitingRead")
    await send_listing(world, await read_api(world))

    async def is_repaired() -> bool:
        shapes = {each["name"]: each["color"] for each in await world.human.list_all()}
        return shapes == dict.fromkeys(NAMES, "Red")

    await world.until(is_repaired, "drift, loss and the unmanaged object are corrected")
    drift = only(DriftDetected, await world.facts("team-1"))
    assert [(each.desired, each.observed) for each in drift.differences] == [("Red", "Green")]
    assert only(DriftDetected, await world.facts("team-2")).missing


async def test_a_listing_that_lacks_an_item_proves_nothing(converged_world: World):
    world, position = converged_world, await converged_world.log_position()
    as_of = await world.client.observation_time()
    items = [ListingItem(each) for each in await read_api(world, "team-3")]
    began = ListingBegan("default", "Shape", as_of, "team-")

    await send(world, [began, *items, ListingCompleted(3)])

    await check_refused(world, position, "2 objects, but its last message reports 3")


async def test_a_duplicate_item_does_not_replace_a_missing_one(
    converged_world: World,
):
    world, position = converged_world, await converged_world.log_position()
    as_of = await world.client.observation_time()
    first, second = [ListingItem(each) for each in await read_api(world, "team-3")]
    began = ListingBegan("default", "Shape", as_of, "team-")

    await send(world, [began, first, second, second, ListingCompleted(3)])

    await check_refused(world, position, "2 objects, but its last message reports 3")


async def test_a_listing_without_its_start_is_refused(converged_world: World):
    position = await converged_world.log_position()
    items = [ListingItem(each) for each in await read_api(converged_world)]
    await send(converged_world, [*items, ListingCompleted(3)])
    await check_refused(converged_world, position, "the start of the listing is missing")


@pytest.mark.parametrize("prefix", [None, "team-1"])
async def test_a_listing_of_another_scope_proves_nothing(
    converged_world: World, prefix: str | None
):
    position = await converged_world.log_position()
    await send_listing(
        converged_world, await read_api(converged_world, "team-2", "team-3"), prefix=prefix
    )
    await check_refused(converged_world, position, "the listing has the scope prefix=")


async def test_an_object_outside_of_the_exclusive_scope_is_not_deleted_by_a_listing(
    converged_world: World,
):
    world, position = converged_world, await converged_world.log_position()
    await world.human.create("foreign")

    await send_listing(world, await read_api(world))

    await check_refused(world, position, "the object 'foreign' is outside the scope of the listing")
    assert await world.human.find("foreign")


async def test_a_listing_that_began_before_our_effect_proves_nothing(converged_world: World):
    world = converged_world
    as_of = await world.client.observation_time()
    previous_objects = await read_api(world)
    await world.declare("team-4")
    await world.declare("team-1", color="Purple")
    await world.until_outcome("team-4", "Converged")
    await world.until_outcome("team-1", "Converged", generation=2)
    await world.human.create("team-x")  # its outcome shows that the listing was processed
    objects_with_unmanaged = [
        *previous_objects,
        *(each for each in await read_api(world) if each.name == "team-x"),
    ]

    await send_listing(world, objects_with_unmanaged, as_of=as_of)
    await world.until_outcome("team-x", "Degraded", reason="AwaitingRead")
    await send_listing(world, objects_with_unmanaged, as_of=as_of)

    async def is_unmanaged_deleted() -> bool:
        return await world.human.find("team-x") is None

    await world.until(is_unmanaged_deleted, "the listing was processed")
    await world.until_settled()
    assert await world.human.effects("team-4") == ["POST"]
    assert await world.human.effects("team-1") == ["POST", "PUT"]
    for name in ("team-1", "team-4"):
        assert every(DriftDetected, await world.facts(name)) == []


async def test_a_listing_for_an_unknown_configuration_or_kind_is_refused(converged_world: World):
    position = await converged_world.log_position()
    subject = listing("nowhere", "Shape", "s-1")
    began = ListingBegan("nowhere", "Shape", 1)
    await converged_world.nc.request(subject, encode_listing_part("p", "them", began, time=now()))
    await check_refused(converged_world, position, "'nowhere' is not declared")
    await converged_world.nc.request(listing("default", "Shape", "s-2"), b"not JSON")
    await check_refused(converged_world, position, "the listing has an unreadable part")
    await send_listing(converged_world, await read_api(converged_world), kind="Blob")
    await check_refused(converged_world, position, "the listing is for default.Blob")


async def test_only_a_listing_that_uses_too_much_memory_is_refused(
    converged_world: World, monkeypatch: pytest.MonkeyPatch
):
    world = converged_world
    objects = await read_api(world)
    monkeypatch.setattr(foreign_listings, "MAX_LISTING_BYTES", 1024**2)
    monkeypatch.setattr(foreign_listings, "MAX_OPEN_BYTES", 1024**2)
    position = await world.log_position()
    as_of = await world.client.observation_time()
    began = ListingBegan("default", "Shape", as_of, "team-")
    small, huge = (listing("default", "Shape", uuid.uuid4().hex) for _ in range(2))

    async def publish_part(subject: str, part: ListingPart) -> None:
        encoded = encode_listing_part(uuid.uuid4().hex, "their-observer", part, time=now())
        await world.nc.request(subject, encoded)

    for subject in (small, huge):
        await publish_part(subject, began)
    for each in objects:
        await publish_part(small, ListingItem(each))
    filler = ExternalObject("team-9", {"type": "Square", "color": "x" * 100_000})
    for number in range(12):
        await publish_part(huge, ListingItem(replace(filler, name=f"team-{number + 10}")))
    await check_refused(world, position, "exceed the limit of 1 MiB of memory")
    await publish_part(small, ListingCompleted(len(objects)))
    await world.until_settled()
    assert len(await refusals(world)) == 1


def test_an_object_without_the_labels_of_the_scope_is_refused():
    began = ListingBegan("default", "Shape", 1, labels={"team": "a"})
    assembler = ListingAssembler(began, None)
    assembler.add([ExternalObject("mine", {}, labels={"team": "a", "more": "x"})])
    with pytest.raises(
        ListingRefusedError, match="the object 'theirs' is outside the scope of the listing"
    ):
        assembler.add([ExternalObject("theirs", {}, labels={"team": "b"})])
