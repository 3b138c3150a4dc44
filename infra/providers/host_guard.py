"""Connection guard: restricts the resolved addresses that a provider may connect to (ADR 0060).

Every connection is checked after the name is resolved, and uses an address that the guard returned.
So a later resolution cannot bypass it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from events.allow import Allow, matches
from reconciler.provider.host_access import format_address, is_host_address, names_host

_A = TypeVar("_A", bound=tuple[Any, ...])

_IP = frozenset({socket.AF_INET, socket.AF_INET6})


class HostAddressError(OSError):
    """A name resolves to the host itself, which is not allowed."""


class HostGuard(msgspec.Struct, frozen=True):
    """Permits all addresses except the host's own, unless ``allow`` lists them.

    ``is_configured``: the name comes from a ``ProviderConfig``, which may name the host itself.
    """

    allow: Allow
    is_configured: bool = False

    def filter_addresses(self, host: str, port: int, addresses: Sequence[_A]) -> list[_A]:
        """Return the permitted addresses among the results of ``getaddrinfo``.

        Raises ``HostAddressError`` if there is none.
        """
        if self.is_configured and names_host(host):
            return list(addresses)
        allowed = [each for each in addresses if self._is_usable(host, port, each)]
        if addresses and not allowed:
            text = ", ".join(dict.fromkeys(str(each[4][0]) for each in addresses))
            description = "is an address" if names_host(host) else f"resolves to {text}, an address"
            raise HostAddressError(
                f"{format_address(host, port)} {description} of the host itself, which is not "
                "allowed; an operator can add it to spec.allow.addresses of the ProviderConfig"
            )
        return allowed

    def resolve(self, host: str, port: int) -> list[tuple[Any, ...]]:
        """Resolve a name and return its permitted addresses. Blocks. Raises ``OSError``."""
        return self.filter_addresses(
            host, port, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )

    def connect(self, host: str, port: int, timeout_seconds: float | None = None) -> socket.socket:
        """Connect to the first address that accepts a connection. Blocks. Raises ``OSError``."""
        failure: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in self.resolve(host, port):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(timeout_seconds)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.connect(address)
            except OSError as error:
                connection.close()
                failure = error
                continue
            return connection
        raise failure

    def _is_usable(self, host: str, port: int, info: tuple[Any, ...]) -> bool:
        family, address = info[0], str(info[4][0])
        if family in _IP and not is_host_address(address):
            return True
        names = {format_address(host, port), format_address(address, port)}
        return any(matches(each, self.allow.addresses) for each in names)
