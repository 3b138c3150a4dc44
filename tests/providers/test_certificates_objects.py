"""Only certificates: checks, orders that survive crashes, limits, delivery and revocation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from events.allow import NOTHING
from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields, InvalidManifestError
from events.provider_config import Limits, ProviderConfigSpec, Scope
from infra.components.certificates import Certificates
from infra.providers.certificates import certificate, issuer
from infra.providers.certificates.acme_client import AcmeClient, Challenge
from infra.providers.certificates.certificate import CERTIFICATE
from infra.providers.certificates.certificates import CertificatesProvider
from infra.providers.certificates.checks import CHECKS, Case, find_order_reason, findings
from infra.providers.certificates.delivery import Bundle, deliver, withdraw
from infra.providers.certificates.http01 import write_response
from infra.providers.certificates.issuer import ISSUER
from infra.providers.certificates.pem import CertificateInfo, certificates_in, is_signed_by
from infra.providers.certificates.spec import CREATED, STORE
from infra.providers.certificates.store import root_of
from infra.providers.file_root import FileRoot
from infra.providers.host_guard import HostGuard
from reconciler.errors import (
    ConfigurationError,
    NotCalledError,
    NotDoneError,
    RefusedError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import action, is_interrupted, with_version_of
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL
from tests.acme_gate import AcmeGate, acme_gate
from tests.certificates import (
    OWN_CA,
    acme,
    connect_issuers,
    create_issuer,
    create_root,
    trust,
)
from tests.host_access import EVERYTHING
from tests.hostile_server import MIB, measure_memory

NOW = datetime(2030, 1, 1, tzinfo=UTC)
WEB: Fields = {"issuer": "own", "dnsNames": ["web.test"]}
FACTS = CertificateInfo(
    serial="1",
    not_before=NOW,
    not_after=NOW + timedelta(days=90),
    fingerprint="f",
    public_key="k",
    algorithm="ECDSA-P256",
    dns_names=("web.test",),
    ip_addresses=(),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return create_root(tmp_path)


@pytest.fixture
async def provider(root: Path) -> AsyncIterator[CertificatesProvider]:
    config = ProviderConfigSpec(
        "certificates",
        root.as_uri(),
        limits=Limits(request_timeout_seconds=5),
        allow=EVERYTHING,
    )
    opened = CertificatesProvider(config, Secrets(), CallPermit())
    yield opened
    await opened.close()


def create(fields: Fields = WEB, name: str = "web") -> Action:
    return action("Create", name, CERTIFICATE.check_fields(fields))


def update(observed_certificate: ExternalObject, fields: Fields = WEB) -> Action:
    return with_version_of(
        action("Update", observed_certificate.name, CERTIFICATE.check_fields(fields)),
        observed_certificate,
    )


def renewal(observed_certificate: ExternalObject, fields: Fields = WEB) -> Action:
    return msgspec.structs.replace(update(observed_certificate, fields), purpose="Renew")


async def read_certificate(provider: CertificatesProvider, name: str = "web") -> ExternalObject:
    observed_certificate = await provider.read(name)
    assert observed_certificate is not None
    return observed_certificate


async def create_certificate(
    provider: CertificatesProvider, fields: Fields = WEB
) -> ExternalObject:
    observed_certificate = (await provider.create(create(fields))).object
    assert observed_certificate is not None
    return observed_certificate


def leaf(folder: Path) -> x509.Certificate:
    return certificates_in((folder / "tls.crt").read_bytes())[0]


# --- declarations


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"issuer": "own"}, "set at least one of commonName, dnsNames and ipAddresses"),
        ({"issuer": "own", "dnsNames": ["a b"]}, "'a b' is not a DNS name"),
        ({"issuer": "own", "ipAddresses": ["1.2.3"]}, "1.2.3"),
        ({**WEB, "duration": "3 weeks"}, "duration"),
        ({**WEB, "duration": "1h", "renewBefore": "60m"}, "must be less than duration"),
        ({**WEB, "keyAlgorithm": "RSA-1024"}, "keyAlgorithm"),
        ({**WEB, "folder": "../etc"}, "below the root"),
        ({**WEB, "folder": "/etc"}, "below the root"),
        ({**WEB, "folder": f"{STORE}/issuers"}, "below the root"),
        ({**WEB, "folder": "shop/tls.key"}, "'tls.key' is the name of a certificate file"),
        ({**WEB, "folder": "shop/ca.crt/web"}, "'ca.crt' is the name of a certificate file"),
        ({**WEB, "isuer": "x"}, "spec.isuer: unknown field"),
    ],
)
def test_an_invalid_certificate_is_refused(fields: Fields, problem: str) -> None:
    with pytest.raises(InvalidManifestError, match=problem):
        CERTIFICATE.check_fields(fields)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "exactly one of ownCa and acme"),
        ({**OWN_CA, "acme": {}}, "acme"),
        (
            {"acme": {"directory": "http://ca.test", "http01": {}}},
            "exactly one of listen and folder",
        ),
        ({"acme": {"directory": "http://ca.test", "http01": {"folder": "a"}}}, "https://"),
        ({"acme": {"directory": "https://ca.test", "http01": {"folder": "a"}}}, "acceptTerms"),
        ({"acme": {"directory": "https://u@ca.test", "http01": {"folder": "a"}}}, "https://"),
        ({"acme": {"directory": "https://c", "http01": {"listen": "localhost:1"}}}, "ADDRESS:PORT"),
        ({"acme": {"directory": "https://c", "http01": {"folder": "../x"}}}, "below the root"),
    ],
)
def test_an_invalid_issuer_is_refused(fields: Fields, problem: str) -> None:
    with pytest.raises(InvalidManifestError, match=problem):
        ISSUER.check_fields(fields)


def test_two_spellings_of_a_certificate_are_equal() -> None:
    fields = CERTIFICATE.check_fields(
        {**WEB, "dnsNames": ["B.test", "a.test"], "duration": "48h", "ipAddresses": ["0:0::1"]}
    )
    other_fields = {**WEB, "dnsNames": ["a.test", "b.test", "a.test"], "duration": "2d"}
    assert fields == CERTIFICATE.check_fields({**other_fields, "ipAddresses": ["::1"]})


def test_the_kinds_load_without_their_libraries_and_the_error_names_what_to_install() -> None:
    code = (
        "import sys\n"
        "sys.modules['acme'] = sys.modules['cryptography'] = None\n"
        "from reconciler.provider.kind import installed_kinds\n"
        "from events.provider_config import ProviderConfigSpec\n"
        "from reconciler.errors import ConfigurationError\n"
        "from reconciler.provider.secrets import Secrets\n"
        "from reconciler.provider.call_permit import CallPermit\n"
        "for name in ('Issuer', 'Certificate'):\n"
        "    try:\n"
        "        installed_kinds()[name].connect(\n"
        "            ProviderConfigSpec('certificates', 'file:///srv/tls'),\n"
        "            Secrets(), CallPermit()\n"
        "        )\n"
        "    except ConfigurationError as error:\n"
        "        print(error)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    lines = process.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "run pip install 'event-sourced-reconciler[certificates]'" in line


async def test_a_root_is_a_file_url() -> None:
    with pytest.raises(ConfigurationError, match="file:///some/root; declare an Issuer"):
        CertificatesProvider(
            ProviderConfigSpec("certificates", "https://ca.test/dir"), Secrets(), CallPermit()
        )


# --- renewal times


def certificate_until(hours: float) -> ExternalObject:
    not_after = NOW + timedelta(hours=hours)
    return ExternalObject(
        "web", {}, outputs={"notBefore": NOW.isoformat(), "notAfter": not_after.isoformat()}
    )


def test_a_renewal_is_due_a_third_of_the_lifetime_before_the_end_or_as_declared() -> None:
    assert certificate.renewal_time({}, certificate_until(90)) == NOW + timedelta(hours=60)
    assert certificate.renewal_time(
        {"renewBefore": "1h"}, certificate_until(90)
    ) == NOW + timedelta(hours=89)
    assert certificate.renewal_time({}, ExternalObject("web", {})) is None
    assert issuer.renewal_time(
        {"ownCa": {"renewBefore": "1h"}}, certificate_until(9)
    ) == NOW + timedelta(hours=8)
    assert issuer.renewal_time({"acme": {}}, certificate_until(9)) is None


def test_a_lifetime_shorter_than_renew_before_does_not_cause_a_hot_loop() -> None:
    assert certificate.renewal_time(
        {"renewBefore": "30d"}, certificate_until(3)
    ) == NOW + timedelta(hours=1)


# --- the checks


@pytest.mark.parametrize(
    ("case", "reasons", "is_ordered"),
    [
        (Case("k", FACTS, {"tls.key": "Delivered"}), [], False),
        (Case("k", None, {}), ["CertificateMissing"], True),
        (Case(None, FACTS, {}), ["KeyMissing"], True),
        (Case("other", FACTS, {}), ["KeyDiffers"], True),
        (Case("k", FACTS, {}, is_trusted=False), ["OtherAuthority"], True),
        (Case("k", FACTS, {}, has_current_ca=False), ["AuthorityRenewed"], False),
        (Case("k", FACTS, {}, is_due=True), ["NearExpiry"], True),
        (Case("k", FACTS, {"tls.key": "Missing"}), ["FileMissing: tls.key"], False),
        (Case("k", FACTS, {"tls.key": "Exposed"}), ["FileExposed: tls.key"], False),
        (Case("k", FACTS, {}, is_key_exposed=True), ["KeyExposed"], False),
    ],
)
def test_each_check_reports_what_is_wrong_and_how_to_fix_it(
    case: Case, reasons: list[str], is_ordered: bool
) -> None:
    reported_findings = findings(case)
    assert [str(each) for each in reported_findings] == reasons
    assert (find_order_reason(reported_findings) is not None) == is_ordered


@pytest.mark.parametrize(
    ("changed", "reasons"),
    [
        ({}, []),
        ({"dnsNames": ["other.test"]}, ["RequestDiffers: dnsNames"]),
        ({"ipAddresses": ["::1"]}, ["RequestDiffers: ipAddresses"]),
        ({"keyAlgorithm": "RSA-2048"}, ["RequestDiffers: keyAlgorithm"]),
        ({"issuer": "other"}, ["RequestDiffers: issuer"]),
        ({"commonName": "x"}, ["RequestDiffers: commonName"]),
        ({"duration": "1h"}, ["RequestDiffers: duration"]),
        ({"renewBefore": "1h", "folder": "x", "revokeOnDelete": True}, []),
    ],
)
def test_only_fields_of_the_request_need_a_new_request(changed: Fields, reasons: list[str]) -> None:
    applied = CERTIFICATE.check_fields(WEB)
    case = Case("k", FACTS, {}, applied=applied, desired={**applied, **changed})
    assert [str(each) for each in findings(case)] == reasons
    assert all(not checks for checks in findings(case._replace(desired=None)))
    fixed_duration = case._replace(grants_duration=False)
    assert [str(each) for each in findings(fixed_duration)] == [
        each for each in reasons if "duration" not in each
    ]


def test_every_check_has_its_reason_in_its_docstring() -> None:
    assert all(check.__doc__ for check in CHECKS)


# --- our own authority


async def test_delivered_files_serve_tls_and_only_their_ca_is_trusted(
    root: Path, provider: CertificatesProvider
) -> None:
    authority = await create_issuer(root, "own", OWN_CA)
    observed_certificate = await create_certificate(
        provider, {**WEB, "dnsNames": ["localhost"], "folder": "shop/tls"}
    )
    folder = root / "shop/tls"

    assert observed_certificate.outputs["keyFile"] == str(folder / "tls.key")
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}
    assert {name: f"{mode:o}" for name, mode in modes.items() if name[0] != "."} == {
        "tls.key": "600",
        "tls.pem": "600",
        "tls.crt": "644",
        "ca.crt": "644",
    }
    assert (folder / "ca.crt").read_text() == authority.outputs["certificate"]
    assert await read_over_tls(folder) == b"hello"
    stored_names = [path for path in files_in(root) if path.suffix == ".key"]
    assert {f"{stat.S_IMODE(path.stat().st_mode):o}" for path in stored_names} == {"600"}
    assert stat.S_IMODE((root / STORE).stat().st_mode) == 0o700


def files_in(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


async def read_over_tls(folder: Path) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.pem")

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client_context = ssl.create_default_context(cafile=folder / "ca.crt")
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client_context, server_hostname="localhost"
        )
        received = await reader.read()
        writer.close()
        return received


@pytest.mark.parametrize("lost_file", ["tls.key", "tls.crt", "ca.crt", "tls.pem", "all"])
async def test_a_lost_file_is_delivered_again_and_the_certificate_is_kept(
    root: Path, provider: CertificatesProvider, lost_file: str
) -> None:
    await create_issuer(root, "own", OWN_CA)
    previous_certificate = await create_certificate(provider)
    for path in (root / "web").iterdir():
        if lost_file in (path.name, "all"):
            path.unlink()
    if lost_file == "all":
        (root / "web").rmdir()

    current = await read_certificate(provider)
    assert any("FileMissing" in each for each in current.fields["problems"])
    repaired = (await provider.update(update(current))).object
    assert repaired is not None
    assert (repaired.outputs, repaired.fields["problems"]) == (previous_certificate.outputs, [])


@pytest.mark.parametrize("damage", ["a link instead of a folder", "a huge file", "a huge marker"])
async def test_a_writer_to_one_certificates_folder_does_not_affect_others(
    root: Path, provider: CertificatesProvider, tmp_path: Path, damage: str
) -> None:
    await create_issuer(root, "own", OWN_CA)
    await create_certificate(provider)
    await provider.create(create({**WEB, "folder": "theirs/web"}, "theirs"))
    match damage:
        case "a link instead of a folder":
            (root / "theirs").rename(tmp_path / "theirs")
            (root / "theirs").symlink_to(tmp_path / "theirs")
        case "a huge file":
            os.truncate(root / "theirs/web/tls.crt", 256 * MIB)
        case _:
            os.truncate(root / "theirs/web/.reconciler-certificate", 256 * MIB)
    with measure_memory() as memory:
        pages = [page async for page in provider.pages(Scope(), page_size=10)]
        foreign_certificate = next(each for page in pages for each in page if each.name == "theirs")
        with contextlib.suppress(RefusedError, NotDoneError):
            await provider.update(update(foreign_certificate, {**WEB, "folder": "theirs/web"}))
    assert {each.name: bool(each.fields["problems"]) for page in pages for each in page} == {
        "theirs": damage != "a huge marker",
        "web": False,
    }
    assert memory.peak_bytes < 32 * MIB


async def test_out_of_band_changes_to_a_file_are_reverted(
    root: Path, provider: CertificatesProvider, tmp_path: Path
) -> None:
    await create_issuer(root, "own", OWN_CA)
    await create_certificate(provider)
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    (root / "web/tls.key").chmod(0o644)
    (root / "web/tls.crt").write_text("nonsense")
    (root / "web/ca.crt").unlink()
    (root / "web/ca.crt").symlink_to(outside)

    current = await read_certificate(provider)
    assert sorted(current.fields["problems"]) == [
        "FileDiffers: ca.crt",
        "FileDiffers: tls.crt",
        "FileExposed: tls.key",
    ]
    repaired = (await provider.update(update(current))).object
    assert repaired is not None
    assert repaired.fields["problems"] == []
    assert stat.S_IMODE((root / "web/tls.key").stat().st_mode) == 0o600
    assert outside.read_text() == "theirs", "the link was replaced, not followed"


@pytest.mark.parametrize(("rotation", "is_same"), [("AtRenewal", False), ("Never", True)])
async def test_a_renewal_creates_a_new_certificate_and_rotates_the_key_as_declared(
    root: Path, provider: CertificatesProvider, rotation: str, is_same: bool
) -> None:
    await create_issuer(root, "own", OWN_CA)
    fields: Fields = {**WEB, "keyRotation": rotation}
    previous_certificate = await create_certificate(provider, fields)
    key = (root / "web/tls.key").read_bytes()
    renewed = (await provider.update(renewal(previous_certificate, fields))).object

    assert renewed is not None
    assert renewed.outputs["serial"] != previous_certificate.outputs["serial"]
    assert ((root / "web/tls.key").read_bytes() == key) == is_same
    assert renewed.outputs["serial"] == f"{leaf(root / 'web').serial_number:x}"
    stored_names = [each.name for each in (root / STORE / "certificates/web").iterdir()]
    assert len(stored_names) == 4, f"earlier files are left: {stored_names}"


async def test_changing_the_folder_moves_the_files_without_a_new_order(
    root: Path, provider: CertificatesProvider
) -> None:
    await create_issuer(root, "own", OWN_CA)
    previous_certificate = await create_certificate(provider)
    (root / "web/others").touch()
    fields: Fields = {**WEB, "folder": "shop/tls"}
    moved = (await provider.update(update(previous_certificate, fields))).object

    assert moved is not None
    assert moved.outputs["serial"] == previous_certificate.outputs["serial"]
    assert [each.name for each in (root / "web").iterdir()] == ["others"]
    assert (root / "shop/tls/tls.key").exists()
    await provider.delete(with_version_of(action("Delete", "web", {}), moved))
    assert not (root / "shop/tls").exists()
    assert list((root / STORE / "certificates").iterdir()) == []


async def test_a_foreign_folder_is_never_written_and_nothing_is_ordered_for_it(
    root: Path, provider: CertificatesProvider, tmp_path: Path
) -> None:
    await create_issuer(root, "own", OWN_CA)
    (root / "web").mkdir()
    (root / "web/tls.key").write_text("theirs")
    with pytest.raises(
        RefusedError, match=r"web/tls\.key already exists and Reconciler did not create it"
    ):
        await provider.create(create())
    assert (root / "web/tls.key").read_text() == "theirs"
    assert await provider.read("web") is None

    await provider.create(create({**WEB, "folder": "one"}, "first"))
    with pytest.raises(RefusedError, match="contains the files of another certificate"):
        await provider.create(create({**WEB, "folder": "one"}, "second"))

    (root / "out").symlink_to(tmp_path)
    with pytest.raises(RefusedError, match="symbolic link"):
        await provider.create(create({**WEB, "folder": "out/web"}, "third"))


@pytest.mark.parametrize(
    ("namespace", "described_owner"),
    [("default", "certificate 'default-secret'"), ("other", "another certificate")],
)
async def test_a_certificate_of_another_namespace_is_not_named(
    root: Path, provider: CertificatesProvider, namespace: str, described_owner: str
) -> None:
    def create_in(namespace: str, name: str) -> Action:
        return msgspec.structs.replace(
            create({**WEB, "folder": "one"}, name),
            action_id=f"{namespace}/Certificate/{name}@2",
            labels={OWNER_LABEL: f"log.{namespace}.Certificate.{name}"},
        )

    await create_issuer(root, "own", OWN_CA)
    await provider.create(create_in("default", "default-secret"))
    with pytest.raises(RefusedError) as raised:
        await provider.create(create_in(namespace, "second"))
    assert raised.value.message.startswith(
        f"directory 'one' contains the files of {described_owner};"
    )


async def test_nothing_is_created_in_another_certificates_directory(
    root: Path, provider: CertificatesProvider
) -> None:
    await create_issuer(root, "own", OWN_CA)
    await provider.create(create({**WEB, "folder": "one/tls"}, "first"))
    files = {*(root / "one/tls").iterdir()}
    for folder in ("one/tls/inner", "one/tls/inner/web"):
        with pytest.raises(RefusedError, match="'one/tls' contains the files of another"):
            await provider.create(create({**WEB, "folder": folder}, "second"))
    assert {*(root / "one/tls").iterdir()} == files

    # A certificate may move within its own directory, and beside another one.
    observed_certificate = await read_certificate(provider, "first")
    inner = CERTIFICATE.check_fields({**WEB, "folder": "one/tls/inner"})
    await provider.update(with_version_of(action("Update", "first", inner), observed_certificate))
    assert leaf(root / "one/tls/inner")
    await provider.create(create({**WEB, "folder": "one/web"}, "second"))


@pytest.mark.parametrize("folder", ["one", "one/tls", "one/tls/inner"])
async def test_a_lost_directory_still_belongs_to_its_certificate(
    root: Path, provider: CertificatesProvider, folder: str
) -> None:
    await create_issuer(root, "own", OWN_CA)
    await provider.create(create({**WEB, "folder": "one/tls"}, "first"))
    for _ in range(2):
        with pytest.raises(RefusedError, match="'one/tls' contains the files of another"):
            await provider.create(create({**WEB, "folder": folder}, "second"))
        shutil.rmtree(root / "one", ignore_errors=True)
    assert not (root / "one").exists()
    with pytest.raises(RefusedError, match="one/tls is the directory of a certificate"):
        write_response(FileRoot(root), "one", "tls", "a response whose token the CA chose")
    lost = await read_certificate(provider, "first")
    await provider.update(update(lost, {**WEB, "folder": "one/tls"}))
    assert leaf(root / "one/tls")
    await provider.create(create({**WEB, "folder": "one/tls2"}, "third"))


async def test_a_renewed_authority_is_delivered_and_a_recreated_one_signs_again(
    root: Path, provider: CertificatesProvider
) -> None:
    authority = await create_issuer(root, "own", OWN_CA)
    previous_certificate = await create_certificate(provider)
    async with connect_issuers(root) as issuers:
        update_action = with_version_of(
            action("Update", "own", ISSUER.check_fields(OWN_CA)), authority
        )
        update_action = msgspec.structs.replace(update_action, purpose="Renew")
        renewed = (await issuers.update(update_action)).object
        assert renewed is not None
        assert renewed.outputs["fingerprint"] != authority.outputs["fingerprint"]

        current = await read_certificate(provider)
        assert "AuthorityRenewed" in current.fields["problems"]
        repaired = (await provider.update(update(current))).object
        assert repaired is not None
        assert (repaired.outputs["serial"], repaired.fields["problems"]) == (
            previous_certificate.outputs["serial"],
            [],
        )
        assert (root / "web/ca.crt").read_text() == renewed.outputs["certificate"]

        await issuers.delete(with_version_of(action("Delete", "own", {}), renewed))
    other_certificate = await create_issuer(root, "own", OWN_CA)
    current = await read_certificate(provider)
    assert "OtherAuthority" in current.fields["problems"]
    await provider.update(update(current))
    (ca,) = certificates_in(cast("str", other_certificate.outputs["certificate"]).encode())
    assert is_signed_by(leaf(root / "web"), ca)


async def test_a_certificate_never_outlives_its_ca(
    root: Path, provider: CertificatesProvider
) -> None:
    own: Fields = {"ownCa": {"commonName": "Short", "duration": "1h"}}
    authority = await create_issuer(root, "own", own)
    observed_certificate = await create_certificate(provider)
    assert observed_certificate.outputs["notAfter"] == authority.outputs["notAfter"]


def revoked_in(path: str) -> x509.CertificateRevocationList:
    return x509.load_pem_x509_crl(Path(path).read_bytes())


async def test_a_withdrawn_certificate_is_revoked_if_declared(
    root: Path, provider: CertificatesProvider
) -> None:
    await create_issuer(root, "own", OWN_CA)
    for name, revokes in (("kept", False), ("revoked", True)):
        effect = await provider.create(create({**WEB, "revokeOnDelete": revokes}, name))
        assert effect.object is not None
        await provider.delete(with_version_of(action("Delete", name, {}), effect.object))
        async with connect_issuers(root) as issuers:
            own = await issuers.read("own")
        assert own is not None
        if not revokes:
            assert "revoked" not in own.outputs
            continue
        listed = revoked_in(own.outputs["revoked"])
        assert [f"{each.serial_number:x}" for each in listed] == [effect.object.outputs["serial"]]


async def test_an_authority_that_lost_its_key_is_invalid_and_never_recreated(
    root: Path, provider: CertificatesProvider
) -> None:
    authority = await create_issuer(root, "own", OWN_CA)
    for path in (root / STORE / "issuers/own").glob("*.key"):
        path.unlink()
    with pytest.raises(NotDoneError, match="restore it from a backup"):
        await provider.create(create())
    async with connect_issuers(root) as issuers:
        current = await issuers.read("own")
        assert current is not None
        assert current.fields["problems"] == ["KeyMissing"]
        update_action = with_version_of(
            action("Update", "own", ISSUER.check_fields(OWN_CA)), current
        )
        with pytest.raises(RefusedError, match="its key is missing"):
            await issuers.update(update_action)
    assert authority.uid == current.uid


async def test_a_stored_key_that_other_accounts_can_read_is_rewritten(
    root: Path, provider: CertificatesProvider
) -> None:
    authority = await create_issuer(root, "own", OWN_CA)
    certificate = await create_certificate(provider)
    keys = list((root / STORE).rglob("*.key"))
    assert len(keys) == 2
    contents = [each.read_bytes() for each in keys]
    opened = [each.open("rb") for each in keys]
    for each in keys:
        each.chmod(0o644)

    async with connect_issuers(root) as issuers:
        exposed_authority = await issuers.read("own")
        assert exposed_authority is not None
        assert exposed_authority.fields["problems"] == ["KeyExposed"]
        repair = with_version_of(
            action("Update", "own", ISSUER.check_fields(OWN_CA)), exposed_authority
        )
        repaired_authority = (await issuers.update(repair)).object
    exposed = await read_certificate(provider)
    assert exposed.fields["problems"] == ["KeyExposed"]
    repaired = (await provider.update(update(exposed))).object

    assert repaired is not None
    assert repaired_authority is not None
    assert repaired.fields["problems"] == repaired_authority.fields["problems"] == []
    assert [stat.S_IMODE(each.stat().st_mode) for each in keys] == [0o600, 0o600]
    assert [each.read_bytes() for each in keys] == contents
    for key, file in zip(keys, opened, strict=True):
        assert not os.path.samestat(key.stat(), os.fstat(file.fileno())), "a link may remain"
        file.close()
    for name in ("fingerprint", "certificate"):
        assert repaired_authority.outputs[name] == authority.outputs[name]
    assert repaired.outputs["serial"] == certificate.outputs["serial"]


async def test_directories_that_a_delivery_created_are_removed_with_their_last_certificate(
    root: Path, provider: CertificatesProvider
) -> None:
    await create_issuer(root, "own", OWN_CA)
    (root / "theirs").mkdir()
    deletions = [
        with_version_of(action("Delete", name, {}), effect.object)
        for name, folder in {
            "first": "shop/eu/first",
            "second": "shop/second",
            "third": "theirs/a/third",
        }.items()
        if (effect := await provider.create(create({**WEB, "folder": folder}, name))).object
    ]
    await provider.delete(deletions[0])
    assert sorted(each.name for each in (root / "shop").iterdir()) == [CREATED, "second"]
    await provider.delete(deletions[1])
    assert not (root / "shop").exists()
    await provider.delete(deletions[2])
    assert list((root / "theirs").iterdir()) == [], "its directory is not ours"


@pytest.mark.parametrize("missing", ["the certificate's directory", "its marker", "nothing"])
async def test_an_interrupted_removal_of_directories_is_resumed(root: Path, missing: str) -> None:
    bundle = Bundle(b"key", b"chain", b"ca")
    deliver(root_of(root.as_uri()), "shop/eu/web", "web", bundle, str)
    (root / "shop/other").touch()
    if missing == "the certificate's directory":
        shutil.rmtree(root / "shop/eu/web")
    elif missing == "its marker":
        shutil.rmtree(root / "shop/eu/web")
        (root / "shop/eu" / CREATED).unlink()
    withdraw(root_of(root.as_uri()), "shop/eu/web", "web")
    assert (root / "shop/eu").exists() == (missing == "its marker"), "it may be theirs"
    assert (root / "shop/other").exists()


async def test_a_directory_that_a_delivery_created_may_become_a_certificates_directory(
    root: Path,
) -> None:
    bundle, opened = Bundle(b"key", b"chain", b"ca"), root_of(root.as_uri())
    deliver(opened, "shop/eu", "inner", bundle, str)
    deliver(opened, "shop", "outer", bundle, str)
    withdraw(opened, "shop/eu", "inner")
    assert (root / "shop/tls.key").exists()
    withdraw(opened, "shop", "outer")
    assert not (root / "shop").exists()


async def test_an_authority_that_lost_its_certificate_signs_a_new_one_with_its_key(
    root: Path,
) -> None:
    previous_certificate = await create_issuer(root, "own", OWN_CA)
    for path in (root / STORE / "issuers/own").glob("*.crt"):
        path.unlink()
    async with connect_issuers(root) as issuers:
        current = await issuers.read("own")
        assert current is not None
        assert current.fields["problems"] == ["CertificateMissing"]
        update_action = with_version_of(
            action("Update", "own", ISSUER.check_fields(OWN_CA)), current
        )
        repaired = (await issuers.update(update_action)).object
    assert repaired is not None
    assert repaired.fields["problems"] == []
    old, new = (
        certificates_in(cast("str", each.outputs["certificate"]).encode())[0]
        for each in (previous_certificate, repaired)
    )
    assert old.public_key() == new.public_key()
    assert old != new


async def test_a_certificate_waits_for_a_missing_issuer(provider: CertificatesProvider) -> None:
    with pytest.raises(NotDoneError, match="issuer 'own' does not exist"):
        await provider.create(create())


async def test_one_of_two_concurrent_calls_is_refused(
    root: Path, provider: CertificatesProvider
) -> None:
    await create_issuer(root, "own", OWN_CA)
    same = create({**WEB, "keyAlgorithm": "RSA-2048"})
    results = await asyncio.gather(
        provider.create(same), provider.create(same), return_exceptions=True
    )
    refused = [each for each in results if isinstance(each, NotDoneError)]
    assert len(refused) == 1
    assert "another call is using 'web'" in str(refused[0])


# --- ACME


@pytest.fixture
async def gate(pebble: Certificates, tmp_path: Path) -> AsyncIterator[AcmeGate]:
    async with acme_gate(pebble, tmp_path / "gate") as opened:
        yield opened


OVER_ACME: Fields = {"issuer": "acme", "dnsNames": ["web.test"]}


async def create_acme_issuer(root: Path, gate: AcmeGate, **options: object) -> None:
    gate.make_trusted_by(root)
    await create_issuer(root, "acme", acme(gate.pebble, gate.directory, **options))


@pytest.mark.pebble
async def test_a_crash_after_any_request_continues_with_the_same_order(
    root: Path, provider: CertificatesProvider, gate: AcmeGate
) -> None:
    """Only an interruption during validation causes a second order: the first one has failed."""
    await create_acme_issuer(root, gate)
    for request in range(1, 40):
        name = f"web{request}"
        creation = create({**OVER_ACME, "dnsNames": [f"{name}.test"]}, name)
        order_count, signed_count = gate.count("order"), gate.count("finalize")
        was_interrupted = await is_interrupted(request, provider.create(creation))
        interim = await provider.read(name)
        effect = await provider.create(creation)

        assert effect.object is not None
        assert effect.object.fields["problems"] == []
        assert gate.count("order") - order_count <= 1 + was_interrupted, f"before step {request}"
        assert gate.count("finalize") - signed_count == 1, f"before step {request}"
        if interim is not None:
            assert interim.outputs["serial"] == effect.object.outputs["serial"]
            assert gate.count("order") - order_count == 1
        if not was_interrupted:
            break
    else:
        pytest.fail("the creation never completes")


async def test_a_deletion_removes_the_key_of_an_unfinished_creation(
    root: Path, provider: CertificatesProvider
) -> None:
    await create_issuer(root, "own", OWN_CA)
    assert await is_interrupted(4, provider.create(create()))  # before the authority signs
    folder = root / STORE / "certificates"
    assert list(folder.glob("web/*.key"))

    assert await provider.read("web") is None
    assert (await provider.delete(action("Delete", "web", {}))).absent
    assert list(folder.iterdir()) == []


SELF_KILLING_PROGRAM = """
import asyncio, os, signal, sys
import msgspec
from events.log import Action
from events.provider_config import ProviderConfigSpec
from infra.providers.certificates.certificates import CertificatesProvider
from reconciler.provider.call_permit import CALL_GATE, CallPermit
from reconciler.provider.secrets import Secrets
from tests.host_access import EVERYTHING

