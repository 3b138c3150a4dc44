"""The objects that all services of a table share: base chains, a map and a set.

Packets pass ``services`` before they are routed, and those of this machine when they leave. A
connection that a service has redirected is masqueraded if its front is in ``masqueraded``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from infra.providers.nftables.listed import (
    KEY,
    MASQUERADED,
    SERVICES,
    Chain,
    Expressions,
    TableListing,
)
from infra.providers.nftables.nft import Command
from infra.providers.nftables.place import FAMILY, Place
from infra.providers.nftables.rules import is_protocol, match, name_of
from infra.providers.nftables.spec import Protocol
from reconciler.errors import ConfigurationError, NotDoneError

_COMMENT: Final = "reconciler"
_TYPE: Final = "nat"
_ACCEPT: Final = "accept"


class _Shared(NamedTuple):
    """A base chain and its rules."""

    hook: str
    priority: int
    rules: tuple[Expressions, ...]


def _to_services() -> Expressions:
    """Return the lookup of address, protocol and port."""
    key = [
        {"payload": {"protocol": "ip", "field": "daddr"}},
        {"meta": {"key": "l4proto"}},
        {"payload": {"protocol": "th", "field": "dport"}},
    ]
    return [{"vmap": {"key": {"concat": key}, "data": f"@{SERVICES}"}}]


def _masquerade(protocol: Protocol) -> Expressions:
    """Return the lookup of the original destination; one rule per protocol, as nft requires."""
    key = [
        {"ct": {"key": "ip daddr", "dir": "original"}},
        {"meta": {"key": "l4proto"}},
        {"ct": {"key": "proto-dst", "dir": "original"}},
    ]
    return [
        is_protocol(protocol),
        match({"ct": {"key": "status"}}, "dnat", "in"),
        match({"concat": key}, f"@{MASQUERADED}"),
        {"masquerade": None},
    ]


# Numbers, because the name dstnat is unknown in the hook output.
_CHAINS: Final = {
    "prerouting": _Shared("prerouting", -100, (_to_services(),)),
    "output": _Shared("output", -100, (_to_services(),)),
    "postrouting": _Shared("postrouting", 100, (_masquerade("tcp"), _masquerade("udp"))),
}

CHAINS: Final = tuple(_CHAINS)


def build_repairs(place: Place, listing: TableListing | None) -> list[Command]:
    """Return the commands that create what a table lacks; None stands for no table.

    Raises ``ConfigurationError`` for a foreign table.
    """
    if listing is None:
        listing = TableListing()
    elif SERVICES not in listing.maps and (foreign_text := _describe_foreign_objects(listing)):
        raise ConfigurationError(
            f"spec.endpoint: {place} is in use by another program, which created {foreign_text}; "
            "use an unused table"
        )
    table = place.table
    commands: list[Command] = []
    if SERVICES not in listing.maps:
        identity = {
            "family": FAMILY,
            "table": table,
            "name": SERVICES,
            "type": KEY,
            "map": "verdict",
        }
        commands.append({"add": {"map": identity}})
    if MASQUERADED not in listing.sets:
        identity = {"family": FAMILY, "table": table, "name": MASQUERADED, "type": KEY}
        commands.append({"add": {"set": identity}})
    commands += build_chain_repairs(place, listing)
    return [build_table_command(place), *commands] if commands or listing.is_dormant else []


def build_table_command(place: Place) -> Command:
    """Return the command that creates the table, or wakes a dormant one."""
    return {"add": {"table": {"family": FAMILY, "name": place.table}}}


def is_sound(place: Place, listing: TableListing) -> bool:
    """Return whether packets reach the services of a table."""
    try:
        return not build_repairs(place, listing)
    except (ConfigurationError, NotDoneError):
        return False


def build_chain_repairs(place: Place, listing: TableListing) -> list[Command]:
    """Return the commands that repair the shared chains. Rules of other clients stay.

    Raises ``NotDoneError`` for a chain that cannot be repaired in place.
    """
    commands: list[Command] = []
    for name, desired in _CHAINS.items():
        commands += _repair_chain(place, name, desired, listing)
    return commands


def _repair_chain(
    place: Place, name: str, desired: _Shared, listing: TableListing
) -> Iterable[Command]:
    identity = {"family": FAMILY, "table": place.table, "name": name}
    settings = {"type": _TYPE, "hook": desired.hook, "prio": desired.priority, "policy": _ACCEPT}
    current = listing.chains.get(name)
    if current is None:
        yield {"create": {"chain": {**identity, **settings}}}
    else:
        _check_hook(place, current, desired)
        if current.policy != _ACCEPT:
            yield {"add": {"chain": {**identity, **settings}}}
    own_rules = [each for each in listing.rules.get(name, ()) if each.comment == _COMMENT]
    if [each.expr for each in own_rules] == list(desired.rules):
        return
    location = {"family": FAMILY, "table": place.table, "chain": name}
    for each in own_rules:
        yield {"delete": {"rule": {**location, "handle": each.handle}}}
    for each in desired.rules:
        yield {"add": {"rule": {**location, "expr": each, "comment": _COMMENT}}}


def _check_hook(place: Place, current: Chain, desired: _Shared) -> None:
    if (current.type, current.hook, current.prio) == (_TYPE, desired.hook, desired.priority):
        return
    raise NotDoneError(
        f"chain {current.name} of {place} must have type {_TYPE}, hook {desired.hook} and "
        f"priority {desired.priority}; delete it, then Reconciler recreates it"
    )


def _describe_foreign_objects(listing: TableListing) -> str:
    """Return the objects in a table that have not the form of ours."""
    named = (each for each in listing.chains if each not in _CHAINS and name_of(each) is None)
    chains = (f"chain {each}" for each in named)
    names = sorted({*chains, *listing.maps, *(listing.sets - {MASQUERADED})})
    return ", ".join(names[:5])
