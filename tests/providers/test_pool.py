"""The clients of APIs: a replaced one is closed when its calls have ended, and not before."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from events.log import Action
from events.provider_config import ProviderConfigSpec
from reconciler.provider import Effect
from reconciler.provider.kind import Kind, KindRegistry
from reconciler.provider.secrets import Secrets
from reconciler.roles.configurations import Configurations
from reconciler.roles.providers import ProviderPool

CONFIG = ProviderConfigSpec("test", "http://test")
ACTION = Action("a@1", "key", "Create", 1, "default", "x", ())


class Client:
    """Answers a call when it is told to."""

    def __init__(self) -> None:
        self.answers, self.closed = asyncio.Event(), asyncio.Event()

    async def create(self, action: Action) -> Effect:
        assert action is ACTION
        await self.answers.wait()
        assert not self.closed.is_set()
        return Effect(None)

    async def close(self) -> None:
        self.closed.set()


async def test_a_replaced_client_is_closed_when_its_calls_have_ended() -> None:
    clients: list[Client] = []

    def connect(config: ProviderConfigSpec, secrets: Secrets) -> Client:
        assert (config.provider, secrets.credential) == ("test", None)
        clients.append(Client())
        return clients[-1]

    kind = Kind("Shape", "test/v1", ProviderConfigSpec, provider="test", connect=connect)  # pyright: ignore[reportArgumentType] - it only creates
    configurations = Configurations()
    configurations.by_name["default"] = CONFIG
    pool = ProviderPool(KindRegistry([kind]), configurations)
    calling = asyncio.ensure_future(pool.get("default", "Shape").create(ACTION))
    await asyncio.sleep(0)
    configurations.by_name["default"] = replace(CONFIG, endpoint="http://other")
    assert pool.get("default", "Shape") is pool.get("default", "Shape")
    for _ in range(10):
        await asyncio.sleep(0)
    old, new = clients
    assert not old.closed.is_set()
    old.answers.set()
    assert await calling == Effect(None)
    await old.closed.wait()
    assert not new.closed.is_set()
