"""A shared API whose listings one tenant makes useless: the objects of others are still managed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from events.intake import Declared
from events.manifest import RECONCILER_API_VERSION, Fields, Manifest, Metadata
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import PROVIDER_CONFIG_KIND, Breaker, Limits
from infra.providers import connections
from tests.scenarios.harness import World, api_config

DEFINITION = ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, "Card")
CONFIG = ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, "cards")
PAGING = {"by": "Offset", "parameter": "offset", "size": "limit"}
PAGE_SIZE = 3


class CardsApi:
    """Cards by name, in pages by offset. ``before_page`` runs before each page."""

    def __init__(self) -> None:
        self.cards: dict[str, dict[str, Any]] = {}
        self.before_page: Callable[[], None] = lambda: None
        self.listing_seconds = 0.0
        self.listings = 0
        self.versions = 0

    def routes(self) -> list[web.AbstractRouteDef]:
        return [
            web.get("/cards", self._list),
            web.post("/cards", self._create),
            web.get("/cards/{name}", self._read),
            web.put("/cards/{name}", self._update),
            web.delete("/cards/{name}", self._delete),
        ]

    def add(self, name: str) -> None:
        self.cards[name] = {"name": name, "color": "red", "labels": {}, "uid": f"foreign-{name}"}

    async def _list(self, request: web.Request) -> web.Response:
        self.listings += 1
        self.before_page()
        await asyncio.sleep(self.listing_seconds)
        start, limit = (int(request.query.get(each, "0")) for each in ("offset", "limit"))
        items = [self.cards[each] for each in sorted(self.cards)]
        return web.json_response({"items": items[start : start + limit] if limit else items})

    async def _create(self, request: web.Request) -> web.Response:
        card = await request.json()
        if card["name"] in self.cards:
            raise web.HTTPConflict
        self.versions += 1
        self.cards[card["name"]] = {**card, "uid": f"u{self.versions}"}
        return web.json_response(self.cards[card["name"]], status=201)

    def _find(self, request: web.Request) -> dict[str, Any]:
        if request.match_info["name"] not in self.cards:
            raise web.HTTPNotFound
        return self.cards[request.match_info["name"]]

    async def _read(self, request: web.Request) -> web.Response:
        return web.json_response(self._find(request))

    async def _update(self, request: web.Request) -> web.Response:
        card = self._find(request)
        card.update(await request.json())
        return web.json_response(card)

    async def _delete(self, request: web.Request) -> web.Response:
        return web.json_response(self.cards.pop(self._find(request)["name"]))


@pytest.fixture
def api() -> CardsApi:
    return CardsApi()


@pytest.fixture
async def url(api: CardsApi) -> AsyncIterator[str]:
    application = web.Application()
    application.add_routes(api.routes())
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def definition(**listing: Any) -> Declared:
    rest: Fields = {
        "uid": "uid",
        "metadata": {"at": "labels"},
        "read": {"path": "/cards/{name}"},
        "create": {"path": "/cards", "conflict": [409], "shows": "."},
        "update": {"path": "/cards/{name}", "shows": "."},
        "delete": {"path": "/cards/{name}"},
        "list": {"path": "/cards", "items": "items", **listing},
    }
    spec: Fields = {
        "apiVersion": "cards/v1",
        "provider": "cards",
        "fields": {"color": {}},
        "rest": rest,
    }
    metadata = Metadata(DEFINITION.name, DEFINITION.namespace)
    return Declared(Manifest(RECONCILER_API_VERSION, KIND_DEFINITION_KIND, metadata, spec))


async def start(world: World, url: str, declared: Declared) -> None:
    await world.start_reconciler()
    assert (await world.ask(DEFINITION, declared)).accepted
    breaker = Breaker(failures=2, initial_seconds=0.2, max_seconds=60.0)
    limits = Limits(page_size=PAGE_SIZE, request_timeout_seconds=1)
    config = api_config(url, provider="cards", limits=limits, breaker=breaker)
    await world.configure(config, CONFIG.name)


def card(name: str, color: str) -> Manifest:
    fields = {"color": color, "providerConfigRef": {"name": CONFIG.name}}
    return Manifest("cards/v1", "Card", Metadata(name), fields)


async def until_color(world: World, api: CardsApi, name: str, color: str) -> None:
    async def is_written() -> bool:
        return api.cards.get(name, {}).get("color") == color

    await world.until(is_written, f"{name} is {color}")


async def until_listed(world: World, api: CardsApi, pages: int) -> None:
    goal = api.listings + pages

    async def is_listed() -> bool:
        return api.listings >= goal

    await world.until(is_listed, f"{pages} more pages were read")


async def test_a_lost_object_is_recreated_while_a_tenant_changes_every_listing(
    bare_world: World, api: CardsApi, url: str
) -> None:
    for number in range(9):
        api.add(f"a{number}")
    await start(bare_world, url, definition(paging=PAGING))
    await bare_world.declare_all([card("z1", "green"), card("z2", "green")])
    await until_color(bare_world, api, "z2", "green")
    await bare_world.until_settled()
    pages = 0

    def churn() -> None:
        nonlocal pages
        pages += 1
        if pages % 3 == 0:  # a page has two more objects than the previous one
            api.add(f"a0-{pages:06}")

    api.before_page = churn
    await until_listed(bare_world, api, 30)
    del api.cards["z1"]
    await until_color(bare_world, api, "z1", "green")
    api.before_page = lambda: None
    outcomes = await bare_world.outcomes(CONFIG)
    assert all(each.reason != "BreakerOpen" for each in outcomes)


@pytest.mark.parametrize("is_large", [True, False], ids=["large", "slow"])
async def test_changes_are_applied_while_no_listing_can_complete(
    bare_world: World,
    api: CardsApi,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    is_large: bool,
) -> None:
    monkeypatch.setattr(connections, "MAX_BODY_BYTES", 10_000)
    await start(bare_world, url, definition())
    await bare_world.declare_all([card("z1", "green")])
    await until_color(bare_world, api, "z1", "green")
    await bare_world.until_settled()
    if is_large:
        for number in range(200):
            api.add(f"a{number}")
    else:
        api.listing_seconds = 3600.0
    await until_listed(bare_world, api, 4)
    await bare_world.declare_all([card("z1", "blue")])
    await until_color(bare_world, api, "z1", "blue")
    outcomes = await bare_world.outcomes(CONFIG)
    assert all(each.reason != "BreakerOpen" for each in outcomes)