class KillBefore:
    may_send_now, interval_seconds, remaining = False, 0.0, int(sys.argv[2])

    async def wait(self, *, has_priority=False):
        self.remaining -= 1
        if not self.remaining:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    config = ProviderConfigSpec("certificates", sys.argv[1], allow=EVERYTHING)
    provider = CertificatesProvider(config, Secrets(), CallPermit())
    CALL_GATE.set(KillBefore())
    await provider.create(msgspec.json.decode(sys.stdin.read(), type=Action))

asyncio.run(main())
"""


@pytest.mark.pebble
@pytest.mark.parametrize("step", [3, 5, 9, 12, 14])
async def test_the_next_process_continues_the_order_of_a_killed_one(
    root: Path, provider: CertificatesProvider, gate: AcmeGate, step: int
) -> None:
    await create_acme_issuer(root, gate)
    creation = create(OVER_ACME)
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SELF_KILLING_PROGRAM, root.as_uri(), str(step)),
        stdin=asyncio.subprocess.PIPE,
    )
    await killed.communicate(msgspec.json.encode(creation))
    assert killed.returncode == -signal.SIGKILL
    orders, signed_count = gate.count("order"), gate.count("finalize")
    observed_certificate = (await provider.create(creation)).object

    assert observed_certificate is not None
    assert observed_certificate.fields["problems"] == []
    assert gate.count("finalize") == 1
    if signed_count:
        assert gate.count("order") == orders == 1, "the certificate of that order"


@pytest.mark.pebble
async def test_a_response_lost_after_finalizing_leads_to_the_same_certificate(
    root: Path, provider: CertificatesProvider, gate: AcmeGate
) -> None:
    await create_acme_issuer(root, gate)
    creation = create(OVER_ACME)
    gate.drop_responses = {"finalize"}
    with pytest.raises(Exception, match=r"it is not reachable|did not answer|no response"):
        await provider.create(creation)
    gate.drop_responses = set()
    observed_certificate = (await provider.create(creation)).object

    assert observed_certificate is not None
    assert (gate.count("order"), gate.count("finalize")) == (1, 1)
    assert observed_certificate.outputs["serial"] in gate.pebble.log.read_text()


@pytest.mark.pebble
async def test_a_rate_limit_is_obeyed_to_the_second_by_every_later_action(
    root: Path, provider: CertificatesProvider, gate: AcmeGate
) -> None:
    await create_acme_issuer(root, gate)
    previous_certificate = (await provider.create(create(OVER_ACME))).object
    assert previous_certificate is not None
    gate.limit_for(3600)
    with pytest.raises(NotDoneError, match="rateLimited") as refused:
        await provider.update(renewal(previous_certificate, OVER_ACME))
    assert refused.value.status == 429
    assert 3590 < (refused.value.retry_after_seconds or 0) <= 3600
    request_count = len(gate.order_times)

    other_fields = {**OVER_ACME, "dnsNames": ["web.test", "more.test"]}
    with pytest.raises(NotCalledError, match="no orders before") as limited:
        await provider.update(update(previous_certificate, other_fields))
    assert 3590 < (limited.value.retry_after_seconds or 0) <= 3600
    assert len(gate.order_times) == request_count, "no second request was sent"

    (root / "web/tls.key").unlink()
    repaired = (await provider.update(update(await read_certificate(provider), OVER_ACME))).object
    assert repaired is not None
    assert repaired.outputs == previous_certificate.outputs, (
        "an update that needs no order is not delayed"
    )


@pytest.mark.pebble
async def test_a_rate_limited_renewal_first_delivers_lost_files(
    root: Path, provider: CertificatesProvider, gate: AcmeGate
) -> None:
    await create_acme_issuer(root, gate)
    await create_certificate(provider, OVER_ACME)
    (root / "web/tls.key").unlink()
    gate.limit_for(3600)
    with pytest.raises(NotDoneError, match="rateLimited"):
        await provider.update(renewal(await read_certificate(provider), OVER_ACME))
    assert (await read_certificate(provider)).fields["problems"] == []


@pytest.mark.parametrize("token", ["../../web/tls.key", "a/b", "", ".", "x" * 129])
def test_an_authoritys_token_never_becomes_a_path(token: str) -> None:
    client = AcmeClient(
        "https://ca.test/dir",
        ec.generate_private_key(ec.SECP256R1()),
        ca_file=None,
        timeout_seconds=1,
        guard=HostGuard(NOTHING),
    )
    with pytest.raises(RefusedError, match="an invalid token"):
        client.key_authorization(Challenge("http-01", "https://ca.test/1", token=token))
    client.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "localhost"])
async def test_an_authority_on_the_host_is_called_only_if_allowed(host: str) -> None:
    connections: list[int] = []

    async def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        writer.close()

    async with await asyncio.start_server(count, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for allow, expected in ((NOTHING, "spec.allow.addresses"), (EVERYTHING, "not reachable")):
            client = AcmeClient(
                f"https://{host}:{port}/dir",
                ec.generate_private_key(ec.SECP256R1()),
                ca_file=None,
                timeout_seconds=2,
                guard=HostGuard(allow),
            )
            with pytest.raises(NotDoneError, match=expected):
                await asyncio.to_thread(client.register, None)
            client.close()
            assert bool(connections) is (allow is EVERYTHING)


@pytest.mark.pebble
async def test_a_failed_name_validation_is_reported_and_retried_with_a_new_order(
    root: Path, provider: CertificatesProvider, gate: AcmeGate
) -> None:
    await create_acme_issuer(
        root, gate, http01={"folder": "challenges"}
    )  # where no web server serves it
    creation = create(OVER_ACME)
    with pytest.raises(
        NotDoneError, match=r"web\.test: .*the next attempt places a new order"
    ) as refused:
        await provider.create(creation)
    assert refused.value.status == 424
    assert list((root / "challenges").iterdir()) == [], "the response is removed afterwards"
    with pytest.raises(NotDoneError):
        await provider.create(creation)
    assert gate.count("order") == 2


@pytest.mark.pebble
async def test_a_challenge_response_in_a_folder_is_served_by_a_web_server(
    root: Path, provider: CertificatesProvider, gate: AcmeGate
) -> None:
    await create_acme_issuer(root, gate, http01={"folder": "challenges"})
    async with gate.web_server(root / "challenges"):
        observed_certificate = await create_certificate(provider, OVER_ACME)
    assert observed_certificate.fields["problems"] == []


@pytest.mark.pebble
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"commonName": "other.test"}, "ACME requires it in dnsNames"),
        ({"dnsNames": ["*.web.test"]}, "HTTP validation does not support wildcards"),
        ({"dnsNames": [], "commonName": "web.test"}, "ACME requires it in dnsNames"),
    ],
)
async def test_an_order_impossible_with_acme_is_refused_before_any_request(
    root: Path, provider: CertificatesProvider, gate: AcmeGate, fields: Fields, problem: str
) -> None:
    await create_acme_issuer(root, gate)
    with pytest.raises(RefusedError, match=problem):
        await provider.create(create({**OVER_ACME, **fields}))
    assert gate.count("order") == 0


@pytest.mark.pebble
async def test_no_request_is_sent_to_an_untrusted_ca(
    root: Path, gate: AcmeGate, pebble: Certificates
) -> None:
    trust(pebble, root)  # the gate has another certificate
    with pytest.raises(NotDoneError, match=r"set spec\.acme\.caFile to the CA to trust") as refused:
        await create_issuer(root, "acme", acme(pebble, gate.directory))
    assert refused.value.status == 424
    async with connect_issuers(root) as issuers:
        assert await issuers.read("acme") is None


@pytest.mark.pebble
async def test_a_withdrawn_certificate_is_revoked_by_the_ca_and_a_retry_succeeds(
    root: Path, provider: CertificatesProvider, gate: AcmeGate
) -> None:
    await create_acme_issuer(root, gate)
    observed_certificate = await create_certificate(provider, {**OVER_ACME, "revokeOnDelete": True})
    delete = with_version_of(action("Delete", "web", {}), observed_certificate)
    for step in range(1, 10):
        if not await is_interrupted(step, provider.delete(delete)):
            break
    assert gate.count("revoke") >= 1
    assert await provider.read("web") is None
    assert not (root / "web").exists()


@pytest.mark.pebble
async def test_an_authority_that_lost_all_data_recreates_the_account_from_its_key(
    root: Path, provider: CertificatesProvider, tmp_path: Path
) -> None:
    """The authority also refuses half of the nonces."""
    pebble = Certificates(isolated=True, environment=[("PEBBLE_WFE_NONCEREJECT", "50")])
    await pebble.start(tmp_path / "own-pebble")
    try:
        trust(pebble, root)
        account = await create_issuer(root, "acme", acme(pebble))
        previous_certificate = await create_certificate(provider, OVER_ACME)
        await pebble.kill()
        await pebble.start(tmp_path / "own-pebble")
        renewed = (await provider.update(renewal(previous_certificate, OVER_ACME))).object
        assert renewed is not None
        assert renewed.outputs["serial"] != previous_certificate.outputs["serial"]
        async with connect_issuers(root) as issuers:
            current = await issuers.read("acme")
        assert current is not None
        assert current.uid == account.uid
    finally:
        await pebble.stop()
