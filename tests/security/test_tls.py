"""TLS to the bus and to the APIs is always verified, and its failures are reported."""

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
from reconciler.wiring import ROLES, initialize, open_connection, run_roles
from shapes_api.kinds.shapes import ShapesProvider
from tests.cli.runner import Cli
from tests.docs.test_links import DOCS
from tests.docs.test_operating import blocks
from tests.faulty_api import FaultyApi
from tests.security.guarded import provider_config, shape
from tests.security.tls_proxy import TlsProxy


@dataclass(frozen=True)
class Certificates:
    """A CA with a server certificate, and an untrusted CA."""

    folder: Path
    trusted_ca: trustme.CA
    server: trustme.LeafCert
    untrusted_ca: trustme.CA

    def write(self, name: str, blob: trustme.Blob) -> Path:
        path = self.folder / name
        blob.write_to_path(str(path))
        return path

    @property
    def ca_path(self) -> Path:
        return self.write("ca.pem", self.trusted_ca.cert_pem)

    def pair(self, name: str, leaf: trustme.LeafCert) -> tuple[Path, Path]:
        return (
            self.write(f"{name}.pem", leaf.cert_chain_pems[0]),
            self.write(f"{name}.key", leaf.private_key_pem),
        )


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    trusted_ca = trustme.CA()
    return Certificates(tmp_path, trusted_ca, trusted_ca.issue_cert("127.0.0.1"), trustme.CA())


async def _start_server(
    certificates: Certificates, more: str = "", users: str = ""
) -> EmbeddedServer:
    certificate, key = certificates.pair("server", certificates.server)
    server = EmbeddedServer()
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}", {more} }}\n{users}'
    await server.start(certificates.folder / "nats", extra_config=tls)
    return server


CLUSTER = 'name: c, listen: "127.0.0.1:-1", routes: ["nats://127.0.0.1:1"]'


async def test_the_configuration_in_the_guide_requires_tls_from_clients_and_routes(
    certificates: Certificates,
) -> None:
    (text,) = blocks(DOCS / "security.md", "conf")
    certificate, key = certificates.pair("server", certificates.server)
    replacements = {
        "/etc/nats/server.pem": str(certificate),
        "/etc/nats/server.key": str(key),
        "/etc/nats/ca.pem": str(certificates.ca_path),
        "cluster {": f"server_name: a\ncluster {{\n{CLUSTER}",
    }
    for old, new in replacements.items():
        assert old in text
        text = text.replace(old, new)
    server = EmbeddedServer()
    await server.start(certificates.folder / "nats", extra_config=text)
    url = server.url.replace("nats://", "tls://")
    try:
        await (await connect(url, name="guide", access=Access(tls_ca=certificates.ca_path))).close()
        with pytest.raises(BusAccessError, match="certificate is not trusted"):
            await connect(url, name="guide", access=Access())
    finally:
        await server.stop()


@pytest.fixture
async def bus(certificates: Certificates) -> AsyncIterator[str]:
    """Run a server that requires TLS with client certificates; yield its URL."""
    server = await _start_server(certificates, f'ca_file: "{certificates.ca_path}", verify: true')
    yield server.url.replace("nats://", "tls://")
    await server.stop()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FaultyApi]:
    process = FaultyApi()
    await process.start(tmp_path / "api")
    yield process
    await process.stop()


