"""The objects that all services in a table share: base chains, a map and a set.

Packets pass through ``services``: incoming ones before they are routed, this machine's own as they
leave. A connection that a service has redirected is masqueraded if its front is in ``masqueraded``.
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
from infra.providers.nftables.rules import is_protocol, match, name_of
from infra.providers.nftables.spec import Protocol
from infra.providers.nftables.table_ref import FAMILY, TableRef
from reconciler.errors import ConfigurationError, NotDoneError

_COMMENT: Final = "reconciler"
_TYPE: Final = "nat"
_ACCEPT: Final = "accept"


class _SharedChain(NamedTuple):
    """A shared base chain and its rules."""

    hook: str
    priority: int
    rules: tuple[Expressions, ...]


def _look_up_service() -> Expressions:
    """Return the lookup of an address, protocol and port in ``services``."""
    key = [
        {"payload": {"protocol": "ip", "field": "daddr"}},
        {"meta": {"key": "l4proto"}},
        {"payload": {"protocol": "th", "field": "dport"}},
    ]
    return [{"vmap": {"key": {"concat": key}, "data": f"@{SERVICES}"}}]


def _masquerade(protocol: Protocol) -> Expressions:
    """Return the lookup of the original destination. nft requires one rule per protocol."""
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


# Priorities are numbers, because the dstnat name is not valid for the output hook.
_CHAINS: Final = {
    "prerouting": _SharedChain("prerouting", -100, (_look_up_service(),)),
    "output": _SharedChain("output", -100, (_look_up_service(),)),
    "postrouting": _SharedChain("postrouting", 100, (_masquerade("tcp"), _masquerade("udp"))),
}

CHAINS: Final = tuple(_CHAINS)


def build_repairs(table_ref: TableRef, listing: TableListing | None) -> list[Command]:
    """Return the commands that create a table's missing shared objects.

    ``listing`` is None if the table does not exist. Raises ``ConfigurationError`` for a foreign
    table.
    """
    if listing is None:
        listing = TableListing()
    elif SERVICES not in listing.maps and (foreign_text := _describe_foreign_objects(listing)):
        raise ConfigurationError(
            f"spec.endpoint: {table_ref} is in use by another program, which created "
            f"{foreign_text}; use an unused table"
        )
    table = table_ref.table
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
    commands += build_chain_repairs(table_ref, listing)
    return [build_table_command(table_ref), *commands] if commands or listing.is_dormant else []


def build_table_command(table_ref: TableRef) -> Command:
    """Return the command that creates the table, or activates a dormant one."""
    return {"add": {"table": {"family": FAMILY, "name": table_ref.table}}}


def is_intact(table_ref: TableRef, listing: TableListing) -> bool:
    """Return whether packets reach the services of a table."""
    try:
        return not build_repairs(table_ref, listing)
    except (ConfigurationError, NotDoneError):
        return False


def build_chain_repairs(table_ref: TableRef, listing: TableListing) -> list[Command]:
    """Return the commands that repair the shared chains. Keeps other clients' rules.

    Raises ``NotDoneError`` for a chain that cannot be repaired in place.
    """
    commands: list[Command] = []
    for name, desired in _CHAINS.items():
        commands += _repair_chain(table_ref, name, desired, listing)
    return commands


def _repair_chain(
    table_ref: TableRef, name: str, desired: _SharedChain, listing: TableListing
) -> Iterable[Command]:
    identity = {"family": FAMILY, "table": table_ref.table, "name": name}
    settings = {"type": _TYPE, "hook": desired.hook, "prio": desired.priority, "policy": _ACCEPT}
    current = listing.chains.get(name)
    if current is None:
        yield {"create": {"chain": {**identity, **settings}}}
    else:
        _check_hook(table_ref, current, desired)
        if current.policy != _ACCEPT:
            yield {"add": {"chain": {**identity, **settings}}}
    own_rules = [each for each in listing.rules.get(name, ()) if each.comment == _COMMENT]
    if [each.expr for each in own_rules] == list(desired.rules):
        return
    location = {"family": FAMILY, "table": table_ref.table, "chain": name}
    for each in own_rules:
        yield {"delete": {"rule": {**location, "handle": each.handle}}}
    for each in desired.rules:
        yield {"add": {"rule": {**location, "expr": each, "comment": _COMMENT}}}


def _check_hook(table_ref: TableRef, current: Chain, desired: _SharedChain) -> None:
    if (current.type, current.hook, current.prio) == (_TYPE, desired.hook, desired.priority):
        return
    raise NotDoneError(
        f"chain {current.name} of {table_ref} must have type {_TYPE}, hook {desired.hook} and "
        f"priority {desired.priority}; delete it, and Reconciler recreates it"
    )


def _describe_foreign_objects(listing: TableListing) -> str:
    """Describe the objects in a table that Reconciler did not create."""
    named = (each for each in listing.chains if each not in _CHAINS and name_of(each) is None)
    chains = (f"chain {each}" for each in named)
    names = sorted({*chains, *listing.maps, *(listing.sets - {MASQUERADED})})
    return ", ".join(names[:5])
