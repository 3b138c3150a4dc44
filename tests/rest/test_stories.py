"""Kinds defined by manifests in the whole reconciler, with PowerDNS, Caddy and the shapes API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from events.intake import Declared, Withdrawn
from events.log import ActionDecided, SpecResolved
from events.manifest import Fields, Manifest, Metadata
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import CredentialsRef
from reconciler.wiring import ROLES
from tests.rest.kinds import KINDS, manifest
from tests.rest.notes_api import NotesApi
from tests.rest.servers import API_KEY
from tests.rest.test_assigned_ids import SPEC as MEMO
from tests.scenarios.conftest import api_url, bare_world
from tests.scenarios.harness import World, api_config, only

__all__ = ["api_url", "bare_world"]

ROUTES = "/config/apps/http/servers/main/routes"


def definition(name: str, **changes: Any) -> tuple[ResourceKey, Declared]:
    document = manifest(name)
    rest = {**document["spec"]["rest"], **changes}
    written_manifest = msgspec.convert(
        {**document, "spec": {**document["spec"], "rest": rest}}, Manifest
    )
    key = ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, written_manifest.metadata.name)
    return key, Declared(written_manifest)


async def start_with_kind(world: World, name: str, endpoint: str, **config: Any) -> None:
    await world.start_reconciler()
    key, declared = definition(name)
    reply = await world.ask(key, declared)
    assert reply.accepted, reply
    provider = manifest(name)["spec"]["provider"]
    await world.configure(api_config(endpoint, provider=provider, **config), "api")


def resource(kind: str, api_version: str, name: str, spec: Fields) -> Manifest:
    return Manifest(
        api_version, kind, Metadata(name), {**spec, "providerConfigRef": {"name": "api"}}
    )


def build_direct_client(url: str) -> httpx.AsyncClient:
    """Return a client without idle connections, because Caddy drops them at each change."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=url, timeout=10, limits=limits)


