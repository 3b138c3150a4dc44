"""TLS to the bus and to the APIs: verified always, insisted on, and its failures are told."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from events.provider_config import Limits, ProviderConfigSpec, Scope, Tls
from infra.bus.retries import retry_read
from infra.embedded import EmbeddedServer
from infra.jetstream.access import Access
from infra.jetstream.connection import connect, require_jetstream
from infra.jetstream.errors import BusAccessError, BusUnavailableError
from reconciler.errors import ConfigurationError, UntrustedApiError
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.secrets import Secrets
from reconciler.sdk import connect as connect_sdk
from reconciler.wiring import ROLES, initialize, open_connection, running
from shapes_api.kinds.shapes import ShapesProvider
from tests.cli.runner import Cli
from tests.docs.test_links import DOCS
from tests.docs.test_operating import blocks
from tests.faulty_api import FaultyApi
from tests.security.guarded import provider_config, shape
from tests.security.tls_proxy import TlsProxy


@dataclass(frozen=True)
class Papers:
    """An authority with its certificates, and another, untrusted authority."""

    folder: Path
    authority: trustme.CA
    server: trustme.LeafCert
    stranger: trustme.CA

    def write(self, name: str, blob: trustme.Blob) -> Path:
        path = self.folder / name
        blob.write_to_path(str(path))
        return path

    @property
    def ca(self) -> Path:
        return self.write("ca.pem", self.authority.cert_pem)

    def pair(self, name: str, leaf: trustme.LeafCert) -> tuple[Path, Path]:
        return (
            self.write(f"{name}.pem", leaf.cert_chain_pems[0]),
            self.write(f"{name}.key", leaf.private_key_pem),
        )


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    authority = trustme.CA()
    return Papers(tmp_path, authority, authority.issue_cert("127.0.0.1"), trustme.CA())


async def _server(papers: Papers, more: str = "", users: str = "") -> EmbeddedServer:
    certificate, key = papers.pair("server", papers.server)
    server = EmbeddedServer()
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}", {more} }}\n{users}'
    await server.start(papers.folder / "nats", extra_config=tls)
    return server


CLUSTER = 'name: c, listen: "127.0.0.1:-1", routes: ["nats://127.0.0.1:1"]'


async def test_the_configuration_of_the_guide_requires_tls_of_clients_and_routes(
    papers: Papers,
) -> None:
    (text,) = blocks(DOCS / "security.md", "conf")
    certificate, key = papers.pair("server", papers.server)
    here = {
        "/etc/nats/server.pem": str(certificate),
        "/etc/nats/server.key": str(key),
        "/etc/nats/ca.pem": str(papers.ca),
        "cluster {": f"server_name: a\ncluster {{\n{CLUSTER}",
    }
    for old, new in here.items():
        assert old in text
        text = text.replace(old, new)
    server = EmbeddedServer()
    await server.start(papers.folder / "nats", extra_config=text)
    url = server.url.replace("nats://", "tls://")
    try:
        await (await connect(url, name="guide", access=Access(tls_ca=papers.ca))).close()
        with pytest.raises(BusAccessError, match="certificate is not trusted"):
            await connect(url, name="guide", access=Access())
    finally:
        await server.stop()


@pytest.fixture
async def bus(papers: Papers) -> AsyncIterator[str]:
    """A server that demands TLS, and a certificate of its clients."""
    server = await _server(papers, f'ca_file: "{papers.ca}", verify: true')
    yield server.url.replace("nats://", "tls://")
    await server.stop()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FaultyApi]:
    process = FaultyApi()
    await process.start(tmp_path / "api")
    yield process
    await process.stop()


async def test_the_main_job_over_tls_on_both_sides(
    papers: Papers, bus: str, api: FaultyApi
) -> None:
    certificate, key = papers.pair("client", papers.authority.issue_cert("reconciler"))
    access = Access(tls_ca=papers.ca, tls_cert=certificate, tls_key=key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    papers.server.configure_cert(context)
    async with open_connection(bus, access=access) as nc:
        await initialize(nc)
    async with (
        TlsProxy(api.port, context) as proxy,
        open_connection(bus, access=access) as nc,
        connect_sdk(bus, source="test", access=access) as client,
        running(nc, ROLES),
    ):
        trusted = provider_config(proxy.url, tls={"caFile": str(papers.ca)})
        await client.declare(trusted)
        await client.declare(shape("default", "over-tls"))
        outcome = await client.wait_for("default/Shape/over-tls", generation=1)
        assert outcome.outcome == "Converged"
        assert proxy.connections > 0
        environment = {
            "RECONCILER_TLS_CA": str(papers.ca),
            "RECONCILER_TLS_CERT": str(certificate),
            "RECONCILER_TLS_KEY": str(key),
        }
        cli = Cli(papers.folder)
        ran = await asyncio.to_thread(cli.run, "get", "-A", "--nats-url", bus, **environment)
        assert ran.status == 0, ran
        assert "over-tls" in ran.out


async def test_an_authority_that_is_not_trusted_is_reported_at_once(
    papers: Papers, bus: str
) -> None:
    other_ca = papers.write("other.pem", papers.stranger.cert_pem)
    with pytest.raises(BusAccessError, match=r"certificate is not trusted.*--tls-ca"):
        await connect(bus, name="t", access=Access(tls_ca=other_ca))
    with pytest.raises(BusAccessError, match="certificate is not trusted"):
        await connect(bus, name="t")  # the system's authorities


async def test_a_name_that_is_not_in_the_certificate_is_reported(papers: Papers, bus: str) -> None:
    elsewhere = bus.replace("127.0.0.1", "localhost")
    with pytest.raises(BusAccessError, match="certificate is not trusted"):
        await connect(elsewhere, name="t", access=Access(tls_ca=papers.ca))


async def test_a_server_that_requires_a_certificate_refuses_clients_without_one(
    papers: Papers, bus: str
) -> None:
    with pytest.raises((BusUnavailableError, BusAccessError)):
        await connect(bus, name="t", timeout_seconds=1, access=Access(tls_ca=papers.ca))


async def test_a_connection_in_vain_comes_to_its_end(papers: Papers, bus: str) -> None:
    """Whatever nats-py is about when the patience is over: it may swallow the cancellation."""

    async def in_vain(patience: float) -> None:
        with pytest.raises((BusUnavailableError, BusAccessError)):
            await connect(bus, name="t", timeout_seconds=patience, access=Access(tls_ca=papers.ca))

    await asyncio.gather(*(in_vain(number / 50) for number in range(1, 31)))


@pytest.mark.parametrize("asked_by", ["url", "authority"])
async def test_no_password_goes_to_a_server_without_tls(
    papers: Papers, tmp_path: Path, asked_by: str
) -> None:
    """A client in between that hides the server's TLS gets nothing."""
    server = EmbeddedServer()
    url = await server.start(tmp_path / "plain")
    with_password = url.replace("//", "//u:secret@")
    if asked_by == "url":
        with_password, access = with_password.replace("nats:", "tls:"), Access()
    else:
        access = Access(tls_ca=papers.ca)
    try:
        with pytest.raises(BusAccessError, match="does not offer the required TLS"):
            await connect(with_password, name="t", access=access)
    finally:
        await server.stop()


