"""A service as rules: a chain, an element that leads to it, and the commands that write both.

A chain has one rule for each backend, and after them its mark, which no packet reaches. An
anonymous map of backends (``dnat to numgen … map``) would be one rule with its own set, but nft
reads the elements of all sets of a table before it shows one chain (see Design in
docs/kinds/service.md).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, get_args

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from infra.providers.nftables.listed import (
    MASQUERADED,
    SERVICES,
    Chain,
    Element,
    Expressions,
    Listed,
    Rule,
)
from infra.providers.nftables.marks import (
    Mark,
    comment_of_element,
    is_of_mark,
    mark_in,
    uid_in,
)
from infra.providers.nftables.nft import Command
from infra.providers.nftables.place import FAMILY
from infra.providers.nftables.spec import Backend, Balance, Front, Protocol, name_problem

_PREFIX: Final = "service-"
_SEED: Final = 0x5EC0
"""Of the hash of a client's address. It is constant, so that a machine that takes over agrees."""

_BALANCES: Final[tuple[Balance, ...]] = get_args(Balance)
_encoder = msgspec.json.Encoder(order="deterministic")


def chain_of(name: str) -> str:
    """Return the name of a service's chain."""
    return f"{_PREFIX}{name}"


def name_of(chain: str) -> str | None:
    """Return the service of a chain's name; None if it has another form."""
    name = chain.removeprefix(_PREFIX)
    return name if chain != name and name_problem(name) is None else None


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a service: its chain, and how packets reach it.

    ``element`` leads to the chain. ``is_masqueraded``: the front of the element, or of the mark.
    ``is_reached``: the shared chains of the table are sound.
    """

    name: str
    chain: Chain
    rules: list[Rule]
    mark: Mark | None
    element: Element | None
    is_masqueraded: bool
    is_reached: bool = True

    @property
    def is_nothing(self) -> bool:
        """Whether it is an empty chain to which nothing leads, and so no object."""
        return not self.rules and self.element is None

    @property
    def front(self) -> Front | None:
        """The current or future front."""
        if self.element is not None:
            return self.element.front
        return None if self.mark is None else self.mark.front

    def as_object(self) -> ExternalObject:
        """Return it as an object, without damaged fields, so that these differ."""
        fields: Fields = {"masquerade": self.is_masqueraded}
        outputs: Fields = {}
        if self.element is not None and self.element.verdict == "goto" and self.is_reached:
            address, protocol, port = self.element.front
            fields |= {"address": address, "protocol": protocol, "port": port}
            outputs = {"address": address, "port": port}
        fields |= self._spread()
        return ExternalObject(
            name=self.name,
            fields=fields,
            uid=self._uid,
            version=self._version,
            labels={} if self.mark is None else self.mark.labels,
            written_by=None if self.mark is None else self.mark.key,
            outputs=outputs,
        )

    @property
    def _uid(self) -> str:
        if self.mark is not None:
            return self.mark.uid
        kept = None if self.element is None else uid_in(self.element.comment)
        return kept or f"chain-{self.chain.handle}"

    @property
    def _version(self) -> str:
        """Handles are never used again, so later writes have others."""
        handles = [each.handle for each in self.rules]
        content = (self.chain.handle, handles, self.element, self.is_masqueraded)
        return hashlib.blake2b(_encoder.encode(content), digest_size=12).hexdigest()

    def _spread(self) -> Fields:
        """Return the backends and their balance; nothing if the rules have another form."""
        body = [each.expr for each in self.rules if not is_of_mark(each.comment)]
        marked = [each.expr for each in self.rules[len(body) :]]
        front = self.front
        if front is None or any(each != _NOTHING for each in marked):
            return {}
        if any(is_of_mark(each.comment) for each in self.rules[: len(body)]):
            return {}
        backends = [each for each in map(_backend_of, body) if each is not None]
        likely = _BALANCES if self.mark is None else (self.mark.balance,)
        for balance in likely:
            if body == _body(front.protocol, balance, backends):
                shown = [{"address": each.address, "port": each.port} for each in backends]
                return {"backends": shown, "balance": balance}
        return {}


def seen_in(shown: Listed, name: str, element: Element | None, *, is_masqueraded: bool) -> Seen:
    """Combine the listed parts of a service."""
    chain = chain_of(name)
    rules = shown.rules.get(chain, [])
    return Seen(name, shown.chains[chain], rules, mark_of(rules), element, is_masqueraded)


def mark_of(rules: list[Rule]) -> Mark | None:
    """Return the mark of a chain's rules."""
    return mark_in([each.comment for each in rules if is_of_mark(each.comment)])


def all_seen(shown: Listed) -> list[Seen]:
    """Return all services of a table, in the order of their names."""
    leading: dict[str, list[Element]] = {}
    for element in shown.elements:
        leading.setdefault(element.target, []).append(element)
    found: list[Seen] = []
    for chain in sorted(shown.chains):
        name = name_of(chain)
        if name is None or shown.chains[chain].hook:
            continue
        mark = mark_of(shown.rules.get(chain, []))
        element = leading_element(mark, leading.get(chain, []))
        front = element.front if element is not None else None if mark is None else mark.front
        seen = seen_in(shown, name, element, is_masqueraded=front in shown.masqueraded)
        if not seen.is_nothing:
            found.append(seen)
    return found


def leading_element(mark: Mark | None, elements: list[Element]) -> Element | None:
    """Return the service's element. Other elements that lead to its chain are foreign."""
    if mark is None:
        return min(elements, default=None, key=lambda each: each.front)
    return next((each for each in elements if each.front == mark.front), None)