class Zone:
    """A user who edits the zone directly."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(headers={"X-API-Key": API_KEY}, timeout=10)
        self._url = url

    async def read_addresses(self, name: str) -> list[str]:
        zone = (await self._http.get(self._url)).raise_for_status().json()
        record_sets = [each for each in zone["rrsets"] if each["name"] == f"{name}.example.org."]
        return [record["content"] for each in record_sets for record in each["records"]]

    async def write_addresses(self, name: str, addresses: Sequence[str], **more: Any) -> None:
        rrset = {
            "name": f"{name}.example.org.",
            "type": "A",
            "ttl": 60,
            "changetype": "REPLACE" if addresses else "DELETE",
            "records": [{"content": each, "disabled": False} for each in addresses],
        }
        reply = await self._http.patch(self._url, json={"rrsets": [{**rrset, **more}]})
        reply.raise_for_status()

    async def close(self) -> None:
        await self._http.aclose()


async def test_powerdns_records_are_created_repaired_and_deleted_but_foreign_ones_kept(
    bare_world: World, zone_url: str, monkeypatch: pytest.MonkeyPatch
):
    world, zone = bare_world, Zone(zone_url)
    monkeypatch.setenv("PDNS_KEY", API_KEY)
    await zone.write_addresses("theirs", ["192.0.2.9"])
    credentials = CredentialsRef(env="PDNS_KEY")
    await start_with_kind(world, "address", zone_url, credentials_ref=credentials)
    keys = [ResourceKey("default", "Address", name) for name in ("shop", "theirs")]
    await world.declare_all(
        [
            resource("Address", "addresses/v1", key.name, {"addresses": ["192.0.2.2", "192.0.2.1"]})
            for key in keys
        ]
    )
    await world.until_outcome(keys[0], "Converged")
    await world.until_outcome(keys[1], "Conflict", reason="AlreadyExists")
    assert await zone.read_addresses("theirs") == ["192.0.2.9"]

    records = [{"content": f"192.0.2.{number}", "disabled": False} for number in (1, 2)]
    facts = await world.facts(keys[0])
    resolved = only(SpecResolved, facts)
    assert resolved.fields == {"ttl": 300, "records": records}, "in the API's own format"
    assert only(ActionDecided, facts).action.definition == resolved.definition
    await world.until_observed_again()
    assert await world.facts(keys[0]) == facts, "a meaningless order is not drift"

    # An out-of-band change that keeps our comment.
    await zone.write_addresses("shop", ["192.0.2.66"])

    async def is_repaired() -> bool:
        return sorted(await zone.read_addresses("shop")) == ["192.0.2.1", "192.0.2.2"]

    await world.until(is_repaired, "the record is repaired")
    await zone.write_addresses("shop", [])
    await world.until(is_repaired, "the record is recreated")
    await world.until_outcome(keys[0], "Converged")
    await world.publish(keys[0], Withdrawn())
    await world.until_outcome(keys[0], "Deleted")
    assert await zone.read_addresses("shop") == []
    assert await zone.read_addresses("theirs") == ["192.0.2.9"]
    assert API_KEY not in str([each.data for key in keys for each in await world.history(key)])
    await zone.close()


async def test_a_caddy_route_edited_out_of_band_is_repaired_and_foreign_ones_are_kept(
    bare_world: World, caddy_url: str
):
    world = bare_world
    async with build_direct_client(caddy_url) as client:
        foreign = {"match": [{"path": ["/theirs"]}], "handle": [{"handler": "vars", "a": "b"}]}
        (await client.patch(ROUTES, json=[foreign])).raise_for_status()
        await start_with_kind(world, "web-route", caddy_url)
        key = ResourceKey("default", "WebRoute", "shop")
        spec: Fields = {"paths": ["/shop/*"], "upstreams": ["127.0.0.1:9"]}
        await world.declare_all([resource("WebRoute", "web/v1", key.name, spec)])
        await world.until_outcome(key, "Converged")

        (await client.patch("/id/shop/match", json=[{"path": ["/shop"]}])).raise_for_status()

        async def is_repaired() -> bool:
            try:
                route = (await client.get("/id/shop")).json()
            except httpx.RemoteProtocolError:
                return False  # Caddy applies the correction, and drops this request
            return route["match"] == [{"path": ["/shop/*"]}]

        await world.until(is_repaired, "the route is repaired")
        await world.until_outcome(key, "Converged")
        await world.publish(key, Withdrawn())
        await world.until_outcome(key, "Deleted")
        assert (await client.get(ROUTES)).json() == [foreign]


async def test_an_action_is_executed_with_the_definition_of_its_decision(
    bare_world: World,
):
    """The definition changes while the worker is down; the action keeps its definition."""
    world = bare_world
    await world.human.clear_faults()
    await start_with_kind(world, "figure", world.human.url)
    key = ResourceKey("default", "Figure", "foo")
    await world.stop_reconciler()
    await world.start_reconciler([each for each in ROLES if each != "worker"])
    await world.declare_all(
        [resource("Figure", "figures/v1", "foo", {"type": "Circle", "color": "Red"})]
    )

    async def is_decided() -> bool:
        return any(isinstance(each, ActionDecided) for each in await world.facts(key))

    await world.until(is_decided, "the creation is decided")
    create = {"path": "/nowhere", "success": [201], "shows": "."}
    changed, declared = definition("figure", create=create)
    assert (await world.ask(changed, declared)).accepted
    await world.restart_reconciler()
    await world.until_outcome(key, "Converged")
    actions = [each.action for each in await world.facts(key) if isinstance(each, ActionDecided)]
    assert [each.operation for each in actions] == ["Create"]
    assert (await world.human.get("foo"))["type"] == "Circle"


async def test_the_example_on_the_page_works_unchanged(bare_world: World):
    world, page = bare_world, KINDS.parents[1] / "docs/kinds/kind-definition.md"
    example = page.read_text().split("<!-- applied by tests/rest/test_stories.py -->\n```yaml\n")[1]
    documents: list[Fields] = [*yaml.safe_load_all(example.split("```")[0])]
    assert documents[0] == manifest("figure"), "the page contains the file"
    await world.start_reconciler()
    documents[1]["spec"] |= {"endpoint": world.human.url, "resyncSeconds": 0.2}
    for document in documents:
        written_manifest = msgspec.convert(document, Manifest)
        reply = await world.ask(written_manifest.key, Declared(written_manifest))
        assert reply.accepted, reply
    key = ResourceKey("default", "Figure", "welcome")
    await world.until_outcome(key, "Converged")
    assert (await world.human.get("welcome"))["color"] == "Red"
    await world.human.update("welcome", color="Blue")

    async def is_repaired() -> bool:
        return (await world.human.get("welcome"))["color"] == "Red"

    await world.until(is_repaired, "the drift is repaired")


async def test_a_field_that_is_no_longer_declared_or_defined_is_removed_from_the_object(
    bare_world: World,
):
    """The API merges a PATCH, so a value that is only left out would remain permanently."""
    world, api = bare_world, NotesApi()
    rest = {**MEMO["rest"], "update": {"path": "/notes/{uid}", "method": "PATCH", "shows": "."}}
    spec = {**MEMO, "rest": {each: rest[each] for each in rest if each != "condition"}}

    async def define(**fields: Any) -> None:
        key = ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, "Memo")
        body = {**spec, "fields": {**MEMO["fields"], **fields}}
        body["fields"] = {
            each: value for each, value in body["fields"].items() if value is not None
        }
        kind_definition = Manifest("reconciler/v1", key.kind, Metadata("Memo", key.namespace), body)
        assert (await world.ask(key, Declared(kind_definition))).accepted

    async with api.serving() as url:
        await world.start_reconciler()
        await define(footer={"optional": True})
        await world.configure(api_config(url, provider="memos"), "api")

        async def declare(spec: Fields) -> None:
            reply = await world.ask(key, Declared(resource("Memo", "memos/v1", key.name, spec)))
            assert reply.accepted, reply

        key = ResourceKey("default", "Memo", "first")
        fields: Fields = {"text": "one", "config": {"tags": ["a"], "options": {"a": 1, "b": 2}}}
        both = {**fields, "remark": "ours", "footer": "ours"}
        await declare(both)
        await world.until_outcome(key, "Converged")
        [note] = api.notes.values()
        assert (note["remark"], note["footer"]) == ("ours", "ours")
        note["theirs"] = "kept"

        fewer = {**fields, "footer": "ours", "config": {"tags": ["a"], "options": {"b": 2}}}
        await declare(fewer)
        await world.until_outcome(key, "Converged", generation=2)
        assert "remark" not in note
        assert note["config"]["options"] == {"b": 2}
        assert note["config"]["owner"] == "the API"

        await define(footer=None)
        await world.until_outcome(key, "Failed", reason="InvalidInput")
        await world.until_observed_again()  # from now on, no read shows the field
        del fewer["footer"]
        await declare(fewer)

        async def is_removed() -> bool:
            return "footer" not in note

        await world.until(is_removed, "the field that the kind no longer has is removed")
        revision = note["rev"]
        await world.until_observed_again()
        assert note["rev"] == revision, "it is removed once"
        assert note["theirs"] == "kept"