async def test_the_main_workflow_runs_over_tls_on_both_sides(
    certificates: Certificates, bus: str, api: FaultyApi
) -> None:
    certificate, key = certificates.pair("client", certificates.trusted_ca.issue_cert("reconciler"))
    access = Access(tls_ca=certificates.ca_path, tls_cert=certificate, tls_key=key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificates.server.configure_cert(context)
    async with open_connection(bus, access=access) as nc:
        await initialize(nc)
    async with (
        TlsProxy(api.port, context) as proxy,
        open_connection(bus, access=access) as nc,
        connect_sdk(bus, source="test", access=access) as client,
        run_roles(nc, ROLES),
    ):
        trusted = provider_config(proxy.url, tls={"caFile": str(certificates.ca_path)})
        await client.declare(trusted)
        await client.declare(shape("default", "over-tls"))
        outcome = await client.wait_for("default/Shape/over-tls", generation=1)
        assert outcome.outcome == "Converged"
        assert proxy.connections > 0
        environment = {
            "RECONCILER_TLS_CA": str(certificates.ca_path),
            "RECONCILER_TLS_CERT": str(certificate),
            "RECONCILER_TLS_KEY": str(key),
        }
        cli = Cli(certificates.folder)
        result = await asyncio.to_thread(cli.run, "get", "-A", "--nats-url", bus, **environment)
        assert result.status == 0, result
        assert "over-tls" in result.out


async def test_an_untrusted_ca_is_reported_immediately(
    certificates: Certificates, bus: str
) -> None:
    other_ca = certificates.write("other.pem", certificates.untrusted_ca.cert_pem)
    with pytest.raises(BusAccessError, match=r"certificate is not trusted.*--tls-ca"):
        await connect(bus, name="t", access=Access(tls_ca=other_ca))
    with pytest.raises(BusAccessError, match="certificate is not trusted"):
        await connect(bus, name="t")  # the system's CAs


async def test_a_name_that_is_not_in_the_certificate_is_reported(
    certificates: Certificates, bus: str
) -> None:
    url_with_other_name = bus.replace("127.0.0.1", "localhost")
    with pytest.raises(BusAccessError, match="certificate is not trusted"):
        await connect(url_with_other_name, name="t", access=Access(tls_ca=certificates.ca_path))


async def test_a_server_that_requires_a_certificate_refuses_clients_without_one(
    certificates: Certificates, bus: str
) -> None:
    with pytest.raises((BusUnavailableError, BusAccessError)):
        await connect(bus, name="t", timeout_seconds=1, access=Access(tls_ca=certificates.ca_path))


async def test_a_failing_connection_ends_after_its_timeout(
    certificates: Certificates, bus: str
) -> None:
    """Whichever step nats-py has reached, although it may swallow the cancellation."""

    async def fail_to_connect(seconds: float) -> None:
        with pytest.raises((BusUnavailableError, BusAccessError)):
            await connect(
                bus, name="t", timeout_seconds=seconds, access=Access(tls_ca=certificates.ca_path)
            )

    await asyncio.gather(*(fail_to_connect(number / 50) for number in range(1, 31)))


@pytest.mark.parametrize("required_by", ["url", "ca"])
async def test_no_password_is_sent_to_a_server_without_tls(
    certificates: Certificates, tmp_path: Path, required_by: str
) -> None:
    """A man in the middle who hides the server's TLS does not receive the password."""
    server = EmbeddedServer()
    url = await server.start(tmp_path / "plain")
    with_password = url.replace("//", "//u:secret@")
    if required_by == "url":
        with_password, access = with_password.replace("nats:", "tls:"), Access()
    else:
        access = Access(tls_ca=certificates.ca_path)
    try:
        with pytest.raises(BusAccessError, match="does not offer TLS"):
            await connect(with_password, name="t", access=access)
    finally:
        await server.stop()


async def test_a_renewed_certificate_is_used_at_the_next_connection(
    certificates: Certificates,
) -> None:
    server = await _start_server(certificates, f'ca_file: "{certificates.ca_path}", verify: true')
    certificate, key = certificates.pair("client", certificates.trusted_ca.issue_cert("one"))
    access = Access(tls_ca=certificates.ca_path, tls_cert=certificate, tls_key=key)
    nc = await connect(server.url, name="t", access=access)
    try:
        previous_context = nc.ssl_context
        certificates.pair("client", certificates.trusted_ca.issue_cert("two"))
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
async def test_unusable_files_are_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "wrong.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BusAccessError, match=str(path)):
        await connect("tls://127.0.0.1:1", name="t", access=Access(tls_ca=path))
    with pytest.raises(BusAccessError, match=str(path)):
        await connect("tls://127.0.0.1:1", name="t", access=Access(tls_cert=path))
    for tls in (Tls(ca_file=str(path)), Tls(certificate_file=str(path))):
        with pytest.raises(ConfigurationError, match=r"spec\.tls\..*wrong\.pem"):
            _build_provider("https://127.0.0.1:1", tls)
    with pytest.raises(ConfigurationError, match="certificateFile"):
        _build_provider("https://127.0.0.1:1", Tls(key_file=str(path)))


def _build_provider(endpoint: str, tls: Tls | None) -> ShapesProvider:
    config = ProviderConfigSpec(
        "shapes", endpoint, tls=tls, limits=Limits(request_timeout_seconds=10)
    )
    return ShapesProvider(config, Secrets("a-token-for-nobody"), CallPermit())


async def test_an_api_with_an_untrusted_certificate_is_not_called(
    certificates: Certificates, api: FaultyApi
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificates.server.configure_cert(context)
    other_ca = certificates.write("other.pem", certificates.untrusted_ca.cert_pem)
    async with TlsProxy(api.port, context) as proxy:
        for endpoint, tls in (
            (proxy.url, None),
            (proxy.url, Tls(ca_file=str(other_ca))),
            (proxy.url.replace("127.0.0.1", "localhost"), Tls(ca_file=str(certificates.ca_path))),
        ):
            provider = _build_provider(endpoint, tls)
            with pytest.raises(UntrustedApiError, match="because its certificate is not trusted"):
                await provider.read("foo")
            await provider.close()
        assert proxy.connections == 0
        provider = _build_provider(proxy.url, Tls(ca_file=str(certificates.ca_path)))
        assert [page async for page in provider.pages(Scope(), page_size=10)] == [[]]
        await provider.close()


async def test_an_api_that_requires_a_certificate_receives_ours(
    certificates: Certificates, api: FaultyApi
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificates.server.configure_cert(context)
    certificates.trusted_ca.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = certificates.pair("worker", certificates.trusted_ca.issue_cert("worker"))
    async with TlsProxy(api.port, context) as proxy:
        own_tls = Tls(str(certificates.ca_path), str(certificate), str(key))
        provider = _build_provider(proxy.url, own_tls)
        assert await provider.read("foo") is None
        await provider.close()
