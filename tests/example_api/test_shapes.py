"""Creating, reading, replacing and deleting shapes, and refused requests."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.example_api.requests import create, effects, kind, replace, shape


async def test_a_created_shape_is_returned_as_in_the_response(client: httpx.AsyncClient) -> None:
    created = await create(client, "a", labels={"owner": "me"})
    assert created.status_code == 201
    assert created.headers["location"] == "/shapes/a"
    assert created.headers["etag"] == '"1"'
    document = created.json()
    assert shape("a", labels={"owner": "me"}).items() <= document.items()
    assert document["version"] == 1
    age = datetime.now(UTC) - datetime.fromisoformat(document["createdAt"])
    assert timedelta(0) <= age < timedelta(minutes=1)
    response = await client.get("/shapes/a")
    assert response.status_code == 200
    assert response.headers["etag"] == '"1"'
    assert response.json() == document


async def test_a_replacement_raises_the_version_and_keeps_the_identity(
    client: httpx.AsyncClient,
) -> None:
    created = (await create(client, "a", labels={"owner": "me"})).json()
    replaced = await replace(client, "a", color="Blue")
    assert replaced.status_code == 200
    assert replaced.headers["etag"] == '"2"'
    assert replaced.json() == created | {"color": "Blue", "labels": {}, "version": 2}


async def test_a_deleted_shape_does_not_exist_and_its_name_is_free(
    client: httpx.AsyncClient,
) -> None:
    first = (await create(client, "a")).json()
    deleted = await client.delete("/shapes/a")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert (await client.get("/shapes/a")).status_code == 404
    second = (await create(client, "a")).json()
    assert second["uid"] != first["uid"]
    assert second["version"] == 1


async def test_a_taken_name_is_refused(client: httpx.AsyncClient) -> None:
    await create(client, "a")
    refused = await create(client, "a", color="Blue")
    assert (refused.status_code, kind(refused)) == (409, "name-taken")
    assert (await client.get("/shapes/a")).json()["color"] == "Red"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_name_that_does_not_exist_is_not_found(
    client: httpx.AsyncClient, method: str
) -> None:
    response = await client.request(method, "/shapes/a", json=shape("a"))
    assert (response.status_code, kind(response)) == (404, "no-such-shape")


@pytest.mark.parametrize(
    ("if_match", "status"),
    [('"1"', 200), ("*", 200), ('"9", "1"', 200), ('"2"', 412), ('W/"1"', 412), ("1", 412)],
)
async def test_if_match_guards_a_replacement(
    client: httpx.AsyncClient, if_match: str, status: int
) -> None:
    await create(client, "a")
    headers = {"If-Match": if_match}
    response = await client.put("/shapes/a", json=shape("a", color="Blue"), headers=headers)
    assert response.status_code == status
    assert (await effects(client))["updates"] == (status == 200)


async def test_if_match_guards_a_deletion(client: httpx.AsyncClient) -> None:
    await create(client, "a")
    refused = await client.delete("/shapes/a", headers={"If-Match": '"7"'})
    assert (refused.status_code, kind(refused)) == (412, "version-mismatch")
    assert (await client.delete("/shapes/a", headers={"If-Match": '"1"'})).status_code == 204


async def test_one_of_several_concurrent_replacements_of_a_version_wins(
    client: httpx.AsyncClient,
) -> None:
    await create(client, "a")
    headers = {"If-Match": '"1"'}
    responses = await asyncio.gather(
        *(client.put("/shapes/a", json=shape("a"), headers=headers) for _ in range(8))
    )
    assert sorted(response.status_code for response in responses) == [200] + [412] * 7


@pytest.mark.parametrize(
    "body",
    [
        {"name": "a", "type": "Square"},
        shape(type="Blob"),
        shape(color="red"),
        shape(name=""),
        shape(name="Upper"),
        shape(name="-a"),
        shape(name="a\n"),
        shape(name="a" * 64),
        shape(labels=None),
        shape(labels={"a": 1}),
        shape(labels={"a": "x" * 256}),
        shape(version="1"),
        shape(uid=7),
        [],
        7,
    ],
)
async def test_an_invalid_shape_is_refused(client: httpx.AsyncClient, body: Any) -> None:
    response = await client.post("/shapes", json=body)
    assert (response.status_code, kind(response)) == (422, "not-valid")
    assert (await effects(client))["creates"] == 0


async def test_read_only_and_unknown_members_are_ignored(client: httpx.AsyncClient) -> None:
    created = await create(client, "a", uid="mine", version=99, createdAt="then", size=3)
    assert created.status_code == 201
    document = created.json()
    assert document["uid"] != "mine"
    assert document["version"] == 1
    assert "size" not in document


async def test_a_replacement_cannot_rename(client: httpx.AsyncClient) -> None:
    await create(client, "a")
    response = await client.put("/shapes/a", json=shape("b"))
    assert (response.status_code, kind(response)) == (422, "not-valid")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b'{"name": "\xff"}', b'{"x":' + b"[" * 100_000, b'"\\ud800"'],
)
async def test_a_body_that_is_not_json_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    response = await client.post("/shapes", content=body)
    assert (response.status_code, kind(response)) == (400, "malformed-json")


@pytest.mark.parametrize("has_length", [True, False])
async def test_a_body_larger_than_a_mebibyte_is_refused(
    client: httpx.AsyncClient, *, has_length: bool
) -> None:
    body = b" " * (1024 * 1024 + 1)

    async def chunks():
        yield body

    response = await client.post("/shapes", content=body if has_length else chunks())
    assert (response.status_code, kind(response)) == (413, "too-large")
    assert (await client.get("/healthz")).status_code == 200


async def test_a_body_of_a_mebibyte_is_read(client: httpx.AsyncClient) -> None:
    body = b'{"name":"a","type":"Square","color":"Red"}'
    response = await client.post("/shapes", content=body.ljust(1024 * 1024))
    assert response.status_code == 201


async def test_an_unknown_route_is_a_problem(client: httpx.AsyncClient) -> None:
    for path in ("/", "/shape", "/shapes/", "/shapes/a/b", "/shapes/a%2Fb"):
        response = await client.get(path)
        assert (response.status_code, response.json()["title"]) == (404, "Not Found")
        assert response.headers["content-type"] == "application/problem+json"


async def test_a_wrong_method_is_a_problem_that_names_the_allowed_ones(
    client: httpx.AsyncClient,
) -> None:
    response = await client.patch("/shapes")
    assert response.status_code == 405
    assert response.headers["content-type"] == "application/problem+json"
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
