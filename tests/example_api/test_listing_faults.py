"""Listing faults: stale, aborted, incomplete."""

import asyncio
from collections.abc import Callable

import httpx

from tests.example_api.requests import create, inject_faults, kind, listed_names, replace


async def wait_until(
    client: httpx.AsyncClient, prefix: str, condition: Callable[[list[dict[str, str]]], bool]
) -> None:
    async with asyncio.timeout(60):
        while not condition(await list_shapes(client, prefix)):
            pass


async def list_shapes(client: httpx.AsyncClient, prefix: str) -> list[dict[str, str]]:
    return (await client.get("/shapes", params={"prefix": prefix})).json()["items"]


async def test_a_stale_listing_shows_the_past(client: httpx.AsyncClient) -> None:
    await create(client, "late")
    await inject_faults(client, listing_lag_seconds=3600)
    assert await listed_names(client) == []
    assert (await client.get("/shapes/late")).status_code == 200


async def test_a_stale_listing_follows_creation_change_and_deletion(
    client: httpx.AsyncClient,
) -> None:
    # Unique names, because recent changes of other tests are still listed.
    await inject_faults(client, listing_lag_seconds=0.5)
    await create(client, "follow")
    assert await list_shapes(client, "follow") == []
    await wait_until(client, "follow", lambda items: [each["color"] for each in items] == ["Red"])
    await replace(client, "follow", color="Blue")
    await replace(client, "follow", color="Green")
    assert (await list_shapes(client, "follow"))[0]["color"] == "Red"
    await wait_until(client, "follow", lambda items: items[0]["color"] == "Green")
    await client.delete("/shapes/follow")
    assert len(await list_shapes(client, "follow")) == 1
    await wait_until(client, "follow", lambda items: items == [])


async def test_a_stale_listing_applies_filters(client: httpx.AsyncClient) -> None:
    for name in ("was-a1", "was-a2", "was-b1"):
        await create(client, name, labels={"n": name[-1]})
    await inject_faults(client, listing_lag_seconds=0.5)
    await wait_until(client, "was-", lambda items: len(items) == 3)
    await client.delete("/shapes/was-a1")
    assert await listed_names(client, prefix="was-a") == ["was-a1", "was-a2"]
    assert await listed_names(client, prefix="was-", label="n=1") == ["was-a1", "was-b1"]


async def test_a_listing_fails_after_some_pages(client: httpx.AsyncClient) -> None:
    for name in ("a", "b", "c"):
        await create(client, name)
    await inject_faults(client, listing_fail_after_pages=2, remaining=1)
    token = ""
    for _ in range(2):
        page = await client.get("/shapes", params={"limit": 1, "continue": token})
        assert page.status_code == 200
        token = page.json()["continue"]
    failed = await client.get("/shapes", params={"limit": 1, "continue": token})
    assert (failed.status_code, kind(failed)) == (500, "injected-fault")
    page = await client.get("/shapes", params={"limit": 1, "continue": token})
    assert page.status_code == 200


async def test_named_items_are_omitted(client: httpx.AsyncClient) -> None:
    for name in ("a", "b", "c"):
        await create(client, name)
    await inject_faults(client, listing_drop_names=["b", "z"], remaining=1)
    assert await listed_names(client, prefix="c") == [
        "c"
    ]  # nothing omitted, so the fault does not count
    assert await listed_names(client) == ["a", "c"]
    assert await listed_names(client) == ["a", "b", "c"]


async def test_an_omitted_item_does_not_end_the_listing(client: httpx.AsyncClient) -> None:
    for name in ("a", "b"):
        await create(client, name)
    await inject_faults(client, listing_drop_names=["a"])
    page = (await client.get("/shapes", params={"limit": 1})).json()
    assert page["items"] == []
    assert page["continue"]


async def test_items_are_omitted_at_random_but_repeatably(client: httpx.AsyncClient) -> None:
    names = [f"{letter}{number}" for letter in "ab" for number in range(20)]
    for name in names:
        await create(client, name)
    listings: list[list[str]] = []
    for _ in range(2):
        await inject_faults(client, listing_drop_rate=0.5, seed=7, name_prefix="b")
        listings.append(await listed_names(client))
    assert listings[0] == listings[1]
    assert set(names[:20]) < set(listings[0]) < set(names)
