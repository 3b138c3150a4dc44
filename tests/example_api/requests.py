"""Requests that many tests make."""

from typing import Any

import httpx


def create_client(url: str) -> httpx.AsyncClient:
    """Return a client without TLS; loading its certificates takes longer than most tests."""
    return httpx.AsyncClient(base_url=url, verify=False)


def shape(name: str = "a", **changes: Any) -> dict[str, Any]:
    return {"name": name, "type": "Square", "color": "Red", **changes}


async def create(
    client: httpx.AsyncClient, name: str = "a", key: str | None = None, **changes: Any
) -> httpx.Response:
    return await client.post("/shapes", json=shape(name, **changes), headers=key_header(key))


async def replace(
    client: httpx.AsyncClient, name: str = "a", key: str | None = None, **changes: Any
) -> httpx.Response:
    body = shape(name, **changes)
    return await client.put(f"/shapes/{name}", json=body, headers=key_header(key))


def key_header(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Idempotency-Key": key}


async def inject_faults(client: httpx.AsyncClient, **faults: Any) -> None:
    response = await client.put("/_faults", json=faults)
    assert response.status_code == 200, response.text


async def listed_names(client: httpx.AsyncClient, **query: Any) -> list[str]:
    response = await client.get("/shapes", params=query)
    assert response.status_code == 200, response.text
    return [item["name"] for item in response.json()["items"]]


async def journal(client: httpx.AsyncClient, after: int = 0) -> list[dict[str, Any]]:
    return (await client.get("/_journal", params={"after": after})).json()["entries"]


async def last_sequence(client: httpx.AsyncClient) -> int:
    entries = await journal(client)
    return entries[-1]["sequence"] if entries else 0


async def effects(client: httpx.AsyncClient) -> dict[str, int]:
    return (await client.get("/_stats")).json()["effective"]


def kind(response: httpx.Response) -> str:
    """Return the kind of a problem, which distinguishes it from others with its status."""
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["title"]
    assert problem["detail"]
    return problem["type"].rsplit(":", 1)[1]