def target_text(element: Element) -> str:
    """Return where a foreign element leads."""
    return f"chain {element.target}" if element.target else f"the verdict {element.verdict}"


# --- writing


def front_of_fields(fields: Fields) -> Front:
    """Return the front that an action declares."""
    return Front(fields["address"], fields["protocol"], fields["port"])


def written(table: str, action: Action, uid: str, seen: Seen | None) -> list[Command]:
    """Return the commands that replace the known state of a service.

    Rules are deleted by their handles. If one was deleted in the meantime, the whole transaction is
    refused. Raises ``RefusedError`` for labels that are too long.
    """
    chain, front = chain_of(action.external_name), front_of_fields(action.fields)
    balance: Balance = action.fields["balance"]
    mark = Mark(uid, action.idempotency_key, front, balance, action.labels)
    backends = [Backend(each["address"], each["port"]) for each in action.fields["backends"]]
    rules: list[Command] = [{"expr": each} for each in _body(front.protocol, balance, backends)]
    rules.extend({"expr": _NOTHING, "comment": each} for each in mark.comments())
    commands: list[Command] = []
    if seen is None:
        commands.append({"create": {"chain": _in(table, name=chain)}})
    else:
        commands += _rules_deleted(table, seen)
    commands.extend({"add": {"rule": _in(table, chain=chain, **each)}} for each in rules)
    is_there = None if seen is None else seen.element
    wanted = Element(front, chain, comment_of_element(uid))
    if is_there != wanted:
        if is_there is not None:
            commands.append(_element_deleted(table, SERVICES, is_there.front))
        key = {"elem": {"val": {"concat": [*front]}, "comment": wanted.comment}}
        leads = [[key, {"goto": {"target": chain}}]]
        commands.append({"create": {"element": _in(table, name=SERVICES, elem=leads)}})
    commands += _masqueraded(table, front, seen, is_wanted=action.fields["masquerade"])
    return commands


def deleted(table: str, seen: Seen) -> list[Command]:
    """Return the commands that delete the known state of a service."""
    commands = _rules_deleted(table, seen)
    if seen.element is not None:
        commands.append(_element_deleted(table, SERVICES, seen.element.front))
    if seen.is_masqueraded and seen.front is not None:
        commands.append(_element_deleted(table, MASQUERADED, seen.front))
    return [*commands, {"delete": {"chain": _in(table, name=seen.chain.name)}}]


def _rules_deleted(table: str, seen: Seen) -> list[Command]:
    return [
        {"delete": {"rule": _in(table, chain=each.chain, handle=each.handle)}}
        for each in seen.rules
    ]


def _masqueraded(table: str, front: Front, seen: Seen | None, *, is_wanted: bool) -> list[Command]:
    before = seen.front if seen is not None and seen.is_masqueraded else None
    if is_wanted and before == front:
        return []
    commands: list[Command] = []
    if before is not None:
        commands.append(_element_deleted(table, MASQUERADED, before))
    if is_wanted:
        elements = [{"concat": [*front]}]
        commands.append({"add": {"element": _in(table, name=MASQUERADED, elem=elements)}})
    return commands


def _element_deleted(table: str, of: str, front: Front) -> Command:
    return {"delete": {"element": _in(table, name=of, elem=[{"concat": [*front]}])}}


def _in(table: str, **what: object) -> Command:
    return {"family": FAMILY, "table": table, **what}


# --- rules


_NOTHING: Final[Expressions] = [{"continue": None}]


def match(left: object, right: object, operator: str = "==") -> Command:
    """Return a comparison."""
    return {"match": {"op": operator, "left": left, "right": right}}


def is_protocol(protocol: Protocol) -> Command:
    """Return the comparison that nft requires before ports."""
    return match({"meta": {"key": "l4proto"}}, protocol)


def _body(protocol: Protocol, balance: Balance, backends: list[Backend]) -> list[Expressions]:
    """Return rules of which the first match redirects a connection to its backend."""
    if not backends:
        return [[_refusal(protocol)]]
    rules: list[Expressions] = []
    for number, each in enumerate(backends):
        is_last = number == len(backends) - 1
        is_chosen = [] if is_last else [_choice(balance, number, len(backends))]
        target = {"dnat": {"addr": each.address, "port": each.port}}
        rules.append([is_protocol(protocol), *is_chosen, target])
    return rules


def _choice(balance: Balance, number: int, of: int) -> Command:
    """Return the comparison that holds for one backend, if it held for none before it."""
    left = of - number
    match balance:
        case "Random":
            return match({"numgen": {"mode": "random", "mod": left, "offset": 0}}, 0)
        case "RoundRobin":
            # Each rule counts the packets that reach it: the first takes every third, the second
            # every other one of the rest.
            return match({"numgen": {"mode": "inc", "mod": left, "offset": 0}}, 0)
        case "SourceAddress":
            address = {"payload": {"protocol": "ip", "field": "saddr"}}
            return match({"jhash": {"mod": of, "seed": _SEED, "expr": address}}, number)


def _refusal(protocol: Protocol) -> Command:
    """Return rules that inform a client immediately that no backend exists."""
    if protocol == "tcp":
        return {"reject": {"type": "tcp reset"}}
    return {"reject": {"type": "icmp", "expr": "port-unreachable"}}


class _Dnat(msgspec.Struct, frozen=True):
    addr: str
    port: int


class _Target(msgspec.Struct, frozen=True):
    dnat: _Dnat


def _backend_of(rule: Expressions) -> Backend | None:
    """Return where a rule redirects connections; None if it does something else."""
    try:
        target = msgspec.convert(rule[-1], _Target).dnat
        return Backend(target.addr, target.port)
    except (IndexError, msgspec.ValidationError, ValueError):
        return None
