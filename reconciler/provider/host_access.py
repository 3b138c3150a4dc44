"""Host access: the fields that use the machine behind an API, and that machine's addresses.

The functions are pure. ``ProviderConfig.spec.allow`` is compared with the uses of a kind before an
action is decided, and with addresses again when a connection is opened (ADR 0060).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from events.allow import Allow, Category
from events.manifest import Fields

_METADATA: Final = frozenset(
    {"100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"}
)
"""Addresses at which clouds serve credentials to a machine, in addition to link-local addresses."""

_IPV4_EMBEDDING_NETWORKS: Final = (
    ipaddress.ip_network("::/96"),
    ipaddress.ip_network("::ffff:0:0:0/96"),
    ipaddress.ip_network("64:ff9b::/96"),
    ipaddress.ip_network("64:ff9b:1::/48"),
)
_SPECIAL_NETWORKS: Final = (
    ipaddress.ip_network("0.0.0.0/8"),
    ipaddress.ip_network("255.255.255.255/32"),
    ipaddress.ip_network("fec0::/10"),
)
""""This network" (loopback on Linux), broadcast, and deprecated site-local IPv6."""


class HostUse(NamedTuple):
    """One use of the host: a field, the list in ``allow`` that must permit it, and its value."""

    path: str
    category: Category
    value: str
    hint: str = ""


def no_host_uses(_fields: Fields) -> Sequence[HostUse]:
    """Return no uses of the host: the default for a kind."""
    return ()


def find_refused_use(uses: Sequence[HostUse], allow: Allow) -> HostUse | None:
    """Return the first use that a configuration does not allow."""
    return next((use for use in uses if not allow.permits(use.category, use.value)), None)


def is_host_address(address: str) -> bool:
    """Return whether an IP address reaches the connecting machine, or no specific machine.

    These are loopback, link-local, unspecified, multicast and broadcast addresses, metadata
    services of clouds, and IPv6 addresses that embed such an IPv4 address.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        embedded = ip.ipv4_mapped or ip.sixtofour
        if embedded is None and any(ip in network for network in _IPV4_EMBEDDING_NETWORKS):
            embedded = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if embedded is not None and is_host_address(str(embedded)):
            return True
    return (
        ip.is_loopback
        or ip.is_link_local
        or ip.is_unspecified
        or ip.is_multicast
        or any(ip in network for network in _SPECIAL_NETWORKS)
        or str(ip) in _METADATA
    )


def names_host(host: str) -> bool:
    """Return whether a host name is an address of the machine itself, or localhost."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return is_host_address(name)
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Return whether a host name is an IP address."""
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


def url_host(url: str, default_port: int) -> tuple[str, int]:
    """Return the host and the port of a URL; no host if the URL has none that can be parsed."""
    try:
        parts = urlsplit(url)
        port = parts.port or default_port
    except ValueError:
        return "", default_port
    return parts.hostname or "", port


def format_address(host: str, port: int) -> str:
    """Return HOST:PORT, with an IPv6 address in brackets."""
    plain_host = host.strip("[]")
    return f"[{plain_host}]:{port}" if ":" in plain_host else f"{plain_host}:{port}"