async def test_a_renewed_certificate_is_used_at_the_next_connection(papers: Papers) -> None:
    server = await _server(papers, f'ca_file: "{papers.ca}", verify: true')
    certificate, key = papers.pair("client", papers.authority.issue_cert("one"))
    access = Access(tls_ca=papers.ca, tls_cert=certificate, tls_key=key)
    nc = await connect(server.url, name="t", access=access)
    try:
        previous_context = nc.ssl_context
        papers.pair("client", papers.authority.issue_cert("two"))
        assert nc.ssl_context is not previous_context
        await server.kill()
        await server.start(
            server.data_dir, port=server.port, extra_config=_tls_lines(server.data_dir)
        )
        await retry_read(nc, lambda: require_jetstream(nc))
    finally:
        await nc.close()
        await server.stop()


def _tls_lines(folder: Path) -> str:
    text = (folder / "nats.conf").read_text()
    return text[text.index("tls {") :]


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_files_that_cannot_be_used_are_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "wrong.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BusAccessError, match=str(path)):
        await connect("tls://127.0.0.1:1", name="t", access=Access(tls_ca=path))
    with pytest.raises(BusAccessError, match=str(path)):
        await connect("tls://127.0.0.1:1", name="t", access=Access(tls_cert=path))
    for tls in (Tls(ca_file=str(path)), Tls(certificate_file=str(path))):
        with pytest.raises(ConfigurationError, match=r"spec\.tls\..*wrong\.pem"):
            _provider("https://127.0.0.1:1", tls)
    with pytest.raises(ConfigurationError, match="certificateFile"):
        _provider("https://127.0.0.1:1", Tls(key_file=str(path)))


def _provider(endpoint: str, tls: Tls | None) -> ShapesProvider:
    config = ProviderConfigSpec(
        "shapes", endpoint, tls=tls, limits=Limits(request_timeout_seconds=10)
    )
    return ShapesProvider(config, Secrets("a-token-for-nobody"), CallPermit())


async def test_an_api_whose_certificate_is_not_trusted_gets_no_call(
    papers: Papers, api: FaultyApi
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    papers.server.configure_cert(context)
    other_ca = papers.write("other.pem", papers.stranger.cert_pem)
    async with TlsProxy(api.port, context) as proxy:
        for endpoint, tls in (
            (proxy.url, None),
            (proxy.url, Tls(ca_file=str(other_ca))),
            (proxy.url.replace("127.0.0.1", "localhost"), Tls(ca_file=str(papers.ca))),
        ):
            provider = _provider(endpoint, tls)
            with pytest.raises(UntrustedApiError, match="because its certificate is not trusted"):
                await provider.read("foo")
            await provider.close()
        assert proxy.connections == 0
        provider = _provider(proxy.url, Tls(ca_file=str(papers.ca)))
        assert [page async for page in provider.pages(Scope(), page_size=10)] == [[]]
        await provider.close()


async def test_an_api_that_requires_a_certificate_receives_ours(
    papers: Papers, api: FaultyApi
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    papers.server.configure_cert(context)
    papers.authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = papers.pair("worker", papers.authority.issue_cert("worker"))
    async with TlsProxy(api.port, context) as proxy:
        own_tls = Tls(str(papers.ca), str(certificate), str(key))
        provider = _provider(proxy.url, own_tls)
        assert await provider.read("foo") is None
        await provider.close()
