"""A local ACME server (pebble), and a root directory for certificates."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import json
import os
import shutil
import ssl
import sys
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from infra.components.child import Child
from infra.components.local_server import LocalServer
from infra.components.ports import free_ports, is_free
from infra.providers.file_root import ROOT_MARKER
from reconciler.provider.lazy import install_command

CA_FILE: Final = "pebble-ca.pem"
"""The ACME server's HTTPS certificate in the root directory, for ``acme.caFile``."""

_ADDRESS: Final = "127.0.0.1"
_INSTALL: Final = "install Debian's pebble, or put pebble and pebble-challtestsrv on the PATH"
_LIBRARY: Final = f"run {install_command('certificates')}"
_PROGRAMS: Final = ("pebble", "pebble-challtestsrv")


class _Ports(msgspec.Struct, frozen=True):
    """All ports that the server uses, reused at the next start if they are free."""

    acme: int
    management: int
    http01: int
    dns: int
    names: int

    @property
    def all(self) -> tuple[int, ...]:
        return msgspec.structs.astuple(self)


_WELL_KNOWN: Final = _Ports(acme=14000, management=15000, http01=5002, dns=8053, names=8055)


class Certificates(LocalServer):
    """Pebble, with a DNS server that resolves every name to 127.0.0.1.

    Pebble keeps no state: after a restart, it has no accounts or orders, and a new key.

    ``isolated``: use free ports instead of pebble's usual ones. ``validity_seconds``: validity
    of its certificates. ``environment``: variables for pebble.
    """

    name = "pebble"
    program = "pebble"
    log_name = "pebble.log"

    def __init__(
        self,
        *,
        isolated: bool = False,
        validity_seconds: int | None = None,
        environment: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__()
        self._isolated = isolated
        self._validity_seconds = validity_seconds
        # Disables the delays that pebble adds to test its clients.
        self._environment = {"PEBBLE_VA_NOSLEEP": "1", **dict(environment)}
        self._ports = _WELL_KNOWN

    @property
    def endpoint(self) -> str:
        """The root directory, for a ``ProviderConfig`` of the ``certificates`` provider."""
        return self.root.as_uri()

    @property
    def root(self) -> Path:
        """The directory in which certificates are kept and delivered."""
        return self._folder / "root"

    @property
    def directory(self) -> str:
        """URL of the ACME directory, for ``acme.directory``."""
        return f"https://{_ADDRESS}:{self._ports.acme}/dir"

    @property
    def http01(self) -> str:
        """Address from which pebble reads challenge responses, for ``acme.http01.listen``."""
        return f"{_ADDRESS}:{self._ports.http01}"

    async def root_certificate(self) -> str:
        """Return the root certificate (PEM) of all certificates that pebble issues."""
        return await asyncio.to_thread(self._get, "/roots/0")

    def _spawn(self) -> list[Child]:
        dns, names = f"{_ADDRESS}:{self._ports.dns}", f"{_ADDRESS}:{self._ports.names}"
        disabled_listeners = ("-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", "")
        return [
            self._child(
                "pebble-challtestsrv", "-dns01", dns, "-management", names, *disabled_listeners
            ),
            self._child("pebble", "-config", str(self._config), "-dnsserver", dns),
        ]

    def _child(self, program: str, *options: str) -> Child:
        path = shutil.which(program)
        assert path is not None
        environment = {**os.environ, **self._environment}
        return Child([path, *options], self.log, folder=self._folder, environment=environment)

    # --- called in a thread

    @property
    def _config(self) -> Path:
        return self._folder / "pebble.json"

    def _problem(self) -> str | None:
        return problem()

    def _prepare(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / ROOT_MARKER).touch()
        if not (self.root / CA_FILE).exists():
            self._create_https_certificate()
        self._ports = self._free_ports()
        self._config.write_text(json.dumps({"pebble": self._settings()}))

    def _settings(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "listenAddress": f"{_ADDRESS}:{self._ports.acme}",
            "managementListenAddress": f"{_ADDRESS}:{self._ports.management}",
            "certificate": str(self._folder / "https.crt"),
            "privateKey": str(self._folder / "https.key"),
            "httpPort": self._ports.http01,
            "tlsPort": self._ports.http01,  # no challenge uses it
            "ocspResponderURL": "",
            "externalAccountBindingRequired": False,
        }
        if self._validity_seconds is not None:
            settings["certificateValidityPeriod"] = self._validity_seconds
        return settings

    def _free_ports(self) -> _Ports:
        """Return the ports from the last start or the well-known ones, if all of them are free."""
        ports_file = self._folder / "ports.json"
        candidates = [] if self._isolated else [_WELL_KNOWN]
        with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
            candidates.insert(0, msgspec.json.decode(ports_file.read_bytes(), type=_Ports))
        ports = next((each for each in candidates if all(map(is_free, each.all))), None)
        ports = ports or _Ports(*free_ports(len(_Ports.__struct_fields__)))
        ports_file.write_bytes(msgspec.json.encode(ports))
        return ports

    def _create_https_certificate(self) -> None:
        """Create the certificate and key for pebble's HTTPS endpoints."""
        from cryptography import x509  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415

        from infra.providers.certificates import pem  # noqa: PLC0415

        key, now = pem.new_key("ECDSA-P256"), datetime.now(UTC)
        name = pem.build_subject("pebble on this machine")
        names = pem.build_names(["localhost"], [str(ipaddress.ip_address(_ADDRESS))])
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
        text = pem.encode_certificates([certificate])
        secret = self._folder / "https.key"
        secret.touch(mode=0o600)
        secret.write_bytes(pem.key_pem(key))
        (self._folder / "https.crt").write_bytes(text)
        (self.root / CA_FILE).write_bytes(text)

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            self._get("/roots/0")
            return True
        return False

    def _get(self, path: str) -> str:
        """Read a path from pebble's management API."""
        context = ssl.create_default_context(cafile=str(self.root / CA_FILE))
        url = f"https://{_ADDRESS}:{self._ports.management}{path}"
        with urllib.request.urlopen(url, context=context, timeout=5) as response:
            return response.read().decode()


def problem() -> str | None:
    """Return the reason pebble cannot be started on this machine, or None if it can."""
    if sys.platform == "win32":
        return "pebble can only be started on Linux and macOS"
    for name in _PROGRAMS:
        if shutil.which(name) is None:
            return f"{name} is not installed; {_INSTALL}"
    if importlib.util.find_spec("cryptography") is None:
        return f"cryptography is not installed; {_LIBRARY}"
    return None
