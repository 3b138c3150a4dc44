"""The contract suite for kinds with the quirks of real APIs, and what those refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec
from reconciler.errors import RefusedError
from reconciler.provider import Effect, Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import ProviderContract
from reconciler.provider.http_faults import HttpFaultContract
from reconciler.provider.secrets import Secrets
from shapes_api.kinds.shapes import ShapesProvider
from tests.faulty_api import FaultyApi
from tests.faulty_api.kinds import EXPIRING, FIXED, NUMBERED, UNLISTED, WHITE, WhiteProvider


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    api = FaultyApi()
    yield await api.start(tmp_path_factory.mktemp("api"))
    await api.stop()


class OptionContract(ProviderContract):
    fields: ClassVar[Fields] = {"type": "Square", "color": "Red"}
    other_fields: ClassVar[Fields] = {"type": "Square", "color": "Blue"}
    refused_fields: ClassVar[Fields] = {"type": "Impossible"}

    @pytest.fixture
    def endpoint(self, api_url: str) -> str:
        return api_url


class TestFixed(OptionContract):
    kind = FIXED

    async def test_a_fixed_field_cannot_be_changed(self, provider: Provider, name: str) -> None:
        created_object = await self.create_one(provider, name)
        with pytest.raises(RefusedError, match="cannot be changed"):
            await provider.update(
                self.action_on("Update", created_object, {"type": "Circle", "color": "Red"})
            )
        assert await provider.read(name) == created_object


class TestExpiring(OptionContract):
    kind = EXPIRING

    async def test_a_write_renews_an_expired_object(
        self, provider: Provider, name: str, api_url: str
    ) -> None:
        created_object = await self.create_one(provider, name)
        assert self.kind.renewal_time(created_object.fields, created_object) > soon()  # type: ignore[operator]
        async with httpx.AsyncClient(base_url=api_url) as http:
            (await http.put("/_expired", params={"name": name})).raise_for_status()
        expired = await provider.read(name)
        assert expired is not None
        assert self.kind.renewal_time(expired.fields, expired) < soon()  # type: ignore[operator]
        renewed = (await provider.update(self.action_on("Update", expired, self.fields))).object
        assert renewed is not None
        assert self.kind.renewal_time(renewed.fields, renewed) > soon()  # type: ignore[operator]


class TestUnlisted(OptionContract):
    kind = UNLISTED

    async def test_there_is_no_listing(self, api_url: str) -> None:
        async with httpx.AsyncClient(base_url=api_url) as http:
            assert (await http.get("/as/unlisted/shapes")).status_code == 405


class TestWhite(OptionContract, HttpFaultContract):
    kind = WHITE

    async def test_new_objects_must_be_white(self, api_url: str, name: str) -> None:
        async with httpx.AsyncClient(base_url=api_url) as http:
            body = {"name": name, "type": "Square", "color": "Red"}
            assert (await http.post("/as/white/shapes", json=body)).status_code == 422

    @pytest.mark.parametrize("broken", ["Unmarked", "Hasty"])
    async def test_the_suite_detects_providers_that_cannot_resume_between_calls(
        self, endpoint: str, name: str, broken: str
    ) -> None:
        provider_of = {"Unmarked": Unmarked, "Hasty": Hasty}[broken]
        provider = provider_of(ProviderConfigSpec("white", endpoint), Secrets(), CallPermit())
        case = self.test_a_create_interrupted_before_any_request_continues_when_repeated
        with pytest.raises(pytest.fail.Exception, match="before request"):
            await case(provider, name)
        await provider.close()


class Unmarked(WhiteProvider):
    """Marks the object only in the second call."""

    async def create(self, action: Action) -> Effect:
        white: Fields = {**action.fields, "color": "White"}
        created_object = (
            await ShapesProvider.create(self, replace(action, fields=white, labels={}))
        ).object
        return await self.update(
            replace(
                action,
                idempotency_key=f"{action.idempotency_key}/2",
                uid=created_object and created_object.uid,
            )
        )


class Hasty(WhiteProvider):
    """Treats an unfinished object as finished when a creation is repeated."""

    async def create(self, action: Action) -> Effect:
        unfinished = await self.read(action.external_name)
        return (
            await super().create(action)
            if unfinished is None
            else Effect(unfinished, replayed=True)
        )


class TestNumbered(OptionContract, HttpFaultContract):
    kind = NUMBERED

    async def test_two_objects_with_the_same_name_are_distinguished_by_their_ids(
        self, provider: Provider, name: str
    ) -> None:
        first, second = await self.create_one(provider, name), await self.create_one(provider, name)
        assert first.name == second.name == name
        await provider.update(self.action_on("Update", second, self.other_fields))
        assert await provider.read(name, first.uid) == first
        await provider.delete(self.action_on("Delete", first))
        assert await provider.read(name, first.uid) is None
        assert self.is_as_declared(await provider.read(name, second.uid), self.other_fields)


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=30)
