"""API clients: a replaced client is closed after its calls have ended, and not earlier."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from events.log import Action
from events.provider_config import CredentialsRef, ProviderConfigSpec
from infra.secrets import FileSecrets
from infra.secrets import files as files_module
from reconciler.errors import RefusedError
from reconciler.provider import Effect, Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind, KindRegistry
from reconciler.provider.secrets import SecretKey, Secrets, SecretStores
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool

CONFIG = ProviderConfigSpec("test", "http://test")
DB = SecretKey("billing", "db")
ACTION = Action("a@1", "key", "Create", 1, "default", "x", ())


class Client:
    """Completes a call when the test allows it."""

    def __init__(self) -> None:
        self.may_respond, self.closed = asyncio.Event(), asyncio.Event()

    async def create(self, action: Action) -> Effect:
        assert action is ACTION
        await self.may_respond.wait()
        assert not self.closed.is_set()
        return Effect(None)

    async def close(self) -> None:
        self.closed.set()


async def test_a_replaced_client_is_closed_when_its_calls_have_ended() -> None:
    clients: list[Client] = []

    def connect(config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> Client:
        assert (config.provider, secrets.credential) == ("test", None)
        clients.append(Client())
        return clients[-1]

    kind = Kind("Shape", "test/v1", ProviderConfigSpec, provider="test", connect=connect)  # pyright: ignore[reportArgumentType] - it only creates
    configurations = Configurations()
    configurations.by_name["default"] = CONFIG
    pool = ProviderPool(KindRegistry([kind]), configurations)
    call = asyncio.ensure_future(pool.get("default", "Shape").create(ACTION))
    await asyncio.sleep(0)
    configurations.by_name["default"] = replace(CONFIG, endpoint="http://other")
    assert pool.get("default", "Shape") is pool.get("default", "Shape")
    for _ in range(10):
        await asyncio.sleep(0)
    old_client, new_client = clients
    assert not old_client.closed.is_set()
    old_client.may_respond.set()
    assert await call == Effect(None)
    await old_client.closed.wait()
    assert not new_client.closed.is_set()


async def test_a_replaced_token_is_hidden_in_the_errors_of_the_next_client(tmp_path: Path) -> None:
    """The API may repeat an earlier call's header, and an old client's errors may come later."""

    class Repeating(Client):
        async def create(self, action: Action) -> Effect:
            raise RefusedError(f"{action.external_name}: you sent first&token, second&token")

    def connect(config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> Client:
        assert config.credentials_ref is not None
        credentials.append(secrets.credential)
        return Repeating()

    credentials: list[str | None] = []
    token = tmp_path / "token"
    kind = Kind("Shape", "test/v1", ProviderConfigSpec, provider="test", connect=connect)  # pyright: ignore[reportArgumentType] - it only creates
    configurations = Configurations()
    reference = CredentialsRef(file=str(token))
    configurations.by_name["default"] = replace(CONFIG, credentials_ref=reference)
    pool = ProviderPool(KindRegistry([kind]), configurations)
    clients: list[Provider] = []
    for value in ("first&token", "second&token"):
        token.with_suffix(".new").write_text(value)
        token.with_suffix(".new").replace(token)
        clients.append(pool.get("default", "Shape"))
    assert credentials == ["first&token", "second&token"]
    for client in clients:
        with pytest.raises(RefusedError, match=r"x: you sent \*\*\*, \*\*\*$"):
            await client.create(ACTION)


@pytest.mark.parametrize("what", ["token", "secret"])
async def test_a_value_that_another_process_used_first_is_hidden(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API receives the new value in another call, and returns it in the response to ours."""

    class Repeating(Client):
        async def create(self, action: Action) -> Effect:
            await super().create(action)
            raise RefusedError("you sent second&value")

    monkeypatch.setattr(files_module, "_CHECK_SECONDS", 0.0)
    client = Repeating()
    token, files = tmp_path / "token", FileSecrets(tmp_path / "secrets")
    token.write_text("first&value")
    files.put(DB, "first&value")
    kind = Kind("Shape", "test/v1", ProviderConfigSpec, provider="test", connect=lambda *_: client)  # pyright: ignore[reportArgumentType, reportUnknownLambdaType] - it only creates
    configurations = Configurations()
    reference = CredentialsRef(file=str(token))
    configurations.by_name["default"] = replace(CONFIG, credentials_ref=reference)
    stores = SecretStores({"files": files}, read_replaced=files.read_replaced)
    stores.learn_replaced()
    call = ProviderPool(KindRegistry([kind]), configurations, stores).get("default", "Shape")
    response = asyncio.ensure_future(call.create(ACTION))
    await asyncio.sleep(0)
    if what == "token":
        token.with_suffix(".new").write_text("second&value")
        token.with_suffix(".new").replace(token)
    else:
        FileSecrets(tmp_path / "secrets").put(DB, "second&value")
    client.may_respond.set()
    with pytest.raises(RefusedError, match=r"you sent \*\*\*$"):
        await response
