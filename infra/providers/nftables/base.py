"""The objects that all services of a table share: base chains, a map and a set.

Packets pass ``services`` before they are routed, and those of this machine when they leave. A
connection that a service has redirected is masqueraded if its front is in ``masqueraded``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from infra.providers.nftables.listed import KEY, MASQUERADED, SERVICES, Chain, Expressions, Listed
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


def all_of_it(place: Place, shown: Listed | None) -> list[Command]:
    """Return the commands that create what a table lacks; None stands for no table.

    Raises ``ConfigurationError`` for a foreign table.
    """
    if shown is None:
        shown = Listed()
    elif SERVICES not in shown.maps and (strange := _strangers(shown)):
        raise ConfigurationError(
            f"spec.endpoint: {place} is in use by another program, which created {strange}; "
            "use an unused table"
        )
    table = place.table
    commands: list[Command] = []
    if SERVICES not in shown.maps:
        of = {"family": FAMILY, "table": table, "name": SERVICES, "type": KEY, "map": "verdict"}
        commands.append({"add": {"map": of}})
    if MASQUERADED not in shown.sets:
        of = {"family": FAMILY, "table": table, "name": MASQUERADED, "type": KEY}
        commands.append({"add": {"set": of}})
    commands += chains_of_it(place, shown)
    return [awake(place), *commands] if commands or shown.is_dormant else []


def awake(place: Place) -> Command:
    """Return the command that creates the table, or wakes a dormant one."""
    return {"add": {"table": {"family": FAMILY, "name": place.table}}}


def is_sound(place: Place, shown: Listed) -> bool:
    """Return whether packets reach the services of a table."""
    try:
        return not all_of_it(place, shown)
    except (ConfigurationError, NotDoneError):
        return False


def chains_of_it(place: Place, shown: Listed) -> list[Command]:
    """Return the commands that repair the shared chains. Rules of other clients stay.

    Raises ``NotDoneError`` for a chain that cannot be repaired in place.
    """
    commands: list[Command] = []
    for name, wanted in _CHAINS.items():
        commands += _mended(place, name, wanted, shown)
    return commands


def _mended(place: Place, name: str, wanted: _Shared, shown: Listed) -> Iterable[Command]:
    of = {"family": FAMILY, "table": place.table, "name": name}
    made = {"type": _TYPE, "hook": wanted.hook, "prio": wanted.priority, "policy": _ACCEPT}
    there = shown.chains.get(name)
    if there is None:
        yield {"create": {"chain": {**of, **made}}}
    else:
        _check_hook(place, there, wanted)
        if there.policy != _ACCEPT:
            yield {"add": {"chain": {**of, **made}}}
    ours = [each for each in shown.rules.get(name, ()) if each.comment == _COMMENT]
    if [each.expr for each in ours] == list(wanted.rules):
        return
    at = {"family": FAMILY, "table": place.table, "chain": name}
    for each in ours:
        yield {"delete": {"rule": {**at, "handle": each.handle}}}
    for each in wanted.rules:
        yield {"add": {"rule": {**at, "expr": each, "comment": _COMMENT}}}


def _check_hook(place: Place, there: Chain, wanted: _Shared) -> None:
    if (there.type, there.hook, there.prio) == (_TYPE, wanted.hook, wanted.priority):
        return
    raise NotDoneError(
        f"chain {there.name} of {place} must have type {_TYPE}, hook {wanted.hook} and "
        f"priority {wanted.priority}; delete it, then Reconciler recreates it"
    )


def _strangers(shown: Listed) -> str:
    """Return the objects in a table that have not the form of ours."""
    named = (each for each in shown.chains if each not in _CHAINS and name_of(each) is None)
    chains = (f"chain {each}" for each in named)
    strange = sorted({*chains, *shown.maps, *(shown.sets - {MASQUERADED})})
    return ", ".join(strange[:5])
