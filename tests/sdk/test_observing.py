"""Publishing observations: of one object, and complete listings."""

from typing import Any

import pytest

from reconciler.sdk import Client, ExternalObject, InvalidNameError, Observed
from tests.sdk.conftest import shape


def thing(name: str, color: str = "Red") -> ExternalObject:
    return ExternalObject(name, {"type": "Square", "color": color}, uid=f"uid-of-{name}")


async def test_observation_of_one_resource_is_recorded(client: Client, name: str) -> None:
    key = shape(name).key
    as_of = await client.observation_time()
    async with client.outcomes(name=name) as outcomes:
        await client.publish_observation(key, Observed("default", name, thing(name), as_of=as_of))
        outcome = await anext(outcomes)

    assert (outcome.outcome, outcome.actor) == ("Unowned", "test")


async def test_a_complete_listing_records_existing_objects(client: Client, name: str) -> None:
    async with client.outcomes(name=name) as outcomes:
        async with client.listing("default", "Shape") as listing:
            await listing.add(thing(name))
        outcome = await anext(outcomes)

    assert outcome.outcome == "Unowned"
    assert listing.count == 1


async def test_an_aborted_listing_shows_nothing(client: Client, name: str) -> None:
    async def list_half() -> None:
        async with client.listing("default", "Shape") as listing:
            await listing.add(thing(f"{name}-half"))
            raise RuntimeError("the listing failed halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        await list_half()
    async with client.outcomes(name=name) as outcomes:  # the next one is complete, and follows it
        async with client.listing("default", "Shape") as listing:
            await listing.add(thing(name))
        await anext(outcomes)

    assert await client.history(f"default/Shape/{name}-half") == []


async def test_long_listing_is_published_in_parts(client: Client, name: str) -> None:
    async with client.outcomes(name=f"{name}-1200") as outcomes:
        async with client.listing("default", "Shape") as listing:
            for index in range(1_201):
                await listing.add(thing(f"{name}-{index}"))
        await anext(outcomes)
    assert listing.count == 1_201


async def test_names_are_checked(client: Client) -> None:
    with pytest.raises(InvalidNameError):
        client.listing("a.b", "Shape")
    with pytest.raises(InvalidNameError):
        client.listing("default", "*")
    with pytest.raises(InvalidNameError):
        await client.publish_observation("default/Shape/a", Observed("a b", "a"))


async def test_a_duplicate_object_counts_once(client: Client, name: str) -> None:
    async with client.outcomes(name=name) as outcomes:
        async with client.listing("default", "Shape") as listing:
            await listing.add(thing(name))
            await listing.add(thing(name))
        await anext(outcomes)
    assert listing.count == 1


@pytest.mark.parametrize(
    "scope", [{"prefix": "a-"}, {"labels": {"team": "b"}}], ids=["prefix", "labels"]
)
async def test_an_object_outside_the_scope_is_refused(client: Client, scope: Any) -> None:
    async with client.listing("default", "Shape", **scope) as listing:
        with pytest.raises(ValueError, match="outside the scope of the listing"):
            await listing.add(thing("b-1"))
        await listing.add(ExternalObject("a-1", {}, labels={"team": "b"}))
    assert listing.count == 1
