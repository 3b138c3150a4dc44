"""Fault 27: an API stores its first response for a key, a 409, and marks repeats with no header."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from events.log import ActionDecided, ActionFailed, ActionSucceeded
from tests.scenarios.harness import Human, World, api_config, every, only


class KeepingApi:
    """The contract of the shapes API, implemented separately: a 409 is stored like any response.

    ``passing``: names that are in use only at the first request; ``running``:
    number of repeats of a key whose request is reported as still running.
    """

    def __init__(self, *, passing: set[str], running: int = 0) -> None:
        self.passing = passing
        self.running = running
        self.things: dict[str, dict[str, Any]] = {}
        self.stored_responses: dict[str, tuple[int, dict[str, Any]]] = {}
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[KeepingApi]:
        app = web.Application()
        app.router.add_get("/shapes", self._list)
        app.router.add_post("/shapes", self._create)
        app.router.add_get("/shapes/{name}", self._read)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield self
        await runner.cleanup()

    async def _list(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        shapes = [each for name, each in self.things.items() if name.startswith(prefix)]
        return web.json_response({"items": shapes})

    async def _read(self, request: web.Request) -> web.Response:
        existing = self.things.get(request.match_info["name"])
        return web.json_response(existing or {"detail": "none"}, status=200 if existing else 404)

    async def _create(self, request: web.Request) -> web.Response:
        key = request.headers["Idempotency-Key"]
        if self.running:
            self.running -= 1
            detail = {"detail": "a request with this Idempotency-Key is still running"}
            return web.json_response(detail, status=409)
        if key not in self.stored_responses:
            self.stored_responses[key] = self._respond_first(await request.json())
        status, body = self.stored_responses[key]
        return web.json_response(body, status=status)

    def _respond_first(self, body_in_request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = body_in_request["name"]
        if name in self.passing:
            self.passing.remove(name)  # another client's object, which is deleted before any read
            return 409, {"detail": "the name is taken"}
        self.things[name] = {**body_in_request, "uid": uuid.uuid4().hex, "version": 1}
        return 201, self.things[name]


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[World]:
    """Run a reconciler on a bus; each test runs its own API."""

    class IdleHuman(Human):
        async def reset(self) -> None: ...

    human = IdleHuman("http://127.0.0.1:9")
    async with World(tmp_path / "nats", human).open() as world:
        await world.start_reconciler()
        yield world
    await human.close()


async def test_a_stored_conflict_ends_its_action_and_the_next_action_has_a_new_key(bus: World):
    async with KeepingApi(passing={"foo"}).open() as api:
        await bus.configure(api_config(api.url))
        await bus.declare("foo")
        await bus.until_outcome("foo", "Converged", generation=1)
        facts = await bus.facts("foo")
        await bus.stop_reconciler()
    first, second = (each.action for each in every(ActionDecided, facts))
    assert first.idempotency_key != second.idempotency_key
    assert list(api.stored_responses) == [first.idempotency_key, second.idempotency_key]
    failed = only(ActionFailed, facts)
    assert (failed.action_id, failed.error.error_class) == (first.action_id, "Conflict")


async def test_the_worker_waits_for_a_request_that_is_still_running_under_the_key(bus: World):
    async with KeepingApi(passing=set(), running=3).open() as api:
        await bus.configure(api_config(api.url))
        await bus.declare("foo")
        await bus.until_outcome("foo", "Converged", generation=1)
        facts = await bus.facts("foo")
        await bus.stop_reconciler()
    action = only(ActionDecided, facts).action
    assert {each.error.error_class for each in every(ActionFailed, facts)} == {"Unknown"}
    assert only(ActionSucceeded, facts).action_id == action.action_id
    assert list(api.stored_responses) == [action.idempotency_key]
