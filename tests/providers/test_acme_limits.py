"""An ACME authority that sends too much or too slowly causes one error and uses little memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest
import requests
from acme import messages
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from events.provider_config import ProviderConfigSpec, Tls
from infra.providers.certificates import acme_transport, http01
from infra.providers.certificates.acme_client import (
    MAX_CHAIN_BYTES,
    AcmeClient,
    Authorization,
    Challenge,
    Identifier,
    LimitedError,
    Order,
)
from infra.providers.certificates.acme_order import AcmeOrder
from infra.providers.certificates.certificate import CERTIFICATE
from infra.providers.certificates.certificates import CertificatesProvider
from infra.providers.certificates.pem import PrivateKey, encode_certificates, key_pem, new_key
from infra.providers.certificates.spec import MARKER
from infra.providers.certificates.store import IssuerRecord, Store, read_file, write_file
from infra.providers.file_root import FileRoot, discard, open_file, stat_of
from infra.providers.host_guard import HostGuard
from infra.providers.trust import build_ssl_context
from reconciler.errors import NotDoneError, RefusedError, UnknownResultError
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import action
from reconciler.provider.secrets import Secrets
from tests.certificates import create_root
from tests.host_access import EVERYTHING
from tests.hostile_server import (
    HEAD,
    MIB,
    Responder,
    gzip_of_zeros,
    hostile_server,
    measure_memory,
    raw_server,
    send,
)

_T = TypeVar("_T")


def body(content: bytes) -> Responder:
    return send(HEAD + b"Content-Length: %d\r\n\r\n" % len(content), content)


def drip(connection: socket.socket, _head: bytes) -> None:
    connection.sendall(HEAD + b"X: ")
    while not threading.Event().wait(0.05):
        connection.sendall(b"x")


def keep_reading(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass


def redirect(connection: socket.socket, _head: bytes) -> None:
    connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /more\r\nContent-Length: 0\r\n\r\n")


HOSTILE: dict[str, tuple[Responder, str]] = {
    "1 GiB": (
        send(HEAD + b"Content-Length: %d\r\n\r\n" % 2**30, repeat=bytes(MIB), times=1024),
        "longer than 32 MiB",
    ),
    "2 GiB in 2 MiB of gzip": (
        send(
            HEAD + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n", gzip_of_zeros(2048 * MIB)
        ),
        "longer than 32 MiB",
    ),
    "2 MiB": (body(b'"' + b"x" * (2 * MIB) + b'"'), "longer than 1024 KiB"),
    "an endless header": (send(HEAD + b"X: ", repeat=b"x" * MIB, times=64), "64 KiB"),
    "a header sent byte by byte": (drip, "no response before the timeout"),
    "endless redirects": (redirect, "its response is not ACME"),
    "endlessly nested JSON": (body(b"[" * 900_000), "its response is not ACME"),
    "a list": (body(b"[1]"), "its response is not ACME"),
    "a string": (body(b'"x"'), "its response is not ACME"),
    "a directory of numbers": (body(b'{"newNonce":1,"newAccount":2}'), "its response is not ACME"),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_ca_response_that_is_too_large_or_too_slow_is_an_error(case: str) -> None:
    serve, error_text = HOSTILE[case]
    with hostile_server(serve) as port:
        client = AcmeClient(
            f"http://127.0.0.1:{port}/dir",
            ec.generate_private_key(ec.SECP256R1()),
            ca_file=None,
            timeout_seconds=3,
            guard=HostGuard(EVERYTHING),
        )
        with measure_memory() as memory, pytest.raises(NotDoneError, match=error_text) as raised:
            await asyncio.wait_for(asyncio.to_thread(client.register, None), 20)
        client.close()
    assert len(raised.value.message) < 1000
    assert memory.peak_bytes < 96 * MIB


class Authority:
    """An authority whose order never completes, and never asks the client to wait."""

    def __init__(self, states: tuple[str, ...], authorizations: int) -> None:
        self._states = states
        self._authorizations = ["https://ca.test/a"] * authorizations
        self._request_count = 0

    def find_order(self, url: str) -> Order:
        self._request_count += 1
        status = self._states[self._request_count % len(self._states)]
        return Order(status, self._authorizations, url)

    def authorization(self, url: str) -> Authorization:
        del url
        return Authorization(Identifier("dns", "a.test"), "valid", [])

    def finalize(self, order: Order, request: object) -> Order:
        del order, request
        return self.find_order("https://ca.test/o")


class ChallengingClient(AcmeClient):
    """A client whose authority requests a response for a token of its choice."""

    def __init__(self, token: str) -> None:
        super().__init__(
            "https://ca.test/dir",
            ec.generate_private_key(ec.SECP256R1()),
            ca_file=None,
            timeout_seconds=1,
            guard=HostGuard(EVERYTHING),
        )
        self._challenge = Challenge("http-01", "https://ca.test/c", token=token)
        self.reported_tokens: list[str] = []

    def find_order(self, url: str) -> Order:
        return Order("pending", ["https://ca.test/a"], url)

    def authorization(self, url: str) -> Authorization:
        del url
        return Authorization(Identifier("dns", "a.test"), "pending", [self._challenge])

    def report_ready(self, challenge: Challenge) -> None:
        self.reported_tokens.append(challenge.token)


async def in_thread(function: Callable[[], _T], /) -> _T:
    return await asyncio.to_thread(function)


@pytest.mark.parametrize(
    ("states", "authorizations"), [(("pending", "ready"), 1), (("pending",), 1_000_000)]
)
async def test_an_order_that_never_completes_times_out(
    tmp_path: Path, states: tuple[str, ...], authorizations: int
) -> None:
    client = cast("AcmeClient", Authority(states, authorizations))
    ordering = AcmeOrder(
        client, in_thread, FileRoot(tmp_path), {"folder": "x"}, timeout_seconds=0.5
    )
    with pytest.raises(UnknownResultError, match="the next attempt reads it again"):
        await order_certificate(ordering)


async def order_certificate(ordering: AcmeOrder) -> bytes:
    return await asyncio.wait_for(
        ordering.certificate(
            {"dnsNames": ["a.test"], "ipAddresses": []},
            ec.generate_private_key(ec.SECP256R1()),
            "https://ca.test/o",
            record_order=lambda _: None,
            register=lambda: None,
            record_limit=lambda _: None,
        ),
        10,
    )


@pytest.mark.parametrize(
    "token", ["{root}/other/tls_key", "../other/tls_key", "..", ".", "", "a/b", "tls_key\0", "x\n"]
)
async def test_an_invalid_token_does_not_remove_or_write_a_file(tmp_path: Path, token: str) -> None:
    foreign_file = tmp_path / "other" / "tls_key"
    (tmp_path / "challenges").mkdir()
    foreign_file.parent.mkdir()
    foreign_file.write_text("a key")
    client = ChallengingClient(token.format(root=tmp_path))
    ordering = AcmeOrder(
        client, in_thread, FileRoot(tmp_path), {"folder": "challenges"}, timeout_seconds=0.5
    )
    with pytest.raises(RefusedError, match="invalid token"):
        await order_certificate(ordering)
    assert foreign_file.read_text() == "a key"
    assert not list((tmp_path / "challenges").iterdir())
    assert not client.reported_tokens


async def test_a_challenge_response_neither_replaces_nor_removes_a_foreign_file(
    tmp_path: Path,
) -> None:
    foreign_file = tmp_path / "other" / "tls_key"
    foreign_file.parent.mkdir()
    foreign_file.write_text("a key")
    ordering = AcmeOrder(
        ChallengingClient("tls_key"),
        in_thread,
        FileRoot(tmp_path),
        {"folder": "other"},
        timeout_seconds=0.5,
    )
    with pytest.raises(RefusedError, match="other/tls_key already exists"):
        await order_certificate(ordering)
    assert foreign_file.read_text() == "a key"


@pytest.mark.parametrize("folder", ["tls", "tls/challenges"])
async def test_no_challenge_response_is_written_into_a_certificate_directory(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / MARKER).write_text("web\n")
    ordering = AcmeOrder(
        ChallengingClient("token"),
        in_thread,
        FileRoot(tmp_path),
        {"folder": folder},
        timeout_seconds=0.5,
    )
    with pytest.raises(RefusedError, match="to a separate directory"):
        await order_certificate(ordering)
    assert [each.name for each in (tmp_path / "tls").iterdir()] == [MARKER]


def test_a_path_that_leaves_its_directory_is_not_a_file_name(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("a key")
    (tmp_path / "root" / "inner").mkdir(parents=True)
    root = FileRoot(tmp_path / "root")
    for name in (str(outside), "../../outside", "..", ".", ""):
        with root.open_parent("inner/x") as folder:
            assert folder is not None
            for function in (stat_of, open_file, discard, read_file):
                with pytest.raises(RefusedError, match="not the name of a file"):
                    function(folder, name)
            with pytest.raises(RefusedError, match="not the name of a file"):
                write_file(folder, name, b"", 0o600)
    with pytest.raises(RefusedError), root.open_parent("inner/../../x"):
        pass
    assert outside.read_text() == "a key"


class ChainClient(AcmeClient):
    """A client whose authority returns a chain of its choice."""

    def __init__(self, chain: bytes) -> None:
        super().__init__(
            "https://ca.test/dir",
            ec.generate_private_key(ec.SECP256R1()),
            ca_file=None,
            timeout_seconds=1,
            guard=HostGuard(EVERYTHING),
        )
        self._response = requests.Response()
        self._response._content = chain  # pyright: ignore[reportPrivateUsage]

    def _post(self, url: str, content: object, *, writes: bool = False) -> requests.Response:
        del url, content, writes
        return self._response


def build_response(headers: dict[str, str], content: bytes = b"{}") -> requests.Response:
    response = ChainClient(content)._response  # pyright: ignore[reportPrivateUsage]
    response.headers.update(headers)
    return response


@pytest.mark.parametrize(
    "retry_after", ["Fri, 31 Dec 9999 23:59:59 GMT", "9" * 12, "9" * 300, "9" * 400, "inf", "NaN"]
)
def test_a_rate_limit_ends_within_a_month(retry_after: str) -> None:
    client = ChainClient(b"")
    network = client._network  # pyright: ignore[reportPrivateUsage]
    network.newest = build_response({"Retry-After": retry_after})
    network.newest.status_code = 429
    problem = messages.Error(typ="urn:ietf:params:acme:error:rateLimited", detail="x")
    limited = client._classify_problem(problem)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(limited, LimitedError)
    assert limited.until <= datetime.now(UTC) + timedelta(days=31)
    assert limited.as_error().retry_after_seconds
    assert client.retry_after_seconds(0) <= timedelta(days=31).total_seconds()


def test_an_order_without_a_location_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ChainClient(
        b'{"status": "pending", "authorizations": [], "finalize": "https://ca.test/f"}'
    )

    def directory(_name: str) -> str:
        return "https://ca.test/order"

    monkeypatch.setattr(client, "_directory", directory)
    with pytest.raises(NotDoneError, match="the order has no Location"):
        client.order([Identifier("dns", "a.test")])


def test_an_account_without_a_location_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ChainClient(b"")
    account = messages.RegistrationResource(body=messages.Registration())

    def send_request(_request: object, *, writes: bool) -> messages.RegistrationResource:
        del writes
        return account

    monkeypatch.setattr(client, "_request", send_request)
    with pytest.raises(NotDoneError, match="the account has no Location"):
        client.register(None)


def test_a_chain_that_is_slow_to_read_is_refused() -> None:
    order = Order("valid", [], "https://ca.test/f", "https://ca.test/c")
    assert ChainClient(b"x" * MAX_CHAIN_BYTES).download(order) == b"x" * MAX_CHAIN_BYTES
    with pytest.raises(RefusedError, match="longer than 128 KiB"):
        ChainClient(b"x" * (MAX_CHAIN_BYTES + 1)).download(order)


async def test_a_certificate_with_names_that_were_not_ordered_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = create_root(tmp_path)
    config = ProviderConfigSpec("certificates", root.as_uri(), allow=EVERYTHING)
    provider = CertificatesProvider(config, Secrets(), CallPermit())
    issuer = IssuerRecord(
        "u", "k", fields={"acme": {"directory": "https://ca.test/d", "http01": {"folder": "x"}}}
    )
    issuers = Store(FileRoot(root), "issuers", IssuerRecord)
    key_file = issuers.put("ca", key_pem(new_key("ECDSA-P256")), "key")
    issuers.write("ca", msgspec.structs.replace(issuer, key_file=key_file))
    names = ["a.test", *(f"a{each}.test" for each in range(3))]

    async def certificate(*arguments: Any, **_options: object) -> bytes:
        _, fields, key, _ = arguments
        effect = certify_names(key, names)
        assert fields["dnsNames"] == ["a.test"]
        return encode_certificates([effect])

    monkeypatch.setattr(AcmeOrder, "certificate", certificate)
    fields = CERTIFICATE.check_fields({"issuer": "ca", "dnsNames": ["a.test"]})
    with pytest.raises(RefusedError, match="names other than those of 'web'"):
        await provider.create(action("Create", "web", fields))
    names[:] = ["a.test"]
    effect = await provider.create(action("Create", "web", fields))
    assert effect.object is not None
    assert effect.object.fields["dnsNames"] == ["a.test"]
    await provider.close()


def certify_names(key: PrivateKey, names: list[str]) -> x509.Certificate:
    """Create a self-signed certificate for a key."""
    now = datetime.now(UTC)
    alternative = x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=90))
        .add_extension(alternative, critical=False)
        .sign(key, hashes.SHA256())
    )


async def test_requests_to_a_ca_share_the_trusted_cas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loading the system's CAs takes ten times as long as a request."""
    contexts: list[ssl.SSLContext] = []

    def trust(tls: Tls | None) -> ssl.SSLContext:
        contexts.append(build_ssl_context(tls))
        return contexts[-1]

    monkeypatch.setattr(acme_transport, "build_ssl_context", trust)
    with raw_server(lambda connection: connection.close()) as port:
        adapter = acme_transport.LimitedAdapter(None, 1, HostGuard(EVERYTHING))
        for _ in range(2):
            request = requests.Request("GET", f"https://127.0.0.1:{port}/").prepare()
            with pytest.raises(requests.RequestException):
                await asyncio.to_thread(adapter.send, request)
    assert len(contexts) == 1


@pytest.fixture
def http01_port(monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    """Responses for a token on a port."""
    monkeypatch.setattr(http01, "CONNECTION_SECONDS", 1.0)
    monkeypatch.setattr(http01, "MAX_CONNECTIONS", 3)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listen = f"127.0.0.1:{port}"
    http01.add_response(listen, "token", "token.answer")
    yield port
    http01.remove_response(listen, "token")


def send_request(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(f"GET {http01.PATH}token HTTP/1.0\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_clients_with_idle_connections_occupy_few_threads(http01_port: int) -> None:
    count_before = threading.active_count()
    address = ("127.0.0.1", http01_port)
    idle = [socket.create_connection(address, 5) for _ in range(12)]
    assert send_request(http01_port).endswith(b"token.answer")
    assert threading.active_count() - count_before <= http01.MAX_CONNECTIONS + 2
    for each in idle:
        each.close()


def test_a_client_that_sends_slowly_is_disconnected(http01_port: int) -> None:
    started_at = time.monotonic()
    with socket.create_connection(("127.0.0.1", http01_port), 5) as dripping:
        dripping.settimeout(0.1)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - started_at < 10:
                dripping.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    if not dripping.recv(1):
                        break
    assert time.monotonic() - started_at < 5
