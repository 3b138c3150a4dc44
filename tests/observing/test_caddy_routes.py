"""Routes through the whole loop on a real Caddy server, under constant requests."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trustme
import yaml

from events.intake import Withdrawn
from events.log import ActionDecided, DriftDetected
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, Scope
from infra.components.caddy import Caddy
from infra.providers.caddy.route import ROUTE
from reconciler.provider.kind import KindRegistry
from tests.caddy import SERVERS, Backend, CaddyAdmin, Visitors, put, read_file, write_certificate
from tests.folders import short_folder
from tests.scenarios.harness import World, api_config, every

pytestmark = [pytest.mark.caddy]

PAGE = Path(__file__).parents[2] / "docs" / "kinds" / "route.md"
NEVER_SECONDS = 3600
REPEATS = 3


class Site:
    """A reconciler of the routes whose names begin with a prefix, and what stands behind them."""

    def __init__(self, world: World, server: Caddy, prefix: str, folder: Path) -> None:
        self.world, self.server, self.prefix, self.folder = world, server, prefix, folder
        self.admin = CaddyAdmin(server)
        self.host = f"{prefix}.example.org"
        self.authority = trustme.CA()
        authority = self.authority.cert_pem.bytes().decode()
        self.trusting = ssl.create_default_context(cadata=authority)
        self.closing = AsyncExitStack()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.http_port}/"

    @property
    def secure_url(self) -> str:
        return f"https://127.0.0.1:{self.server.https_port}/"

    async def begin(self, **settings: Any) -> None:
        self.world.kinds = KindRegistry([ROUTE])
        await self.world.start_reconciler()
        config = api_config(
            self.server.endpoint,
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
        return await self.closing.enter_async_context(Backend(name))

    def certificate(self) -> dict[str, str]:
        """Issue another one into the same files."""
        return write_certificate(self.folder / "tls", self.authority.issue_cert(self.host))

    async def declare(self, name: str, backends: list[str], **spec: Any) -> None:
        """Declare a route, and wait until it can be used as it is declared now."""
        fields = {"hosts": [self.host], "providerConfigRef": {"name": "caddy"}, **spec}
        manifest = Manifest(
            "caddy/v1", "Route", Metadata(self.name(name)), {**fields, "backends": backends}
        )
        accepted = await self.world.client.declare(manifest)
        outcome = await self.world.client.wait_for(
            self.key(name), generation=accepted.generation, timeout_seconds=30
        )
        assert outcome.outcome == "Converged", outcome

    async def asks(self, path: str = "/") -> str:
        """Ask once; a connection that a change of Caddy's has met before an answer is no answer."""
        async with httpx.AsyncClient(base_url=self.url, headers={"Host": self.host}) as client:
            for _ in range(REPEATS):
                with suppress(httpx.RemoteProtocolError, httpx.ReadError):
                    answer = await client.get(path)
                    return answer.text if answer.is_success else str(answer.status_code)
        return "no answer"

    async def is_served(self) -> str:
        """Return the fingerprint of the certificate that a new connection gets."""
        while True:
            with contextlib.suppress(ConnectionResetError):  # a reload replaces the listener
                _, writer = await asyncio.open_connection(
                    "127.0.0.1",
                    self.server.https_port,
                    ssl=self.trusting,
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
        await self.closing.aclose()
        await self.admin.close()


@pytest.fixture
async def site(
    bare_world: World, caddy_server: Caddy, unique: str, tmp_path: Path
) -> AsyncIterator[Site]:
    one = Site(bare_world, caddy_server, unique.lower(), tmp_path)
    yield one
    await one.end()


async def test_the_pages_example_can_be_asked_and_goes_without_a_trace(site: Site) -> None:
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

    assert {await site.asks() for _ in range(4)} == {"a", "b"}
    assert await site.asks("/api") == await site.asks("/api/orders") == "api"
    assert await site.asks("/apis") in ("a", "b")
    async with Visitors(site.secure_url, site.host, site.trusting).send_requests(1) as visitors:
        await site.until(lambda: _true(len(visitors.answers) == 2), "both answer over TLS")
    shop = await world.client.status(declared[0].key)
    assert shop is not None
    assert shop.outputs["urls"] == [f"http://{site.host}:{site.server.http_port}/"]

    for each in declared:
        await world.publish(each.key, Withdrawn())
    for each in declared:
        await world.until_outcome(each.key, "Deleted")
    assert await site.asks() == ""
    assert site.prefix not in repr(await site.admin.get("/config/"))


async def _true(value: bool) -> bool:
    return value


async def test_out_of_band_changes_are_reverted_immediately_and_others_are_left_alone(
    site: Site,
) -> None:
    await site.begin(resync=NEVER_SECONDS)
    a = await site.backend("a")
    foreign_route: dict[str, Any] = {
        "@id": f"{site.prefix}-theirs",
        "match": [{"host": [f"x.{site.host}"]}],
        "handle": [{"handler": "static_response", "body": "theirs"}],
    }
    await site.admin.send("POST", f"{SERVERS}/http/routes", foreign_route)
    await site.declare("shop", [a.address], paths=["/"])
    clean = await site.admin.find(site.name("shop"))
    assert clean is not None
    edits = [
        ("PATCH", {**clean, "handle": [{"handler": "static_response", "body": "edited"}]}),
        ("PATCH", {**clean, "terminal": False}),
        ("DELETE", None),
    ]
    for method, content in edits:
        await site.admin.send(method, f"/id/{site.name('shop')}", content)

        async def is_mended() -> bool:
            route = await site.admin.find(site.name("shop"))
            return route is not None and {**route, "group": ""} == {**clean, "group": ""}

        await site.until(is_mended, f"undone: {method}")
        await site.until(lambda: _has_answer(site, "a"), "it is asked again")
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
    await site.until(lambda: _true(observer.listings > listings), "another change is seen")
    await site.world.until_settled()
    assert await site.actions("shop") == count_before, "nothing is written while nothing differs"


async def test_backends_follow_the_outputs_that_they_refer_to(site: Site) -> None:
    await site.begin(resync=NEVER_SECONDS)
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


async def _has_answer(site: Site, expected: str) -> bool:
    return await site.asks() == expected


async def test_a_roll_of_backends_under_load_fails_no_request(site: Site) -> None:
    await site.begin(resync=NEVER_SECONDS)
    first = old = await site.backend("v1")
    await site.declare("shop", [old.address])
    slow = asyncio.create_task(site.asks("/slow"))
    await old.is_held.wait()
    reader, writer = await _websocket(site)
    async with Visitors(site.url, site.host).send_requests() as visitors:
        for version in ("v2", "v3", "v4"):
            new = await site.backend(version)
            await site.declare("shop", [old.address, new.address])
            await site.until(lambda: _true(visitors.answers[version] > 3), f"{version} answers")  # noqa: B023
            if version == "v3":
                old.end()  # before its route knows: what is sent there goes to the other
                count = visitors.answers[version]
                await site.until(lambda: _true(visitors.answers["v3"] > count + 20), "v3 alone")  # noqa: B023
            await site.declare("shop", [new.address])
            if old is not first:  # it still answers one
                old.end()
            old = new
        count_before = visitors.answers["v4"]
        await site.until(lambda: _true(visitors.answers["v4"] > count_before + 20), "v4 alone")
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here", "a WebSocket outlives each change"
        first.may_end.set()
        assert await slow == "v1", "what was under way is answered by who was asked"
    assert visitors.failed == []
    assert visitors.repeated < sum(visitors.answers.values()) / 10
    writer.close()


async def _websocket(site: Site) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.http_port)
    head = f"GET /ws HTTP/1.1\r\nHost: {site.host}\r\nConnection: Upgrade\r\nUpgrade: websocket"
    writer.write(f"{head}\r\n\r\n".encode())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def test_a_certificate_is_swapped_under_load_and_a_bad_one_is_not_taken(site: Site) -> None:
    await site.begin(resync=0.3)
    a = await site.backend("a")
    files = site.certificate()
    await site.declare("shop", [a.address], tls=files)
    first = await site.is_served()
    async with Visitors(site.secure_url, site.host, site.trusting).send_requests(2) as visitors:
        await site.until(lambda: _true(visitors.answers["a"] > 5), "it is asked")
        site.certificate()

        async def is_swapped() -> bool:
            return await site.is_served() != first

        await site.until(is_swapped, "new connections get the new one")
        await site.world.until_outcome(site.key("shop"), "Converged")
        second = await site.is_served()
        good = read_file(files["keyFile"])
        put(files["keyFile"], site.authority.issue_cert(site.host).private_key_pem.bytes())

        async def readiness() -> str:
            row = await site.world.client.status(site.key("shop"))
            assert row is not None
            return next(each.reason for each in row.conditions if each.type == "Ready")

        async def is_reported() -> bool:
            return await readiness() == "CertificateFiles"

        await site.until(is_reported, "the outcome says that the files cannot be used")
        request_count = visitors.answers["a"]
        await site.until(lambda: _true(visitors.answers["a"] > request_count + 5), "it is asked on")
        assert await site.is_served() == second, "the old one stays"
        put(files["keyFile"], good)

        async def is_well() -> bool:
            return await readiness() == "Ready"

        await site.until(is_well, "right files are enough")
    assert visitors.failed == []
    texts = repr([await site.world.history(site.key("shop")), await site.world.rows()])
    for place in (texts, read_file(str(site.server.log)).decode()):
        assert "PRIVATE KEY" not in place
        assert good.splitlines()[1].decode() not in place


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_proxy_that_is_killed_has_all_routes_again(
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
        fingerprint = await site.is_served()
        await server.kill()
        if is_lost:  # as if it ran without --resume
            (folder / "caddy" / "config" / "caddy" / "autosave.json").unlink()
        await server.start(folder / "caddy")
        if not is_lost:
            assert (await site.asks(), await site.is_served()) == ("a", fingerprint), "at once"

        async def is_back() -> bool:
            try:
                return (await site.asks(), await site.is_served()) == ("a", fingerprint)
            except (httpx.HTTPError, OSError):
                return False

        await site.until(is_back, "both routes are there")
        for name in ("shop", "shop-tls"):
            await site.world.until_outcome(site.key(name), "Converged")
            assert await site.actions(name) == 1 + is_lost
        await site.end()
        await server.stop()
