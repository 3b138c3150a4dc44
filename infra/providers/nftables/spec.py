"""The fields, outputs and names of a ``Service``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Annotated, Final, Literal, NamedTuple, get_args

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from reconciler.provider.host_access import HostUse, names_host
from reconciler.provider.kind import READY, Readiness

MAX_BACKENDS: Final = 128
MAX_NAME_CHARACTERS: Final = 100

Balance = Literal["Random", "RoundRobin", "SourceAddress"]
Protocol = Literal["tcp", "udp"]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME_CHARACTERS - 1}}}")
_FRONT: Final = re.compile(r"([0-9.]{7,15})/(tcp|udp)/([0-9]{1,5})")


class Front(NamedTuple):
    """The address and port of a service for its clients."""

    address: str
    protocol: Protocol
    port: int

    def __str__(self) -> str:
        return f"{self.address}/{self.protocol}/{self.port}"


class Backend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A backend of a service."""

    address: Annotated[
        str,
        msgspec.Meta(
            description="IPv4 address, or a reference such as {$ref: Container/web, field: "
            "outputs.address}."
        ),
    ]
    port: Annotated[Port, msgspec.Meta(description="Port of the backend.")]

    def __post_init__(self) -> None:
        _check_address(self.address)


class ServiceFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A virtual address for backends, using nftables."""

    address: Annotated[
        str,
        msgspec.Meta(
            description="Virtual IPv4 address. Its packets must be routed through the "
            "worker's machine."
        ),
    ]
    port: Annotated[Port, msgspec.Meta(description="Port that clients connect to.")]
    protocol: Annotated[
        Protocol, msgspec.Meta(description="Transport protocol of the clients and the backends.")
    ] = "tcp"
    backends: Annotated[
        list[Backend],
        msgspec.Meta(
            max_length=MAX_BACKENDS,
            description="At most 128 backends, in any order. With an empty list, connections"
            " are refused.",
        ),
    ] = []
    balance: Annotated[
        Balance,
        msgspec.Meta(
            description="How to select the backend for a new connection. Random: any. "
            "RoundRobin: all in turn. SourceAddress: the same backend for each "
            "client address."
        ),
    ] = "Random"
    masquerade: Annotated[
        bool,
        msgspec.Meta(
            description="Whether backends receive the address of the worker's machine as the "
            "client. Use false only if their responses return through that "
            "machine anyway."
        ),
    ] = True

    def __post_init__(self) -> None:
        _check_address(self.address)


class ServiceOutputs(msgspec.Struct, frozen=True):
    """Outputs of a service."""

    address: Annotated[str, msgspec.Meta(description="Virtual IPv4 address.")]
    port: Annotated[int, msgspec.Meta(description="Port that clients connect to.")]


def find_claims(_external_name: str, fields: Fields) -> Sequence[str]:
    """Return the port of a service and its address."""
    parts = [fields.get(each) for each in ("protocol", "port", "address")]
    return ["/".join(map(str, parts))] if all(parts) else []


def find_host_uses(fields: Fields) -> Sequence[HostUse]:
    """Return the host addresses that a service uses as front and as backends (ADR 0060)."""
    front = HostUse("spec.address", "listen", f"{fields['address']}:{fields['port']}")
    backends: list[Fields] = fields.get("backends") or []
    hint = "use the address of another machine or of a container"
    return [
        front,
        *(
            HostUse("spec.backends.address", "addresses", f"{each['address']}:{each['port']}", hint)
            for each in backends
            if names_host(each["address"])
        ),
    ]


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a service's fields, with sorted backends.

    A damaged object's missing fields stay missing, so that they differ.
    """
    if "backends" not in fields:
        return fields
    unique = {(each["address"], each["port"]) for each in fields["backends"]}
    ordered = sorted(unique, key=lambda each: (IPv4Address(each[0]), each[1]))
    return {
        **fields,
        "backends": [{"address": address, "port": port} for address, port in ordered],
    }


def ready(fields: Fields, observed: ExternalObject) -> Readiness:
    """Return whether a backend is declared."""
    del fields
    if observed.fields.get("backends"):
        return READY
    return Readiness(False, "NoBackends", "the service has no backend, so connections are refused")


def name_problem(name: str) -> str | None:
    """Describe what is wrong with the name of a service; None if it is valid."""
    if _NAME.fullmatch(name) is not None:
        return None
    return (
        f"use 1 to {MAX_NAME_CHARACTERS} characters a-z A-Z 0-9 _ . - and start with a letter "
        "or digit"
    )


def parse_front(text: str) -> Front | None:
    """Parse a ``Front``; None if it is invalid."""
    match = _FRONT.fullmatch(text)
    if match is None:
        return None
    address, protocol, port = match.groups()
    return Front(address, "tcp" if protocol == "tcp" else "udp", int(port))


def parse_balance(text: str) -> Balance | None:
    """Parse a balance; None if it is unknown."""
    balances: tuple[Balance, ...] = get_args(Balance)
    return next((each for each in balances if each == text), None)


def _check_address(text: str) -> None:
    try:
        address = IPv4Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv4 address; use one such as 198.18.0.1") from None
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        raise ValueError(f"{text} is not the address of a single machine")
