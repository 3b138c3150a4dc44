"""What a response proves: absence needs the collection, a write needs a prior read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from events.provider_config import ProviderConfigSpec
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    UnknownResultError,
    UnreadableObjectsError,
)
from reconciler.provider import WatchingProvider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import action, with_version_of
from reconciler.provider.http_faults import Proxy, build_response
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import Secrets
from tests.rest.kinds import example
from tests.rest.servers import API_KEY
from tests.rest.test_contract import HostProxy
from tests.rest.test_stories import build_direct_client

FIGURE, ROUTE = example("figure"), example("web-route")
ROUTES = "/config/apps/http/servers/main/routes"


def connect_provider(kind: Kind, url: str):
    assert kind.connect is not None
    return kind.connect(ProviderConfigSpec(kind.provider, url), Secrets(None), CallPermit())


@pytest.fixture
async def proxy(shapes_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(shapes_url) as running:
        yield running


async def test_a_404_proves_nothing_if_the_collection_does_not_exist_either(proxy: Proxy):
    provider = connect_provider(FIGURE, proxy.url)
    proxy.plan.extend([build_response(404), build_response(404)])
    with pytest.raises(NotDoneError, match=r"check spec\.endpoint"):
        await provider.read("foo")
    proxy.plan.extend([build_response(404), build_response(200, '{"items": []}')])
    assert await provider.read("foo") is None
    await provider.close()


async def test_a_listed_object_is_not_absent(proxy: Proxy):
    provider = connect_provider(FIGURE, proxy.url)
    shape = {"name": "foo", "uid": "u", "version": 1, "type": "Circle", "color": "Red"}
    proxy.plan.extend([build_response(404), build_response(200, json.dumps({"items": [shape]}))])
    with pytest.raises(NotDoneError, match="'foo' is listed, but reading it returned 404"):
        await provider.read("foo")
    await provider.close()


async def test_an_html_page_from_a_gateway_does_not_confirm_a_deletion(proxy: Proxy):
    provider = connect_provider(FIGURE, proxy.url)
    shape = {"name": "foo", "uid": "u", "version": 1, "type": "Circle", "color": "Red"}
    proxy.plan.extend([build_response(200, json.dumps(shape)), build_response(200, "<html>")])
    with pytest.raises(UnknownResultError, match="invalid body"):
        await provider.delete(action("Delete", "foo", {}))
    await provider.close()


@pytest.mark.parametrize("body", ["null", "[]", "7", "[" * 100_000])
async def test_a_response_without_an_object_does_not_prove_absence(proxy: Proxy, body: str):
    provider = connect_provider(FIGURE, proxy.url)
    proxy.plan.append(build_response(200, body))
    with pytest.raises(NotDoneError, match="invalid body"):
        await provider.read("foo")
    await provider.close()


@pytest.mark.parametrize("body", ["[]", "{}", '{"items": {}}'])
async def test_an_invalid_listing_raises_and_proves_nothing(proxy: Proxy, body: str):
    provider = connect_provider(FIGURE, proxy.url)
    proxy.plan.append(build_response(200, body))
    with pytest.raises(NotDoneError, match="invalid body"):
        _ = [page async for page in provider.pages(ProviderConfigSpec("a", "b").scope, page_size=9)]
    await provider.close()


async def test_a_listing_with_a_nameless_object_does_not_prove_absence(proxy: Proxy):
    provider = connect_provider(FIGURE, proxy.url)
    proxy.plan.append(build_response(200, '{"items": [{"uid": "a"}]}'))
    with pytest.raises(UnreadableObjectsError, match="an object without a name") as caught:
        _ = [page async for page in provider.pages(ProviderConfigSpec("a", "b").scope, page_size=9)]
    assert list(caught.value.objects) == [(None, None)]
    assert caught.value.may_have("foo")
    await provider.close()


async def test_a_temporary_conflict_proves_nothing(proxy: Proxy):
    provider = connect_provider(FIGURE, proxy.url)
    create = action("Create", "foo", {"type": "Circle", "color": "Red"})
    for response in (
        build_response(409, '{"detail": "A request with this key is still running"}'),
        build_response(409, '{"detail": "taken"}', Retry_After="3"),
    ):
        proxy.plan.append(response)
        with pytest.raises(UnknownResultError):
            await provider.create(create)
    await provider.close()


async def test_a_write_between_our_read_and_our_write_is_not_overwritten(
    caddy_url: str,
):
    """Caddy's ETag is bound to the read; a write in between leads to a conflict."""
    fields = {
        "match": [{"path": ["/a"]}],
        "handle": [{"handler": "reverse_proxy", "upstreams": [{"dial": "127.0.0.1:9"}]}],
    }
    async with build_direct_client(caddy_url) as client:

        class EditingProxy(HostProxy):
            async def _forward(self, head: str, body: bytes) -> bytes:
                if head.startswith("PATCH"):
                    (
                        await client.patch("/id/web/match", json=[{"path": ["/b"]}])
                    ).raise_for_status()
                return await super()._forward(head, body)

        (await client.patch(ROUTES, json=[])).raise_for_status()
        async with EditingProxy(caddy_url) as editing_proxy:
            provider = connect_provider(ROUTE, editing_proxy.url)
            created_object = (await provider.create(action("Create", "web", fields))).object
            assert created_object is not None
            update = with_version_of(
                action("Update", "web", {**fields, "match": [{"path": ["/c"]}]}), created_object
            )
            with pytest.raises(ConflictError) as caught:
                await provider.update(update)
            assert caught.value.obstacle is not None
            assert caught.value.obstacle.fields["match"] == [{"path": ["/b"]}]
            await provider.close()
        (await client.patch(ROUTES, json=[])).raise_for_status()


async def test_the_change_mark_changes_only_with_the_zone(zone_url: str):
    kind = example("address")
    assert kind.connect is not None
    provider = kind.connect(
        ProviderConfigSpec(kind.provider, zone_url), Secrets(API_KEY), CallPermit()
    )
    assert isinstance(provider, WatchingProvider)
    old_mark = await provider.changes(None)
    assert await provider.changes(old_mark) == old_mark
    records = [{"content": "192.0.2.1", "disabled": False}]
    created_object = (
        await provider.create(action("Create", "marked", {"ttl": 60, "records": records}))
    ).object
    new_mark = await provider.changes(old_mark)
    assert new_mark != old_mark
    assert created_object is not None
    await provider.delete(with_version_of(action("Delete", "marked", {}), created_object))
    assert await provider.changes(new_mark) != new_mark
    await provider.close()
