"""Listings: order, filters, pages, tokens."""

from typing import Any

import httpx
import pytest

from tests.example_api.requests import create, inject_faults, kind, listed_names, replace


async def create_all(client: httpx.AsyncClient, *names: str) -> None:
    for name in names:
        assert (await create(client, name)).status_code == 201


async def get_page(client: httpx.AsyncClient, **query: Any) -> tuple[list[str], str | None]:
    response = await client.get("/shapes", params=query)
    assert response.status_code == 200, response.text
    page = response.json()
    return [item["name"] for item in page["items"]], page.get("continue")


async def test_an_empty_listing_is_one_empty_page(client: httpx.AsyncClient) -> None:
    assert (await client.get("/shapes")).json() == {"items": []}


async def test_without_a_limit_all_shapes_are_listed_in_name_order(
    client: httpx.AsyncClient,
) -> None:
    await create_all(client, "b", "a-1", "c", "a", "a1", "10", "9")
    assert await get_page(client) == (["10", "9", "a", "a-1", "a1", "b", "c"], None)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 5000])
async def test_the_pages_together_are_the_listing(client: httpx.AsyncClient, limit: int) -> None:
    await create_all(client, "a", "b", "c", "d", "e")
    names, token = await get_page(client, limit=limit)
    while token:
        page, token = await get_page(client, limit=limit, **{"continue": token})
        assert 1 <= len(page) <= limit
        names += page
    assert names == ["a", "b", "c", "d", "e"]


async def test_an_unchanged_shape_is_listed_once_during_other_changes(
    client: httpx.AsyncClient,
) -> None:
    await create_all(client, "b", "d", "f", "h")
    first, token = await get_page(client, limit=2)
    assert first == ["b", "d"]
    await create_all(client, "a", "c", "e")  # two before the next page, one in it
    await client.delete("/shapes/d")  # the page's last item, where the next page starts
    await client.delete("/shapes/f")
    await replace(client, "h", color="Blue")
    second, token = await get_page(client, limit=2, **{"continue": token})
    assert (second, token) == (["e", "h"], None)


async def test_listed_items_equal_the_individual_shapes(client: httpx.AsyncClient) -> None:
    await create(client, "a", labels={"quote": '"\\\u0000é'})
    await replace(client, "a", color="Blue")
    existing = (await client.get("/shapes/a")).json()
    assert (await client.get("/shapes")).json() == {"items": [existing]}


async def test_a_prefix_narrows_the_listing(client: httpx.AsyncClient) -> None:
    await create_all(client, "app", "app-1", "apple", "ap", "b")
    assert await listed_names(client, prefix="app") == ["app", "app-1", "apple"]
    assert await listed_names(client, prefix="zzz") == []
    assert await listed_names(client, prefix="") == ["ap", "app", "app-1", "apple", "b"]


async def test_all_labels_must_match(client: httpx.AsyncClient) -> None:
    await create(client, "a", labels={"owner": "me", "stage": "x=y"})
    await create(client, "b", labels={"owner": "me"})
    await create(client, "c")
    assert await listed_names(client, label="owner=me") == ["a", "b"]
    assert await listed_names(client, label=["owner=me", "stage=x=y"]) == ["a"]
    assert await listed_names(client, label=["owner=me", "owner=you"]) == []
    first, token = await get_page(client, label="owner=me", limit=1)
    second, end = await get_page(client, label="owner=me", limit=1, **{"continue": token})
    assert (first, second, end) == (["a"], ["b"], None)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=5001", "limit=", "limit=x", "limit=1.5", "limit=-1", "label=owner"]
)
async def test_a_malformed_query_is_refused(client: httpx.AsyncClient, query: str) -> None:
    response = await client.get(f"/shapes?{query}")
    assert (response.status_code, kind(response)) == (400, "bad-query")


async def test_an_empty_token_is_the_first_page(client: httpx.AsyncClient) -> None:
    await create_all(client, "a")
    assert await get_page(client, **{"continue": ""}) == (["a"], None)


@pytest.mark.parametrize("token", ["x", "%%%", "é", "AAAA", "A" * 200, "eyJhIjoxfQ=="])
async def test_a_foreign_token_is_expired(client: httpx.AsyncClient, token: str) -> None:
    response = await client.get("/shapes", params={"continue": token})
    assert (response.status_code, kind(response)) == (410, "continue-token-expired")


async def test_a_token_is_bound_to_its_filters(client: httpx.AsyncClient) -> None:
    await create_all(client, "a", "b")
    _, token = await get_page(client, limit=1)
    response = await client.get("/shapes", params={"continue": token, "prefix": "b"})
    assert (response.status_code, kind(response)) == (410, "continue-token-expired")


async def test_an_old_token_is_expired(client: httpx.AsyncClient) -> None:
    await create_all(client, "a", "b")
    _, token = await get_page(client, limit=1)
    await inject_faults(client, listing_token_seconds=0)
    response = await client.get("/shapes", params={"continue": token})
    assert (response.status_code, kind(response)) == (410, "continue-token-expired")
    assert await get_page(client, limit=1) != ([], None)
