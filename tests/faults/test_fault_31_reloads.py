"""Fault 31: the server reloads its configuration while roles start, and while a key is revoked."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.embedded import EmbeddedServer
from infra.jetstream.access import Access
from reconciler.sdk import connect as connect_sdk
from reconciler.wiring import ROLES, initialize, open_connection, run_roles
from tests.faulty_api import FaultyApi
from tests.security.guarded import provider_config, shape
from tests.security.keys import Pair

STARTS = 20
REVOCATIONS = 5


@dataclass
class ReloadingBus:
    """A server whose users change continually."""

    bus: EmbeddedServer
    api: FaultyApi
    key: Path
    users: str
    reloads: int = 0

    def access(self) -> Access:
        return Access(nkey=self.key)

    def allow_only(self, pair: Pair) -> None:
        """Reload the configuration so that only this key and an unused one may connect."""
        config = self.bus.data_dir / "nats.conf"
        users = _users(pair)
        config.write_text(config.read_text().replace(self.users, users))
        self.users = users
        self.reloads += 1
        os.kill(self.bus.pid, signal.SIGHUP)

    async def reload_repeatedly(self, pair: Pair) -> None:
        while True:
            self.allow_only(pair)
            await asyncio.sleep(random.random() * 0.02)

    async def assert_converges(self, name: str) -> None:
        async with connect_sdk(self.bus.url, source="t", access=self.access()) as client:
            await client.declare(provider_config(self.api.url))
            await client.declare(shape("default", name))
            outcome = await client.wait_for(f"default/Shape/{name}", generation=1)
            assert outcome.outcome == "Converged"


def _users(pair: Pair) -> str:
    nobody = Pair.of_user().public
    return f'authorization {{ users: [ {{ nkey: "{pair.public}" }}, {{ nkey: "{nobody}" }} ] }}'


@pytest.fixture
def pair() -> Pair:
    return Pair.of_user()


@pytest.fixture
async def reloading(tmp_path: Path, pair: Pair) -> AsyncIterator[ReloadingBus]:
    bus = ReloadingBus(EmbeddedServer(), FaultyApi(), tmp_path / "all.nk", _users(pair))
    pair.write(bus.key)
    await bus.bus.start(tmp_path / "nats", extra_config=bus.users)
    await bus.api.start(tmp_path / "api")
    yield bus
    await bus.api.stop()
    await bus.bus.stop()


async def test_roles_start_while_the_server_reloads(reloading: ReloadingBus, pair: Pair) -> None:
    url = reloading.bus.url
    reloads = asyncio.ensure_future(reloading.reload_repeatedly(pair))
    try:
        for number in range(STARTS):
            async with open_connection(url, access=reloading.access()) as nc:
                await initialize(nc)
                async with run_roles(nc, ROLES):
                    if number == STARTS - 1:
                        reloads.cancel()
                        await reloading.assert_converges("after")
    finally:
        reloads.cancel()
    assert reloading.reloads >= STARTS


async def test_keys_are_revoked_while_roles_start(reloading: ReloadingBus, pair: Pair) -> None:
    """And again while they reconnect, with the new key either before or after the reload."""
    async with open_connection(reloading.bus.url, access=reloading.access()) as nc:
        await initialize(nc)
        async with run_roles(nc, ROLES):
            for number in range(REVOCATIONS):
                fresh = Pair.of_user()
                if number % 2:
                    fresh.write(reloading.key)
                reloading.allow_only(fresh)
                await asyncio.sleep(random.random() * 0.3)
                fresh.write(reloading.key)
            await reloading.assert_converges("after")
            assert nc.stats["reconnects"] >= 1
