"""Routes through the whole loop on a real Caddy server, under constant requests."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trustme
import yaml
from msgspec.structs import replace

from events.intake import Withdrawn
from events.log import (
    AbsenceDoubted,
    ActionDecided,
    ApiFellSilent,
    ApiSilenceEnded,
    DriftDetected,
    ListingsResumed,
)
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, Scope, config_key
from infra.components.caddy import Caddy
from infra.providers.caddy.route import ROUTE
from infra.providers.caddy.routes import RoutesProvider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import KindRegistry
from reconciler.provider.secrets import Secrets
from reconciler.resource import api_silence
from reconciler.roles.gate import api_gate
from tests.caddy import SERVERS, Backend, CaddyAdmin, Visitors, put, read_file, write_certificate
from tests.folders import short_folder
from tests.host_access import EVERYTHING
from tests.scenarios.harness import World, api_config, every
from tests.scenarios.test_silent_api import until_ready_is

pytestmark = [pytest.mark.caddy]

PAGE = Path(__file__).parents[2] / "docs" / "kinds" / "route.md"
NO_RESYNC_SECONDS = 3600
REPEATS = 3
ROTATIONS = 6
ROTATION_RESYNC_SECONDS = 3.0
MANY_ROUTES = 12
MIN_UPTIME_SECONDS = 3.0


class Site:
    """A reconciler of the routes whose names begin with a prefix, and their backends."""

    def __init__(self, world: World, server: Caddy, prefix: str, folder: Path) -> None:
        self.world, self.server, self.prefix, self.folder = world, server, prefix, folder
        self.admin = CaddyAdmin(server)
        self.host = f"{prefix}.example.org"
        self.ca = trustme.CA()
        ca = self.ca.cert_pem.bytes().decode()
        self.tls_context = ssl.create_default_context(cadata=ca)
        self.exit_stack = AsyncExitStack()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.http_port}/"

    @property
    def secure_url(self) -> str:
        return f"https://127.0.0.1:{self.server.https_port}/"

    async def begin(self, *, endpoint: str | None = None, **settings: Any) -> None:
        self.world.kinds = KindRegistry([ROUTE])
        await self.world.start_reconciler()
        config = api_config(
            endpoint or self.server.endpoint,
            provider="caddy",
            least_resync_seconds=0.1,
            scope=Scope(prefix=self.prefix),
            **settings,
        )
        await self.world.configure(config, name="caddy")

    def name(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def key(self, name: str) -> ResourceKey:
        return ResourceKey("default", "Route", self.name(name))

    async def backend(self, name: str) -> Backend:
        return await self.exit_stack.enter_async_context(Backend(name))

    def certificate(self) -> dict[str, str]:
        """Write a new certificate into the same files."""
        return write_certificate(self.folder / "tls", self.ca.issue_cert(self.host))

    def manifest(self, name: str, backends: list[str], **spec: Any) -> Manifest:
        fields = {"hosts": [self.host], "providerConfigRef": {"name": "caddy"}, **spec}
        metadata = Metadata(self.name(name))
        return Manifest("caddy/v1", "Route", metadata, {**fields, "backends": backends})

    async def declare(self, name: str, backends: list[str], **spec: Any) -> None:
        """Declare a route, and wait until it has converged to this declaration."""
        accepted = await self.world.client.declare(self.manifest(name, backends, **spec))
        outcome = await self.world.client.wait_for(
            self.key(name), generation=accepted.generation, timeout_seconds=30
        )
        assert outcome.outcome == "Converged", outcome

    async def request_text(self, path: str = "/") -> str:
        """Send a request; retry it if a Caddy reload closed the connection before a response."""
        headers = {"Host": self.host}
        # Each `declare` waits until the route has stayed ready, while a slow request is open.
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=120) as client:
            for _ in range(REPEATS):
                with suppress(httpx.RemoteProtocolError, httpx.ReadError):
                    response = await client.get(path)
                    return response.text if response.is_success else str(response.status_code)
        return "no response"

    async def served_fingerprint(self) -> str:
        """Return the fingerprint of the certificate that a new connection gets."""
        while True:
            with contextlib.suppress(ConnectionResetError):  # a reload replaces the listener
                _, writer = await asyncio.open_connection(
                    "127.0.0.1",
                    self.server.https_port,
                    ssl=self.tls_context,
                    server_hostname=self.host,
                )
                break
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return hashlib.sha256(certificate).hexdigest()

    async def actions(self, name: str) -> int:
        return len(every(ActionDecided, await self.world.facts(self.key(name))))

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        async def is_met() -> bool:
            return bool(await holds())

        await self.world.until(is_met, what, seconds=30)

    async def end(self) -> None:
        await self.exit_stack.aclose()
        await self.admin.close()


@pytest.fixture
async def site(
    bare_world: World, caddy_server: Caddy, unique: str, tmp_path: Path
) -> AsyncIterator[Site]:
    opened = Site(bare_world, caddy_server, unique.lower(), tmp_path)
    yield opened
    await opened.end()


async def test_the_documented_routes_serve_requests_and_are_deleted_completely(site: Site) -> None:
    a, b, api = [await site.backend(name) for name in ("a", "b", "api")]
    applied = r"<!-- applied by [^\n]*-->\n```yaml\n(.*?)```"
    (block,) = re.findall(applied, PAGE.read_text(), re.DOTALL)
    files = site.certificate()
    for placeholder, replacement in {
        "shop.example.org": site.host,
        "name: shop": f"name: {site.prefix}-shop",
        "/etc/shop/tls.crt": files["certificateFile"],
        "/etc/shop/tls.key": files["keyFile"],
        "127.0.0.1:9001": a.address,
        "127.0.0.1:9002": b.address,
        "9003": api.address.partition(":")[2],
    }.items():
        assert placeholder in block
        block = block.replace(placeholder, replacement)
    config, *declared = [msgspec.convert(each, Manifest) for each in yaml.safe_load_all(block)]
    documented = msgspec.convert(config.spec, ProviderConfigSpec)
    assert (documented.provider, config.metadata.name) == ("caddy", "caddy")
    await site.begin(resync=documented.resync_seconds)
    world = site.world
    await world.declare_all(declared)
    for each in declared:
        outcome = await world.client.wait_for(each.key, generation=1, timeout_seconds=30)
        assert outcome.outcome == "Converged"

    assert {await site.request_text() for _ in range(4)} == {"a", "b"}
    assert await site.request_text("/api") == await site.request_text("/api/orders") == "api"
    assert await site.request_text("/apis") in ("a", "b")
    async with Visitors(site.secure_url, site.host, site.tls_context).send_requests(1) as visitors:
        await site.until(
            lambda: _true(len(visitors.responses) == 2), "both routes respond over TLS"
        )
    shop = await world.client.status(declared[0].key)
    assert shop is not None
    assert shop.outputs["urls"] == [f"http://{site.host}:{site.server.http_port}/"]

    for each in declared:
        await world.publish(each.key, Withdrawn())
    for each in declared:
        await world.until_outcome(each.key, "Deleted")
    assert await site.request_text() == ""
    assert site.prefix not in repr(await site.admin.get("/config/"))


async def _true(value: bool) -> bool:
    return value


async def test_out_of_band_changes_are_reverted_and_foreign_routes_are_left_alone(
    site: Site,
) -> None:
    await site.begin(resync=NO_RESYNC_SECONDS)
    a = await site.backend("a")
    foreign_route: dict[str, Any] = {
        "@id": f"{site.prefix}-theirs",
        "match": [{"host": [f"x.{site.host}"]}],
        "handle": [{"handler": "static_response", "body": "theirs"}],
    }
    await site.admin.send("POST", f"{SERVERS}/http/routes", foreign_route)
    await site.declare("shop", [a.address], paths=["/"])
    declared_route = await site.admin.find(site.name("shop"))
    assert declared_route is not None
    edits = [
        ("PATCH", {**declared_route, "handle": [{"handler": "static_response", "body": "edited"}]}),
        ("PATCH", {**declared_route, "terminal": False}),
        ("DELETE", None),
    ]
    for method, content in edits:
        await site.admin.send(method, f"/id/{site.name('shop')}", content)

        async def is_reverted() -> bool:
            route = await site.admin.find(site.name("shop"))
            return route is not None and {**route, "group": ""} == {**declared_route, "group": ""}

        await site.until(is_reverted, f"undone: {method}")
        await site.until(lambda: _has_response(site, "a"), "the route serves requests again")
    await site.world.until_outcome(site.key("shop"), "Converged")
    await site.world.until_settled()
    assert every(DriftDetected, await site.world.facts(site.key("shop")))
    assert await site.admin.find(f"{site.prefix}-theirs") == foreign_route
    rows = await site.world.client.statuses()
    assert [each.name for each in rows if each.is_foreign] == [f"{site.prefix}-theirs"]

    count_before = await site.actions("shop")
    observer = site.world.parts.observer
    assert observer is not None
    listings = observer.listings
    await site.admin.send("PATCH", f"/id/{site.prefix}-theirs", {**foreign_route, "terminal": True})
    await site.until(lambda: _true(observer.listings > listings), "the foreign change is read")
    await site.world.until_settled()
    assert await site.actions("shop") == count_before, "nothing is written while nothing differs"


async def test_each_request_reaches_its_route_or_the_status_names_the_route_that_takes_it(
    site: Site,
) -> None:
    await site.begin(resync=NO_RESYNC_SECONDS)
    a, b = [await site.backend(name) for name in ("a", "b")]
    wildcard = f"*.{site.host.partition('.')[2]}"
    await site.declare("catch-all", [a.address], hosts=[f"www.{site.host}", wildcard])
    await site.declare("billing", [b.address])
    assert await site.request_text() == "b"
    hosts = [site.host, f"second.{site.host}"]
    await site.world.declare_all([site.manifest("second", [a.address], hosts=hosts)])
    shadowed_text = f"route {site.name('billing')!r} receives the requests for {site.host}/"

    async def readiness(name: str) -> tuple[str, str]:
        row = await site.world.client.status(site.key(name))
        ready = [each for each in (row.conditions if row else ()) if each.type == "Ready"]
        return (ready[0].reason, ready[0].message) if ready else ("", "")

    async def is_reported() -> bool:
        return await readiness("second") == ("Shadowed", shadowed_text)

    await site.until(is_reported, "the status names the route and the host")
    assert (await readiness("billing"))[0] == (await readiness("catch-all"))[0] == "Ready"
    await site.world.publish(site.key("billing"), Withdrawn())

    async def is_reached() -> bool:
        return (await readiness("second"))[0] == "Ready" and await site.request_text() == "a"

    await site.until(is_reached, "the second route receives the requests")


async def test_backends_follow_the_outputs_that_they_reference(site: Site) -> None:
    await site.begin(resync=NO_RESYNC_SECONDS)
    a = await site.backend("a")
    await site.declare("inner", [a.address])
    reference = {"$ref": f"Route/{site.name('inner')}", "field": "outputs.listen"}
    spec = {"hosts": [f"x.{site.host}"], "providerConfigRef": {"name": "caddy"}}
    outer = Manifest(
        "caddy/v1", "Route", Metadata(site.name("outer")), {**spec, "backends": reference}
    )
    await site.world.declare_all([outer])
    await site.world.until_outcome(outer.key, "Converged")
    route = await site.admin.find(site.name("outer"))
    assert route is not None
    assert route["handle"][0]["upstreams"] == [{"dial": f"127.0.0.1:{site.server.http_port}"}]
    await site.world.publish(site.key("inner"), Withdrawn())
    await site.world.until_outcome(site.key("inner"), "Held", reason="Referenced")
    await site.world.publish(outer.key, Withdrawn())
    await site.world.until_outcome(site.key("inner"), "Deleted")


async def _has_response(site: Site, expected: str) -> bool:
    return await site.request_text() == expected


async def test_a_rollout_of_backends_under_load_does_not_fail_requests(site: Site) -> None:
    await site.begin(resync=NO_RESYNC_SECONDS)
    first_backend = old_backend = await site.backend("v1")
    await site.declare("shop", [old_backend.address])
    slow_request = asyncio.create_task(site.request_text("/slow"))
    await old_backend.is_held.wait()
    reader, writer = await _websocket(site)
    async with Visitors(site.url, site.host).send_requests() as visitors:
        for version in ("v2", "v3", "v4"):
            new_backend = await site.backend(version)
            await site.declare("shop", [old_backend.address, new_backend.address])
            await site.until(lambda: _true(visitors.responses[version] > 3), f"{version} responds")  # noqa: B023
            if version == "v3":
                old_backend.end()  # before the route changes, so Caddy uses the other backend
                count = visitors.responses[version]
                await site.until(lambda: _true(visitors.responses["v3"] > count + 20), "v3 alone")  # noqa: B023
            await site.declare("shop", [new_backend.address])
            if old_backend is not first_backend:  # it is still serving the slow request
                old_backend.end()
            old_backend = new_backend
        count_before = visitors.responses["v4"]
        await site.until(lambda: _true(visitors.responses["v4"] > count_before + 20), "v4 alone")
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here", "a WebSocket outlives each change"
        first_backend.may_end.set()
        assert await slow_request == "v1", "the original backend serves the request in progress"
    assert visitors.failed == []
    assert visitors.repeated < sum(visitors.responses.values()) / 10
    writer.close()


async def _websocket(site: Site) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.http_port)
    head = f"GET /ws HTTP/1.1\r\nHost: {site.host}\r\nConnection: Upgrade\r\nUpgrade: websocket"
    writer.write(f"{head}\r\n\r\n".encode())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def test_a_certificate_is_replaced_under_load_and_an_invalid_one_is_ignored(
    site: Site,
) -> None:
    await site.begin(resync=0.3)
    a = await site.backend("a")
    files = site.certificate()
    await site.declare("shop", [a.address], tls=files)
    first_fingerprint = await site.served_fingerprint()
    async with Visitors(site.secure_url, site.host, site.tls_context).send_requests(2) as visitors:
        await site.until(lambda: _true(visitors.responses["a"] > 5), "the route serves requests")
        site.certificate()

        async def is_swapped() -> bool:
            return await site.served_fingerprint() != first_fingerprint

        await site.until(is_swapped, "new connections get the new certificate")
        await site.world.until_outcome(site.key("shop"), "Converged")
        second_fingerprint = await site.served_fingerprint()
        valid_key = read_file(files["keyFile"])
        put(files["keyFile"], site.ca.issue_cert(site.host).private_key_pem.bytes())

        async def readiness() -> str:
            row = await site.world.client.status(site.key("shop"))
            assert row is not None
            return next(each.reason for each in row.conditions if each.type == "Ready")

        async def is_reported() -> bool:
            return await readiness() == "CertificateFiles"

        await site.until(is_reported, "the status reports the invalid files")
        request_count = visitors.responses["a"]
        await site.until(
            lambda: _true(visitors.responses["a"] > request_count + 5),
            "the route continues to serve requests",
        )
        assert await site.served_fingerprint() == second_fingerprint, "the old certificate stays"
        put(files["keyFile"], valid_key)

        async def is_healthy() -> bool:
            return await readiness() == "Ready"

        await site.until(is_healthy, "the route recovers with valid files")
    assert visitors.failed == []
    texts = repr([await site.world.history(site.key("shop")), await site.world.rows()])
    for text in (texts, read_file(str(site.server.log)).decode()):
        assert "PRIVATE KEY" not in text
        assert valid_key.splitlines()[1].decode() not in text


async def test_a_tenant_cannot_serve_the_host_of_another_tenant(site: Site) -> None:
    """Neither with a route nor with a certificate, also after a renewal and a loss of a route."""
    await site.begin(resync=0.3)
    own_host = f"alice.{site.host}"
    for tenant, host in (("alice", own_host), ("bob", site.host)):
        config = api_config(
            site.server.endpoint,
            provider="caddy",
            resync=0.3,
            least_resync_seconds=0.1,
            scope=Scope(prefix=site.name(tenant)),
            namespaces=(tenant,),
            allow=replace(EVERYTHING, hosts=(host,)),
        )
        await site.world.configure(config, name=tenant)
    backends = {tenant: [(await site.backend(tenant)).address] for tenant in ("alice", "bob")}

    async def declare(tenant: str, name: str, **spec: Any) -> ResourceKey:
        config = {"name": tenant}
        manifest = site.manifest(
            f"{tenant}-{name}", backends[tenant], providerConfigRef=config, **spec
        )
        metadata = replace(manifest.metadata, namespace=tenant)
        await site.world.declare_all([replace(manifest, metadata=metadata)])
        return ResourceKey(tenant, "Route", manifest.metadata.name)

    plain = await declare("bob", "plain")
    secure = await declare("bob", "secure", tls=site.certificate())
    for key in (plain, secure):
        await site.world.until_outcome(key, "Converged")
    same_host = await declare("alice", "same-host")
    await site.world.until_outcome(same_host, "Held", reason="NotPermitted")
    mixed = trustme.CA().issue_cert(own_host, site.host)
    files = write_certificate(site.folder / "alice", mixed)
    await site.world.until_outcome(
        await declare("alice", "mixed", hosts=[own_host], tls=files), "Degraded", reason="NotDone"
    )

    await site.admin.send("DELETE", f"/id/{plain.name}")
    await site.until(lambda: _has_response(site, "bob"), "the lost route is created again")
    first_fingerprint = await site.served_fingerprint()
    site.certificate()

    async def is_renewed() -> bool:
        return await site.served_fingerprint() != first_fingerprint  # verified: not Alice's

    await site.until(is_renewed, "the renewed certificate is served")
    assert await site.admin.find(site.name("alice-same-host")) is None
    assert await site.admin.find(f"{site.name('alice-mixed')}:certificate") is None


async def test_each_of_many_rotations_is_served_after_the_next_listing(site: Site) -> None:
    """A rotated file is not the change of another client, so no repair of it is delayed."""
    await site.begin(resync=ROTATION_RESYNC_SECONDS)
    a = await site.backend("a")
    await site.declare("shop", [a.address], tls=site.certificate())
    served = {await site.served_fingerprint()}
    seconds: list[float] = []
    for _ in range(ROTATIONS):
        site.certificate()
        rotated_at = time.monotonic()

        async def is_served() -> bool:
            return await site.served_fingerprint() not in served

        await site.until(is_served, "the rotated certificate is served")
        seconds.append(time.monotonic() - rotated_at)
        served.add(await site.served_fingerprint())
    assert max(seconds) < 1.5 * ROTATION_RESYNC_SECONDS, seconds
    facts = await site.world.facts(site.key("shop"))
    assert every(DriftDetected, facts) == []
    assert len(every(ActionDecided, facts)) == 1 + ROTATIONS


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_killed_and_restarted_proxy_receives_all_routes_again(
    bare_world: World, unique: str, tmp_path: Path, is_lost: bool
) -> None:
    server = Caddy()
    with short_folder() as folder:
        await server.start(folder / "caddy")
        site = Site(bare_world, server, unique.lower(), tmp_path)
        await site.begin(resync=0.3, breaker={"initialSeconds": 0.2, "maxSeconds": 0.5})
        a = await site.backend("a")
        await site.declare("shop", [a.address])
        await site.declare("shop-tls", [a.address], tls=site.certificate())
        fingerprint = await site.served_fingerprint()
        await server.kill()
        if is_lost:  # as if it ran without --resume
            (folder / "caddy" / "config" / "caddy" / "autosave.json").unlink()
        await server.start(folder / "caddy")
        if not is_lost:
            assert (await site.request_text(), await site.served_fingerprint()) == (
                "a",
                fingerprint,
            ), "immediately"

        async def is_back() -> bool:
            try:
                return (await site.request_text(), await site.served_fingerprint()) == (
                    "a",
                    fingerprint,
                )
            except (httpx.HTTPError, OSError):
                return False

        await site.until(is_back, "both routes serve requests")
        for name in ("shop", "shop-tls"):
            await site.world.until_outcome(site.key(name), "Converged")
            assert await site.actions(name) == 1 + is_lost
        await site.end()
        await server.stop()


async def test_the_readiness_of_a_route_is_unknown_while_its_proxy_is_down(
    bare_world: World, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (api_silence, api_gate):
        monkeypatch.setattr(module, "MIN_SILENT_SECONDS", 0.5)
    server, world = Caddy(), bare_world
    with short_folder() as folder:
        await server.start(folder / "caddy")
        site = Site(world, server, unique.lower(), tmp_path)
        await site.begin(resync=0.3, breaker={"initialSeconds": 0.2, "maxSeconds": 0.5})
        await site.declare("shop", [(await site.backend("a")).address])
        await server.kill()
        row = await until_ready_is(world, "Unknown", site.key("shop"))
        since = await world.client.silent_since("caddy")
        assert since is not None
        assert row.not_ready is not None
        assert f"last seen {since:%Y-%m-%dT%H:%M:%SZ}" in row.not_ready.message
        assert row.outcome == "Converged"
        await server.start(folder / "caddy")
        await until_ready_is(world, "True", site.key("shop"))
        assert await site.request_text() == "a"
        silence = (ApiFellSilent, ApiSilenceEnded)
        facts = await world.facts(config_key("caddy"))
        assert [type(each) for each in facts if isinstance(each, silence)] == [*silence]
        assert await site.actions("shop") == 1
        await site.end()
        await server.stop()


async def reload_without_routes(site: Site) -> None:
    """Stop the reconciler after it has recorded the process, which then loads no routes."""
    routes = RoutesProvider(
        ProviderConfigSpec("caddy", site.server.endpoint), Secrets(), CallPermit()
    )
    process_id = await routes.system_id()
    assert process_id is not None
    await routes.close()

    async def is_recorded() -> bool:
        facts = await site.world.facts(config_key("caddy"))
        resumed = every(ListingsResumed, facts)
        return bool(resumed) and resumed[-1].system_id == process_id

    await site.until(is_recorded, "the new process is recorded")
    await site.world.stop_reconciler()
    configuration = await site.admin.get("/config/")
    configuration["apps"]["http"]["servers"]["http"]["routes"] = []
    await site.admin.send("POST", "/load", configuration)
    assert await site.admin.names() == []


async def test_many_lost_routes_return_after_a_restart_but_wait_if_another_server_responds(
    bare_world: World, unique: str, tmp_path: Path
) -> None:
    server, other_server = Caddy(), Caddy()
    with short_folder() as folder:
        await other_server.start(folder / "other")
        await server.start(folder / "caddy")
        socket = folder / "admin"
        socket.symlink_to(server.endpoint.removeprefix("unix://"))
        site = Site(bare_world, server, unique.lower(), tmp_path)
        await site.begin(
            endpoint=f"unix://{socket}",
            resync=0.3,
            breaker={"initialSeconds": 0.2, "maxSeconds": 0.5},
        )
        hosts = {f"r{number}": f"r{number}.{site.host}" for number in range(MANY_ROUTES)}
        manifests = [site.manifest(name, [], hosts=[host]) for name, host in hosts.items()]
        await site.world.declare_all(manifests)
        for each in manifests:
            await site.world.until_outcome(each.key, "Converged")
        await site.world.until_settled()

        await server.kill()
        (folder / "caddy" / "config" / "caddy" / "autosave.json").unlink()
        await server.start(folder / "caddy")

        async def is_complete() -> bool:
            with suppress(httpx.HTTPError, OSError):
                names = {str(each) for each in await site.admin.names()}
                return {site.name(name) for name in hosts} <= names
            return False

        await site.until(is_complete, "all routes exist again, without an approval")
        for each in manifests:
            await site.world.until_outcome(each.key, "Converged")
        await site.world.until_settled()

        await reload_without_routes(site)
        await site.world.start_reconciler()
        await site.until(is_complete, "caddy reload: all routes exist again, without an approval")
        for each in manifests:
            assert every(AbsenceDoubted, await site.world.facts(each.key)) == []
            await site.world.until_outcome(each.key, "Converged")
        await site.world.until_settled()

        other_config = ProviderConfigSpec("caddy", other_server.endpoint)
        other_routes = RoutesProvider(other_config, Secrets(), CallPermit())

        async def is_older() -> bool:
            return (await other_routes.uptime_seconds() or 0) > MIN_UPTIME_SECONDS

        await site.until(is_older, "the other server is older than the last listing")
        await other_routes.close()
        socket.rename(folder / "admin-before")
        socket.symlink_to(other_server.endpoint.removeprefix("unix://"))
        for each in manifests:
            await site.world.until_outcome(each.key, "Held", reason="LossGuard")
        other_admin = CaddyAdmin(other_server)
        assert await other_admin.names() == []
        await other_admin.close()
        await site.end()
        await server.stop()
        await other_server.stop()
