"""An ACME authority for tests of our own (pebble), and a root in which certificates are kept."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import json
import os
import shutil
import socket
import ssl
import sys
import time
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from infra.components import ComponentError
from infra.components.child import Child
from infra.providers.file_root import ROOT_MARKER

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0

CA_FILE: Final = "pebble-ca.pem"
"""Whom to trust for the authority's HTTPS: in the root, for ``acme.caFile``."""

_ADDRESS: Final = "127.0.0.1"
_POLL_SECONDS: Final = 0.02
_INSTALL: Final = "install Debian's pebble, or put pebble and pebble-challtestsrv on the PATH"
_LIBRARY: Final = "run pip install 'event-sourced-reconciler[certificates]'"
_PROGRAMS: Final = ("pebble", "pebble-challtestsrv")
_LOG_CHARACTERS: Final = 2_000


class _Ports(msgspec.Struct, frozen=True):
    """Where all parts listen: the same at the next start, if they are free then."""

    acme: int
    management: int
    http01: int
    dns: int
    names: int

    @property
    def all(self) -> tuple[int, ...]:
        return msgspec.structs.astuple(self)


_WELL_KNOWN: Final = _Ports(acme=14000, management=15000, http01=5002, dns=8053, names=8055)


class Certificates:
    """Pebble, and a DNS server for it whose every name is 127.0.0.1.

    Pebble keeps nothing: after a start it knows no account and no order of before, and has another
    key. ``beside_others``: on ports that nobody knows of, and not on pebble's usual ones.
    ``validity_seconds``: how long what it signs is good. ``environment`` is pebble's own.
    """

    def __init__(
        self,
        *,
        beside_others: bool = False,
        validity_seconds: int | None = None,
        environment: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._beside_others = beside_others
        self._validity_seconds = validity_seconds
        # At full speed: nobody waits for its pauses, which are there to try patience.
        self._environment = {"PEBBLE_VA_NOSLEEP": "1", **dict(environment)}
        self._children: list[Child] = []
        self._folder = Path()
        self._ports = _WELL_KNOWN

    @property
    def endpoint(self) -> str:
        """The root, for a ``ProviderConfig`` of the provider ``certificates``."""
        return self.root.as_uri()

    @property
    def root(self) -> Path:
        """Where certificates are kept and delivered."""
        return self._folder / "root"

    @property
    def directory(self) -> str:
        """Where the authority is, for ``acme.directory``."""
        return f"https://{_ADDRESS}:{self._ports.acme}/dir"

    @property
    def http01(self) -> str:
        """Where it looks for answers, for ``acme.http01.listen``."""
        return f"{_ADDRESS}:{self._ports.http01}"

    @property
    def log(self) -> Path:
        """Where it logs."""
        return self._folder / "pebble.log"

    @property
    def pid(self) -> int:
        """Process id of pebble."""
        return self._children[-1].pid

    @property
    def is_running(self) -> bool:
        """Whether its processes live."""
        return bool(self._children) and all(each.is_running for each in self._children)

    async def start(self, data: Path) -> None:
        """Start it on a folder and return once it answers; raises ``ComponentError``."""
        if self.is_running:
            raise ComponentError(f"pebble is already running on {self._folder}; stop it first")
        self._folder = await asyncio.to_thread(data.resolve)
        await asyncio.to_thread(self._prepare)
        began = self.log.stat().st_size if self.log.exists() else 0
        dns = f"{_ADDRESS}:{self._ports.dns}"
        off = ("-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", "")
        names = f"{_ADDRESS}:{self._ports.names}"
        self._children = [
            self._spawn("pebble-challtestsrv", "-dns01", dns, "-management", names, *off),
            self._spawn("pebble", "-config", str(self._config), "-dnsserver", dns),
        ]
        try:
            await self._children[-1].until(
                self._answers,
                "pebble",
                deadline=time.monotonic() + START_SECONDS,
                seconds=START_SECONDS,
            )
        except BaseException as error:
            await self.kill()
            if isinstance(error, ComponentError):
                said = self._last_words(began)
                raise ComponentError(f"{error}: {said} (its log is {self.log})") from None
            raise

    async def stop(self) -> None:
        """End it in order; kill it when that takes too long."""
        await asyncio.gather(*(each.stop(STOP_SECONDS) for each in self._children))

    async def kill(self) -> None:
        """End it at once (SIGKILL), as a crash does."""
        await asyncio.gather(*(each.kill() for each in self._children))

    async def authority(self) -> str:
        """Return the certificate (PEM) that everything it signs leads to."""
        return await asyncio.to_thread(self._ask, "/roots/0")

    def _spawn(self, program: str, *options: str) -> Child:
        path = shutil.which(program)
        assert path is not None
        environment = {**os.environ, **self._environment}
        return Child([path, *options], self.log, folder=self._folder, environment=environment)

    # --- in a thread

    @property
    def _config(self) -> Path:
        return self._folder / "pebble.json"

    def _prepare(self) -> None:
        """Make the folder, the root and the configuration; raises ``ComponentError``."""
        if (why := problem()) is not None:
            raise ComponentError(why)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / ROOT_MARKER).touch()
            if not (self.root / CA_FILE).exists():
                self._make_https_certificate()
            self._ports = self._free_ports()
            self._config.write_text(json.dumps({"pebble": self._settings()}))
        except OSError as error:
            raise ComponentError(f"{self._folder} is not usable: {error.strerror}") from error

    def _settings(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "listenAddress": f"{_ADDRESS}:{self._ports.acme}",
            "managementListenAddress": f"{_ADDRESS}:{self._ports.management}",
            "certificate": str(self._folder / "https.crt"),
            "privateKey": str(self._folder / "https.key"),
            "httpPort": self._ports.http01,
            "tlsPort": self._ports.http01,  # nothing is proved there
            "ocspResponderURL": "",
            "externalAccountBindingRequired": False,
        }
        if self._validity_seconds is not None:
            settings["certificateValidityPeriod"] = self._validity_seconds
        return settings

    def _free_ports(self) -> _Ports:
        """Return the ports of the last start or the well-known ones, if nobody has any of them."""
        kept = self._folder / "ports.json"
        candidates = [] if self._beside_others else [_WELL_KNOWN]
        with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
            candidates.insert(0, msgspec.json.decode(kept.read_bytes(), type=_Ports))
        ports = next((each for each in candidates if all(map(_is_free, each.all))), None)
        ports = ports or _any_ports()
        kept.write_bytes(msgspec.json.encode(ports))
        return ports

    def _make_https_certificate(self) -> None:
        """Make what its HTTPS needs, as if somebody had configured it."""
        from cryptography import x509  # noqa: PLC0415 - of an extra
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415

        from infra.providers.certificates import pem  # noqa: PLC0415

        key, now = pem.new_key("ECDSA-P256"), datetime.now(UTC)
        name = pem.subject_of("pebble on this machine")
        names = pem.names_of(["localhost"], [str(ipaddress.ip_address(_ADDRESS))])
        assert names is not None
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(names, critical=False)
            .sign(key, hashes.SHA256())
        )
        text = pem.text_of([certificate])
        secret = self._folder / "https.key"
        secret.touch(mode=0o600)
        secret.write_bytes(pem.key_pem(key))
        (self._folder / "https.crt").write_bytes(text)
        (self.root / CA_FILE).write_bytes(text)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            self._ask("/roots/0")
            return True
        return False

    def _ask(self, path: str) -> str:
        """Read something of its management."""
        trusted = ssl.create_default_context(cafile=str(self.root / CA_FILE))
        url = f"https://{_ADDRESS}:{self._ports.management}{path}"
        with urllib.request.urlopen(url, context=trusted, timeout=5) as answer:
            return answer.read().decode()

    def _last_words(self, began: int) -> str:
        written = self.log.read_bytes()[began:].decode(errors="replace")[-_LOG_CHARACTERS:]
        lines = [line.strip() for line in written.splitlines() if line.strip()]
        return lines[-1] if lines else "no output"


def problem() -> str | None:
    """Explain why it cannot be started on this machine; None if it can."""
    if sys.platform == "win32":
        return "pebble can only be started on Linux and macOS"
    for name in _PROGRAMS:
        if shutil.which(name) is None:
            return f"{name} is not installed; {_INSTALL}"
    if importlib.util.find_spec("cryptography") is None:
        return f"cryptography is not installed; {_LIBRARY}"
    return None


def _any_ports() -> _Ports:
    held = [socket.socket() for _ in _Ports.__struct_fields__]
    for each in held:
        each.bind((_ADDRESS, 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return _Ports(*ports)


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((_ADDRESS, port))
        except OSError:
            return False
    return True
