"""The fields of a route, and their canonical form."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from infra.providers.caddy.order import ANY_PATH, MAX_PAIRS
from reconciler.provider.host_access import HostUse, format_address, is_address, names_host
from reconciler.provider.kind import READY, Readiness

CERTIFICATE: Final = "certificate"
"""The difference of a certificate that is not the one in the files."""

EVERY_HOST: Final = "*"
"""The value that ``allow.hosts`` must permit for a route without hosts."""

HTTP: Final = "http"
HTTPS: Final = "https"
"""Default servers for routes that do not name one."""

DEFAULT_BALANCING: Final = "round_robin"
DEFAULT_RETRY_SECONDS: Final = 0.0
DEFAULT_INTERVAL_SECONDS: Final = 10.0
DEFAULT_TIMEOUT_SECONDS: Final = 5.0
MAX_PORT: Final = 65_535

MAX_BYTES: Final = 32 * 1024
"""Limit on the hosts, paths and backends of a route, which are part of each read of all routes."""

_LABEL: Final = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST: Final = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
_BACKEND: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def _meta(text: str, **rules: Any) -> msgspec.Meta:
    return msgspec.Meta(description=text, **rules)


# Caddy treats {...} as a placeholder and * as a wildcard, so paths must not contain them.
_Path = Annotated[str, msgspec.Meta(pattern=r"^/[^\s*{}?#%\\]*(?!\n)$", max_length=1024)]
_FilePath = Annotated[str, msgspec.Meta(pattern=r"^/[^\x00\n]*(?!\n)$", max_length=4096)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.001, le=86_400)]
_Server = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,100}(?!\n)$")]
Balancing = Literal["round_robin", "least_conn", "random", "first", "ip_hash"]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Part of a route's spec."""


class Backend(_Part, frozen=True):
    """A backend whose address and port are separate, so that each can be a reference."""

    address: Annotated[
        str, _meta("Host name or IP address of the backend.", min_length=1, max_length=253)
    ]
    port: Annotated[int, _meta("Port of the backend.", ge=1, le=MAX_PORT)]


class HealthCheck(_Part, frozen=True):
    """How Caddy checks which backends work."""

    path: Annotated[
        _Path,
        _meta("Path that Caddy requests from each backend. A status of 200 to 299 means healthy."),
    ]
    interval_seconds: Annotated[_Seconds, _meta("Seconds between checks.")] = (
        DEFAULT_INTERVAL_SECONDS
    )
    timeout_seconds: Annotated[_Seconds, _meta("Maximum duration of one check, in seconds.")] = (
        DEFAULT_TIMEOUT_SECONDS
    )


class CertificateFiles(_Part, frozen=True):
    """Files with the hosts' certificate and its key, on the machine that runs the roles."""

    certificate_file: Annotated[_FilePath, _meta("Path of the certificate with its chain, in PEM.")]
    key_file: Annotated[_FilePath, _meta("Path of its private key, in PEM without a password.")]


class RouteFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A route from a Caddy server to backends."""

    backends: Annotated[
        list[str | Backend],
        _meta(
            "Servers that receive the requests, as ADDRESS:PORT or {address, port}. With an empty"
            " list, Caddy responds with 503."
        ),
        msgspec.Meta(max_length=1000),
    ]
    hosts: Annotated[
        list[str],
        _meta(
            "Host names and IP addresses to match. *.example.org matches any one label. Default: "
            "all."
        ),
        msgspec.Meta(max_length=100),
    ] = []
    paths: Annotated[
        list[_Path],
        _meta(
            "Path prefixes to match, by whole segments: /api matches /api and /api/..., but not "
            "/apis. Default: all."
        ),
        msgspec.Meta(max_length=100),
    ] = []
    server: Annotated[
        _Server | None,
        _meta("Server in Caddy's configuration. Default: https if tls is set, otherwise http."),
    ] = None
    tls: Annotated[
        CertificateFiles | None,
        _meta(
            "Certificate for the hosts: files on the machine that runs the roles. Requires hosts."
        ),
    ] = None
    balancing: Annotated[
        Balancing,
        _meta(
            "Policy that selects the backend. The order of the backends matters only with first."
        ),
    ] = DEFAULT_BALANCING
    retry_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=3600)],
        _meta("Seconds that a request waits while no backend can be reached."),
    ] = DEFAULT_RETRY_SECONDS
    health_check: Annotated[
        HealthCheck | None, _meta("Health check of the backends. Caddy makes the requests.")
    ] = None

    def __post_init__(self) -> None:
        for host in self.hosts:
            _check_host(host)
        for path in self.paths:
            _check_path(path)
        backends = list(map(dial_address, self.backends))
        if len(self.hosts) * len(self.paths) > MAX_PAIRS:
            raise ValueError(
                f"hosts, paths: {len(self.hosts)} hosts with {len(self.paths)} paths exceed the "
                f"limit of {MAX_PAIRS} pairs; declare several routes"
            )
        size = sum(len(each.encode()) for each in (*self.hosts, *self.paths, *backends))
        if size > MAX_BYTES:
            raise ValueError(
                f"hosts, paths, backends: {size} bytes exceed the limit of {MAX_BYTES}; declare "
                "several routes"
            )
        if self.tls is not None and not self.hosts:
            raise ValueError("tls: requires hosts; list them in hosts")


class RouteOutputs(msgspec.Struct, frozen=True, rename="camel"):
    """Outputs of a route, including the route that receives its requests instead."""

    urls: Annotated[list[str], msgspec.Meta(description="URLs of the route, at most 100.")]
    listen: Annotated[list[str], msgspec.Meta(description="Addresses that its server listens on.")]
    certificate: Annotated[
        str | None,
        msgspec.Meta(
            description="SHA-256 fingerprint of the certificate that was loaded for the route."
        ),
    ] = None
    certificate_problem: Annotated[
        str | None, msgspec.Meta(description="Reason why the certificate files cannot be used.")
    ] = None
    shadowed_by: Annotated[
        str | None,
        msgspec.Meta(
            description=(
                "Route that receives requests of this route instead. Named only if it is in the "
                "same namespace."
            )
        ),
    ] = None
    shadowed: Annotated[
        list[str] | None,
        msgspec.Meta(description="Hosts and paths whose requests that route receives, at most 10."),
    ] = None


def _check_host(host: str) -> None:
    lower = host.lower().removesuffix(".")
    if _HOST.fullmatch(lower) is not None and len(lower) <= 253:  # noqa: PLR2004 - the DNS limit
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(
            f"hosts: {host!r} is not a host; use a value such as www.example.org, "
            "*.example.org or an IP address, without a port"
        ) from None


def _check_path(path: str) -> None:
    if {".", ".."}.isdisjoint(path.split("/")):
        return
    raise ValueError(
        f"paths: {path!r} has a segment . or .., which Caddy removes from requests; declare the "
        "path without it"
    )


def _canonical_host(host: str) -> str:
    """Return a host as requests name it: clients compress IPv6 addresses."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")


def dial_address(backend: str | Backend) -> str:
    """Return a backend as address:port. Raises ``ValueError`` for an invalid one."""
    if isinstance(backend, Backend):
        is_v6 = ":" in backend.address and not backend.address.startswith("[")
        address = f"[{backend.address}]" if is_v6 else backend.address
        return dial_address(f"{address}:{backend.port}")
    match = _BACKEND.fullmatch(backend)
    if match is None or not 1 <= int(match[2]) <= MAX_PORT:
        raise ValueError(
            f"backends: {backend!r} must have the form ADDRESS:PORT, such as 10.0.0.7:8080"
        )
    return f"{match[1].lower()}:{int(match[2])}"


