"""The output of ``nft -j list`` for a table, a chain or a map."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import msgspec

from infra.providers.nftables.spec import Front
from infra.providers.responses import UNDECODABLE
from reconciler.errors import NotDoneError

Expressions = list[object]
"""A rule in nft's JSON: its matches, followed by its action."""


class Rule(msgspec.Struct, frozen=True):
    """A rule of a chain. Handles are never reused."""

    chain: str
    handle: int
    expr: Expressions = []
    comment: str = ""


class Chain(msgspec.Struct, frozen=True):
    """A chain. One with a hook is a base chain."""

    name: str
    handle: int
    type: str = ""
    hook: str = ""
    prio: int = 0
    policy: str = ""


class Element(msgspec.Struct, frozen=True):
    """An element of ``services``; ``target`` is the chain of its verdict, if any."""

    front: Front
    target: str
    comment: str = ""
    verdict: str = "goto"


class _Value(msgspec.Struct, frozen=True):
    val: object
    comment: str = ""


class _Key(msgspec.Struct, frozen=True):
    """A key: its parts, either alone or in an object with other fields."""

    concat: list[object] | None = None
    elem: _Value | None = None


class _Target(msgspec.Struct, frozen=True):
    target: str


class _Verdict(msgspec.Struct, frozen=True):
    goto: _Target | None = None
    jump: _Target | None = None


class _Set(msgspec.Struct, frozen=True):
    name: str
    table: str = ""
    type: object = None
    map: object = None
    elem: list[object] = []

    def is_own(self, name: str, map_type: object = None) -> bool:
        """Return whether this is Reconciler's object with that name."""
        return (self.name, self.type, self.map) == (name, KEY, map_type)


class _Table(msgspec.Struct, frozen=True):
    name: str
    flags: object = None


class _Item(msgspec.Struct, frozen=True):
    table: _Table | None = None
    chain: Chain | None = None
    rule: Rule | None = None
    map: _Set | None = None
    set: _Set | None = None


class _Output(msgspec.Struct, frozen=True):
    nftables: list[_Item]


@dataclass(slots=True)
class TableListing:
    """The listed objects by name. ``masqueraded`` contains the elements of the set with that name.

    A foreign map or set with the name of a shared object is listed under another name.
    """

    is_dormant: bool = False
    chains: dict[str, Chain] = field(default_factory=dict[str, Chain])
    rules: dict[str, list[Rule]] = field(default_factory=dict[str, list[Rule]])
    maps: set[str] = field(default_factory=set[str])
    sets: set[str] = field(default_factory=set[str])
    elements: list[Element] = field(default_factory=list[Element])
    masqueraded: set[Front] = field(default_factory=set[Front])


SERVICES: Final = "services"
MASQUERADED: Final = "masqueraded"

KEY: Final = ["ipv4_addr", "inet_proto", "inet_service"]
"""Types of the parts of a ``Front``."""

_output_decoder = msgspec.json.Decoder(_Output)
_ELEMENT: Final = re.compile(
    r"elements = \{ \S+ \. \S+ \. \S+ (?:comment \"(?P<comment>[^\"]*)\" )?:"
    r" (?P<verdict>\w+)(?: (?P<target>\S+))? \}"
)


def parse_listing(output: bytes) -> TableListing:
    """Parse nft's output. Raises ``NotDoneError`` if it is invalid."""
    try:
        items = _output_decoder.decode(output).nftables
        return _collect(items)
    except UNDECODABLE as error:
        raise NotDoneError(f"invalid output from nft: {error}", responded=True) from None


def parse_service_tables(output: bytes) -> list[str]:
    """Return the tables that have a ``services`` map. Raises ``NotDoneError``."""
    try:
        maps = [each.map for each in _output_decoder.decode(output).nftables if each.map]
    except UNDECODABLE as error:
        raise NotDoneError(f"invalid output from nft: {error}", responded=True) from None
    return [each.table for each in maps if each.is_own(SERVICES, "verdict")]


def _collect(items: list[_Item]) -> TableListing:
    listing = TableListing()
    for item in items:
        if item.table is not None:
            # nft 1.0.6 prints another word instead of the flag, and nothing if there is no flag.
            listing.is_dormant = item.table.flags is not None
        elif item.chain is not None:
            listing.chains[item.chain.name] = item.chain
        elif item.rule is not None:
            listing.rules.setdefault(item.rule.chain, []).append(item.rule)
        elif item.map is not None:
            is_shared = item.map.is_own(SERVICES, "verdict")
            listing.maps.add(item.map.name if is_shared else f"map {item.map.name}")
            if is_shared:
                listing.elements += _elements(item.map.elem)
        elif item.set is not None:
            is_shared = item.set.is_own(MASQUERADED)
            listing.sets.add(item.set.name if is_shared else f"set {item.set.name}")
            if is_shared:
                fronts = (_front_and_comment(each)[0] for each in item.set.elem)
                listing.masqueraded |= {each for each in fronts if each is not None}
    return listing


def parse_element(output: str, front: Front) -> Element | None:
    """Parse the output of ``nft get element`` for ``services``. nft 1.0.6 has no JSON for it."""
    match = _ELEMENT.search(output)
    if match is None:
        return None
    return Element(front, match["target"] or "", match["comment"] or "", match["verdict"])


def _elements(items: list[object]) -> list[Element]:
    elements: list[Element] = []
    for item in items:
        key, verdict = msgspec.convert(item, tuple[object, object])
        front, comment = _front_and_comment(key)
        target_fields = msgspec.convert(verdict, _Verdict)
        if front is not None and (target := target_fields.goto or target_fields.jump) is not None:
            verb = "jump" if target_fields.goto is None else "goto"
            elements.append(Element(front, target.target, comment, verb))
    return elements


def _front_and_comment(item: object) -> tuple[Front | None, str]:
    """Return a key and its comment. The key is None if its protocol is neither tcp nor udp."""
    key = msgspec.convert(item, _Key)
    comment = ""
    if key.elem is not None:
        comment = key.elem.comment
        key = msgspec.convert(key.elem.val, _Key)
    match key.concat:
        case [str(address), "tcp", int(port)]:
            return Front(address, "tcp", port), comment
        case [str(address), "udp", int(port)]:
            return Front(address, "udp", port), comment
        case _:
            return None, ""
