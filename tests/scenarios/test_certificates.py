"""Certificates through the whole loop, from a local CA and from a real ACME CA."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import yaml

from events.intake import Approved, Withdrawn
from events.log import ActionDecided, ActionSucceeded, DriftDetected
from events.manifest import Fields, Manifest
from events.provider_config import ProviderConfigSpec
from infra.components.certificates import CA_FILE, Certificates
from infra.providers.certificates.certificate import CERTIFICATE
from infra.providers.certificates.issuer import ISSUER
from infra.providers.certificates.pem import certificates_in, is_signed_by
from reconciler.provider.kind import KindRegistry
from tests.acme_gate import AcmeGate, acme_gate
from tests.certificates import acme, count_orders, create_root
from tests.folders import short_folder
from tests.scenarios.conftest import bare_world_on_own_server as bare_world
from tests.scenarios.harness import World, every

__all__ = ["bare_world"]

PAGES = Path(__file__).parents[2] / "docs" / "kinds"
APPLIED = r"<!-- applied by [^\n]*-->\n```yaml\n(.*?)```"
MANIFESTS: Mapping[str, Manifest] = {
    each.metadata.name: each
    for page in ("issuer", "certificate")
    for block in re.findall(APPLIED, (PAGES / f"{page}.md").read_text(), re.DOTALL)
    for each in msgspec.convert(list(yaml.safe_load_all(block)), list[Manifest])
}
WEB = MANIFESTS["web"].key
SHORT_SECONDS = 20
RENEW_BEFORE = "13s"
"""Renewal is due after 7 s; a busy machine may need the time left until the certificate expires."""

SHORT: Fields = {"duration": f"{SHORT_SECONDS}s", "renewBefore": RENEW_BEFORE}


def change_manifest(name: str, **fields: object) -> Manifest:
    """Return a manifest of the pages with some fields changed."""
    return msgspec.structs.replace(MANIFESTS[name], spec={**MANIFESTS[name].spec, **fields})


class Site:
    """A world with a certificate root, and the files that a server would read."""

    def __init__(self, world: World, root: Path) -> None:
        self.world, self.root = world, root
        self.folder = root / "web/tls"

    async def start(self) -> None:
        self.world.kinds = KindRegistry([ISSUER, CERTIFICATE])
        await self.world.start_reconciler()
        settings = {
            **MANIFESTS["certificates"].spec,
            "endpoint": self.root.as_uri(),
            "allow": {"addresses": ["127.0.0.1:*"], "listen": ["127.0.0.1:*"]},
            "resyncSeconds": 0.2,
            "retry": {"initialSeconds": 0.1, "maxSeconds": 0.5},
        }
        await self.world.configure(msgspec.convert(settings, ProviderConfigSpec), "certificates")

    @property
    def serial(self) -> str:
        chain = certificates_in((self.folder / "tls.crt").read_bytes())
        return f"{chain[0].serial_number:x}"

    async def until_serial_is_not(self, *known: str) -> str:
        async def is_new() -> str | None:
            return None if self.serial in known else self.serial

        return await self.world.until(is_new, "another certificate")

    async def issued_serials(self) -> list[str]:
        """Return the serials in the log, in order."""
        successes = every(ActionSucceeded, await self.world.facts(WEB))
        serials = [each.object.outputs["serial"] for each in successes if each.object is not None]
        return list(dict.fromkeys(serials))

    async def renewals(self) -> int:
        decided = every(ActionDecided, await self.world.facts(WEB))
        return sum(each.action.purpose == "Renew" for each in decided)

    async def lose_and_restore_files(self) -> None:
        """Delete all files, and wait until they are restored unchanged."""
        contents_before = {path.name: path.read_bytes() for path in contents(self.folder)}
        for path in contents(self.folder):
            path.unlink()

        async def are_restored() -> bool:
            return {
                path.name: path.read_bytes() for path in contents(self.folder)
            } == contents_before

        await self.world.until(are_restored, "the files are delivered again")


def contents(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


@pytest.fixture
async def site(bare_world: World, tmp_path: Path) -> Site:
    site = Site(bare_world, create_root(tmp_path))
    await site.start()
    return site


@pytest.fixture
async def short_lived_ca() -> AsyncIterator[Certificates]:
    """A CA whose certificates expire soon."""
    with short_folder() as folder:
        ca = Certificates(isolated=True, validity_seconds=SHORT_SECONDS)
        await ca.start(folder / "certificates")
        yield ca
        await ca.stop()


@pytest.fixture
async def gate(pebble: Certificates, tmp_path: Path) -> AsyncIterator[AcmeGate]:
    async with acme_gate(pebble, tmp_path / "gate") as started:
        yield started


class TlsVisitor:
    """A TLS server with the delivered files, a client that stays connected, and new clients."""

    def __init__(self, folder: Path, trusted: str) -> None:
        self._folder = folder
        self._context = ssl.create_default_context(cadata=trusted)
        self.serials = set[str]()
        self.echoes = 0

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._server_context())
        async with server:
            self._port = server.sockets[0].getsockname()[1]
            stay_task, reconnect_task = (
                asyncio.create_task(self._stay()),
                asyncio.create_task(self._reconnect()),
            )
            try:
                yield
            finally:
                for task in (stay_task, reconnect_task):
                    assert not task.done(), f"a connection failed: {task.exception()}"
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    def _server_context(self) -> ssl.SSLContext:
        """Return a context that loads the newest certificate for each new connection."""

        def use_newest(connection: ssl.SSLObject, _name: str, _first: ssl.SSLContext) -> None:
            connection.context = load_context()

        def load_context() -> ssl.SSLContext:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # A copy: OpenSSL opens a file twice, for the chain and for the key, and another
            # certificate may be delivered in between.
            with tempfile.NamedTemporaryFile(suffix=".pem") as copy:
                copy.write((self._folder / "tls.pem").read_bytes())
                copy.flush()
                context.load_cert_chain(copy.name)
            return context

        first = load_context()
        first.sni_callback = use_newest
        return first

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._context, server_hostname="web.example.org"
        )

    async def _stay(self) -> None:
        reader, writer = await self._connect()
        while True:
            writer.write(b"still here\n")
            assert await reader.readline() == b"still here\n"
            self.echoes += 1
            await asyncio.sleep(0.02)

    async def _reconnect(self) -> None:
        while True:
            _reader, writer = await self._connect()
            certificate = writer.get_extra_info("peercert")
            self.serials.add(certificate["serialNumber"].lower().lstrip("0"))
            writer.close()
            await asyncio.sleep(0.02)


async def check_three_renewals(site: Site, trusted: str) -> None:
    """Check that three renewals each issue one certificate while a client stays connected."""
    visitor = TlsVisitor(site.folder, trusted)
    serials = [site.serial]
    async with visitor.open():
        for _ in range(3):
            serials.append(await site.until_serial_is_not(*serials))

        async def are_served() -> bool:
            return set(serials) <= visitor.serials

        await site.world.until(are_served, "a new client gets the newest certificate")
    assert visitor.echoes > 10


async def test_35_a_certificate_near_expiry_is_renewed_once_and_clients_stay_connected(
    site: Site,
) -> None:
    await site.world.declare_all([MANIFESTS["own"], change_manifest("web", **SHORT)])
    await site.world.until_outcome(WEB, "Converged")
    await check_three_renewals(site, (site.folder / "ca.crt").read_text())
    await site.world.declare_all([change_manifest("web", policy={"paused": True}, **SHORT)])
    await site.world.until_settled()
    serials = await site.issued_serials()
    assert await site.renewals() == len(serials) - 1, "each renewal issued one certificate"


@pytest.mark.pebble
async def test_35_a_certificate_near_expiry_is_ordered_once_from_an_acme_ca(
    site: Site, short_lived_ca: Certificates
) -> None:
    world = site.world
    (site.root / CA_FILE).write_bytes((short_lived_ca.root / CA_FILE).read_bytes())
    issuer = {"$ref": "Issuer/public", "field": "name"}
    await world.declare_all(
        [
            change_manifest("public", **acme(short_lived_ca)),
            change_manifest("web", issuer=issuer, renewBefore=RENEW_BEFORE),
        ]
    )
    await world.until_outcome(WEB, "Converged")
    await check_three_renewals(site, await short_lived_ca.root_certificate())
    await world.declare_all([change_manifest("web", issuer=issuer, policy={"paused": True})])
    await world.until_settled()
    serials = await site.issued_serials()
    assert await site.renewals() == len(serials) - 1
    assert count_orders(short_lived_ca) == len(serials), "each renewal was one order"


async def test_35_lost_files_are_delivered_again_and_the_certificate_is_kept(
    site: Site, tmp_path: Path
) -> None:
    world = site.world
    await world.declare_all([MANIFESTS["own"], MANIFESTS["web"]])
    await world.until_outcome(WEB, "Converged")
    await site.lose_and_restore_files()
    await world.until_outcome(WEB, "Converged")
    assert len(await site.issued_serials()) == 1
    drifts = every(DriftDetected, await world.facts(WEB))
    assert {each.path for drift in drifts for each in drift.differences} == {"problems"}

    for key in (WEB, MANIFESTS["own"].key):
        await world.publish(key, Withdrawn())
    await world.until_outcome(WEB, "Deleted")
    await world.until_outcome(MANIFESTS["own"].key, "Held", reason="DataLoss")
    assert not site.folder.exists()


async def test_replacing_a_ca_waits_for_approval_and_then_reissues_all_certificates(
    site: Site,
) -> None:
    world, own = site.world, MANIFESTS["own"].key
    await world.declare_all([MANIFESTS["own"], MANIFESTS["web"]])
    await world.until_outcome(WEB, "Converged")
    serial_before = site.serial
    await world.declare_all([change_manifest("own", ownCa={"commonName": "Another Root"})])
    await world.until_outcome(own, "Held", reason="DataLoss")
    assert site.serial == serial_before
    await world.publish(own, Approved("DataLoss"), "approval")
    await site.until_serial_is_not(serial_before)
    await world.until_outcome(WEB, "Converged")
    (leaf, root_certificate) = (
        certificates_in((site.folder / name).read_bytes())[0] for name in ("tls.crt", "ca.crt")
    )
    assert is_signed_by(leaf, root_certificate)
    assert root_certificate.subject.rfc4514_string() == "CN=Another Root"


@pytest.mark.pebble
async def test_35_lost_files_need_no_new_acme_order_and_no_key_reaches_the_bus(
    site: Site, gate: AcmeGate, tmp_path: Path
) -> None:
    world = site.world
    gate.make_trusted_by(site.root)
    issuer = {"$ref": "Issuer/public", "field": "name"}
    await world.declare_all(
        [
            change_manifest("public", **acme(gate.pebble, gate.directory)),
            change_manifest("web", issuer=issuer, revokeOnDelete=True),
        ]
    )
    await world.until_outcome(WEB, "Converged")
    serial_before = site.serial
    await site.lose_and_restore_files()
    assert (gate.count("order"), gate.count("finalize"), site.serial) == (1, 1, serial_before)

    keys = [*site.root.rglob("*.key")]
    assert len(keys) == 3, "the account's, the certificate's, and the delivered one"
    secrets = [path.read_text().splitlines()[1].encode() for path in keys]
    for key in (WEB, MANIFESTS["public"].key):
        await world.publish(key, Withdrawn())
    await world.until_outcome(MANIFESTS["public"].key, "Deleted")
    assert gate.count("revoke") == 1
    stored = b"".join(path.read_bytes() for path in (tmp_path / "nats").rglob("*.blk"))
    assert serial_before.encode() in stored, "the bus's files are readable"
    assert [secret for secret in secrets if secret in stored] == []


@pytest.mark.pebble
async def test_35_a_rate_limit_of_the_ca_holds_across_a_restart_and_a_new_declaration(
    site: Site, gate: AcmeGate
) -> None:
    world = site.world
    gate.make_trusted_by(site.root)
    gate.limit_for(3)
    issuer = {"$ref": "Issuer/public", "field": "name"}
    public = change_manifest("public", **acme(gate.pebble, gate.directory))
    await world.declare_all([public, change_manifest("web", issuer=issuer)])
    degraded = await world.until_outcome(WEB, "Degraded")
    assert "rateLimited: too many certificates" in degraded.message
    assert "no orders before" in degraded.message
    gate.limit_for(0)
    await world.restart_reconciler()
    other_names = ["web.example.org", "www.example.org"]
    await world.declare_all([change_manifest("web", issuer=issuer, dnsNames=other_names)])
    await world.until_outcome(WEB, "Converged", generation=2)
    first, *later = gate.order_times
    assert later
    assert min(later) - first >= 3, "no order before the given time"


@pytest.mark.pebble
async def test_a_crash_after_finalizing_yields_the_same_serial_from_one_order(
    site: Site, gate: AcmeGate
) -> None:
    world = site.world
    gate.make_trusted_by(site.root)
    gate.drop_responses = {"finalize"}
    issuer = {"$ref": "Issuer/public", "field": "name"}
    public = change_manifest("public", **acme(gate.pebble, gate.directory))
    await world.declare_all([public, change_manifest("web", issuer=issuer)])

    async def is_finalized() -> bool:
        return gate.count("finalize") == 1

    await world.until(is_finalized, "the CA has issued the certificate")
    await world.stop_reconciler()
    gate.drop_responses = set()
    await world.start_reconciler()
    await world.until_outcome(WEB, "Converged")
    assert (gate.count("order"), gate.count("finalize")) == (1, 1)
    serials = re.findall(r"Issued certificate serial (\w+)", gate.pebble.log.read_text())
    assert serials[-1].lstrip("0") == site.serial
