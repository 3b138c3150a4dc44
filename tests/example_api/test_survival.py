"""Acknowledged writes survive SIGKILL exactly once."""

import asyncio
import uuid
from collections import Counter
from itertools import count
from pathlib import Path

import httpx

from tests.example_api.requests import create, create_client, journal, last_sequence, listed_names
from tests.faulty_api import FaultyApi

CONNECTIONS = 32
ACKNOWLEDGED_BEFORE_THE_KILL = 250

Responses = dict[str, httpx.Response]


def key_of(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


async def create_until_killed(
    url: str, worker: int, names: set[str], responses: Responses, enough: asyncio.Event
) -> None:
    async with create_client(url) as client:
        for number in count():
            name = f"w{worker}-{number}"
            names.add(name)
            try:
                responses[name] = await create(client, name, key_of(name))
            except httpx.TransportError:
                return
            if len(responses) >= ACKNOWLEDGED_BEFORE_THE_KILL:
                enough.set()


async def test_every_acknowledged_create_survives_a_kill_under_load(
    own_process: FaultyApi, tmp_path: Path
) -> None:
    url = await own_process.start(tmp_path / "data")
    names: set[str] = set()
    responses: Responses = {}
    enough = asyncio.Event()
    async with asyncio.TaskGroup() as load:
        for worker in range(CONNECTIONS):
            load.create_task(create_until_killed(url, worker, names, responses, enough))
        await enough.wait()
        await own_process.kill()
    assert {response.status_code for response in responses.values()} == {201}

    assert await own_process.start(tmp_path / "data", port=own_process.port) == url
    async with create_client(url) as client:
        listed = {item["name"]: item for item in (await client.get("/shapes")).json()["items"]}
        for name, response in responses.items():
            assert listed[name] == response.json()
            replay = await create(client, name, key_of(name))
            assert replay.headers["idempotent-replayed"] == "true"
            assert (replay.status_code, replay.content) == (201, response.content)
        for name in names - responses.keys():  # with or without an effect, which is unknown
            assert (await create(client, name, key_of(name))).status_code == 201
        created = Counter(entry["name"] for entry in await journal(client))
        assert created == dict.fromkeys(names, 1)
        assert await listed_names(client) == sorted(names)
        statistics = (await client.get("/_stats")).json()
        assert statistics["shapes"] == statistics["effective"]["creates"] == len(names)


async def test_resets_and_sequences_survive_a_restart(
    own_process: FaultyApi, tmp_path: Path
) -> None:
    url = await own_process.start(tmp_path / "data")
    async with create_client(url) as client:
        for name in ("a", "b"):
            await create(client, name)
        await client.delete("/_stats")
        await create(client, "c")
    await own_process.stop()
    await own_process.start(tmp_path / "data", port=own_process.port)
    async with create_client(url) as client:
        assert (await client.get("/_stats")).json()["effective"]["creates"] == 1
        await create(client, "d")
        assert await last_sequence(client) == 4