def find_host_uses(fields: Fields) -> Sequence[HostUse]:
    """Return the hosts, addresses of the machine and certificate files of a route (ADR 0060).

    Caddy resolves the names of backends itself, on each connection.
    """
    hosts = sorted(set(map(_canonical_host, fields.get("hosts") or ()))) or [EVERY_HOST]
    host_uses = [HostUse("spec.hosts", "hosts", host) for host in hosts]
    for backend in fields.get("backends") or ():
        host, _, port = str(backend).rpartition(":")
        if names_host(host) or not is_address(host):
            hint = "use the IP address of another machine or of a container"
            host_uses.append(
                HostUse("spec.backends", "addresses", format_address(host, int(port)), hint)
            )
    tls: Fields = fields.get("tls") or {}
    return [
        *host_uses,
        *(HostUse(f"spec.tls.{name}", "certificates", str(path)) for name, path in tls.items()),
    ]


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a route's fields, with the defaults.

    ``differences`` names each difference without a field. No manifest declares it, so a write
    repairs it.
    """
    tls: Fields | None = fields.get("tls")
    hosts: list[str] = fields.get("hosts") or []
    paths: list[str] = fields.get("paths") or [ANY_PATH]
    balancing = fields.get("balancing", DEFAULT_BALANCING)
    declared: list[str | Fields] = fields.get("backends") or []
    backends = list(dict.fromkeys(map(_canonical_backend, declared)))
    return {
        "backends": backends if balancing == "first" else sorted(backends),
        "hosts": sorted(set(map(_canonical_host, hosts))),
        "paths": sorted({path.rstrip("/") or ANY_PATH for path in paths}),
        "server": fields.get("server") or (HTTP if tls is None else HTTPS),
        "tls": tls,
        "balancing": balancing,
        "retrySeconds": round(float(fields.get("retrySeconds", DEFAULT_RETRY_SECONDS)), 3),
        "healthCheck": _canonical_check(fields.get("healthCheck")),
        "differences": sorted(fields.get("differences") or []),
    }


def follows_input(existing: ExternalObject, written: ExternalObject) -> Collection[str]:
    """Return ``differences`` if only the files of the certificate changed since the last write."""
    is_certificate = existing.fields.get("differences") == [CERTIFICATE]
    fingerprints = [each.outputs.get("certificate") for each in (existing, written)]
    is_kept = fingerprints[0] is not None and fingerprints[0] == fingerprints[1]
    return ("differences",) if is_certificate and is_kept else ()


def _canonical_backend(backend: str | Fields) -> str:
    try:
        if isinstance(backend, str):
            return dial_address(backend)
        return dial_address(msgspec.convert(backend, Backend))
    except (ValueError, msgspec.ValidationError):
        return str(backend)  # a foreign route may have any value


def _canonical_check(check: Fields | None) -> Fields | None:
    if check is None:
        return None
    path = cast("str", check["path"])
    return {
        "path": path,
        "intervalSeconds": round(float(check.get("intervalSeconds", DEFAULT_INTERVAL_SECONDS)), 3),
        "timeoutSeconds": round(float(check.get("timeoutSeconds", DEFAULT_TIMEOUT_SECONDS)), 3),
    }


def ready(fields: Fields, observed: ExternalObject) -> Readiness:
    """Return whether requests reach a route, and whether it has a usable backend."""
    if not fields.get("backends"):
        return Readiness(
            False, "NoBackends", "the route has no backends, so Caddy responds with 503"
        )
    winner = observed.outputs.get("shadowedBy")
    if winner is not None:
        return Readiness(
            False,
            "Shadowed",
            f"{winner if ' ' in winner else f'route {winner!r}'} receives the requests for "
            f"{', '.join(observed.outputs.get('shadowed') or ())}",
        )
    problem = observed.outputs.get("certificateProblem")
    if problem is not None:
        return Readiness(
            False,
            "CertificateFiles",
            f"{problem}; Caddy continues to use the certificate that it has",
        )
    return READY
