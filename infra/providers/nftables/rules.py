"""A service as rules: a chain, the element that leads to it, and the commands that write both.

A chain has one rule for each backend, followed by its mark, which no packet reaches. An
anonymous map of backends (``dnat to numgen … map``) would be one rule with its own set, but nft
reads the elements of all sets in a table before it shows one chain (see Design in
docs/kinds/service.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
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
    Rule,
    TableListing,
)
from infra.providers.nftables.marks import (
    Mark,
    build_element_comment,
    decode_mark,
    decode_uid,
    is_mark_comment,
)
from infra.providers.nftables.nft import Command
from infra.providers.nftables.spec import (
    MAX_BACKENDS,
    Backend,
    Balance,
    Front,
    Protocol,
    name_problem,
)
from infra.providers.nftables.table_ref import FAMILY

_PREFIX: Final = "service-"
_SEED: Final = 0x5EC0
"""Seed of the hash of client addresses. Constant, so that a standby machine computes the same
hashes."""

_BALANCES: Final[tuple[Balance, ...]] = get_args(Balance)
_encoder = msgspec.json.Encoder(order="deterministic")


def chain_of(name: str) -> str:
    """Return the name of a service's chain."""
    return f"{_PREFIX}{name}"


def name_of(chain: str) -> str | None:
    """Return the name of a chain's service; None if it is not a service's chain."""
    name = chain.removeprefix(_PREFIX)
    return name if chain != name and name_problem(name) is None else None


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of a service: its chain, and how packets reach it.

    ``element`` leads to the chain. ``is_masqueraded``: whether ``front`` is masqueraded.
    ``is_reachable``: whether the table's shared chains are intact. ``flow_backends``: the backends
    of existing UDP flows.
    """

    name: str
    chain: Chain
    rules: list[Rule]
    mark: Mark | None
    element: Element | None
    is_masqueraded: bool
    is_reachable: bool = True
    flow_backends: Collection[Backend] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it is an empty chain that nothing leads to, and therefore not an object."""
        return not self.rules and self.element is None

    @property
    def front(self) -> Front | None:
        """The front of the element, or else of the mark."""
        if self.element is not None:
            return self.element.front
        return None if self.mark is None else self.mark.front

    def as_object(self) -> ExternalObject:
        """Return the service as an object. Damaged fields are missing, so that they differ."""
        fields: Fields = {"masquerade": self.is_masqueraded}
        outputs: Fields = {}
        if self.element is not None and self.element.verdict == "goto" and self.is_reachable:
            address, protocol, port = self.element.front
            fields |= {"address": address, "protocol": protocol, "port": port}
            outputs = {"address": address, "port": port}
        fields |= self._backend_fields()
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
        uid = None if self.element is None else decode_uid(self.element.comment)
        return uid or f"chain-{self.chain.handle}"

    @property
    def _version(self) -> str:
        """A digest of the state. Handles are never reused, so each write changes it."""
        handles = [each.handle for each in self.rules]
        content = (self.chain.handle, handles, self.element, self.is_masqueraded)
        return hashlib.blake2b(_encoder.encode(content), digest_size=12).hexdigest()

    def _backend_fields(self) -> Fields:
        """Return the backends and the balance; empty if the rules have a different structure."""
        body = [each.expr for each in self.rules if not is_mark_comment(each.comment)]
        mark_rules = [each.expr for each in self.rules[len(body) :]]
        front = self.front
        if front is None or any(each != _NO_OP for each in mark_rules):
            return {}
        if any(is_mark_comment(each.comment) for each in self.rules[: len(body)]):
            return {}
        backends = [each for each in map(_backend_of, body) if each is not None]
        candidates = _BALANCES if self.mark is None else (self.mark.balance,)
        for balance in candidates:
            if body == _body(front.protocol, balance, backends):
                # A backend without a rule still receives the packets of its existing flows.
                removed = sorted(set(self.flow_backends) - set(backends), key=_sort_key)
                addresses = [
                    {"address": each.address, "port": each.port}
                    for each in (*backends, *removed[:MAX_BACKENDS])
                ]
                return {"backends": addresses, "balance": balance}
        return {}


def _sort_key(backend: Backend) -> tuple[str, int]:
    return backend.address, backend.port


def build_state(
    listing: TableListing, name: str, element: Element | None, *, is_masqueraded: bool
) -> ServiceState:
    """Combine the listed parts of a service."""
    chain = chain_of(name)
    rules = listing.rules.get(chain, [])
    return ServiceState(
        name, listing.chains[chain], rules, read_mark(rules), element, is_masqueraded
    )


def read_mark(rules: list[Rule]) -> Mark | None:
    """Return the mark of a chain's rules."""
    return decode_mark([each.comment for each in rules if is_mark_comment(each.comment)])


def all_services(listing: TableListing) -> list[ServiceState]:
    """Return all services in a table, ordered by chain name."""
    elements_by_chain: dict[str, list[Element]] = {}
    for element in listing.elements:
        elements_by_chain.setdefault(element.target, []).append(element)
    states: list[ServiceState] = []
    for chain in sorted(listing.chains):
        name = name_of(chain)
        if name is None or listing.chains[chain].hook:
            continue
        mark = read_mark(listing.rules.get(chain, []))
        element = leading_element(mark, elements_by_chain.get(chain, []))
        front = element.front if element is not None else None if mark is None else mark.front
        state = build_state(listing, name, element, is_masqueraded=front in listing.masqueraded)
        if not state.is_empty:
            states.append(state)
    return states


def leading_element(mark: Mark | None, elements: list[Element]) -> Element | None:
    """Return a service's element. Other elements that lead to its chain are foreign."""
    if mark is None:
        return min(elements, default=None, key=lambda each: each.front)
    return next((each for each in elements if each.front == mark.front), None)


def describe_target(element: Element) -> str:
    """Describe where a foreign element leads."""
    return f"chain {element.target}" if element.target else f"the verdict {element.verdict}"


# --- writing


def declared_front(fields: Fields) -> Front:
    """Return the front that an action declares."""
    return Front(fields["address"], fields["protocol"], fields["port"])


def declared_backends(fields: Fields) -> list[Backend]:
    """Return the backends that an action declares."""
    return [Backend(each["address"], each["port"]) for each in fields["backends"]]


def build_write_commands(
    table: str, action: Action, uid: str, current: ServiceState | None
) -> list[Command]:
    """Return the commands that replace the known state of a service.

    Rules are deleted by handle. If a rule no longer exists, the whole transaction fails. Raises
    ``RefusedError`` for labels that are too long.
    """
    chain, front = chain_of(action.external_name), declared_front(action.fields)
    balance: Balance = action.fields["balance"]
    mark = Mark(uid, action.idempotency_key, front, balance, action.labels)
    backends = declared_backends(action.fields)
    rules: list[Command] = [{"expr": each} for each in _body(front.protocol, balance, backends)]
    rules.extend({"expr": _NO_OP, "comment": each} for each in mark.comments())
    commands: list[Command] = []
    if current is None:
        commands.append({"create": {"chain": _in_table(table, name=chain)}})
    else:
        commands += _delete_rules(table, current)
    commands.extend({"add": {"rule": _in_table(table, chain=chain, **each)}} for each in rules)
    old_element = None if current is None else current.element
    new_element = Element(front, chain, build_element_comment(uid))
    if old_element != new_element:
        if old_element is not None:
            commands.append(_delete_element(table, SERVICES, old_element.front))
        key = {"elem": {"val": {"concat": [*front]}, "comment": new_element.comment}}
        elements = [[key, {"goto": {"target": chain}}]]
        commands.append({"create": {"element": _in_table(table, name=SERVICES, elem=elements)}})
    commands += _set_masquerade(table, front, current, is_enabled=action.fields["masquerade"])
    return commands


def build_delete_commands(table: str, current: ServiceState) -> list[Command]:
    """Return the commands that delete the known state of a service."""
    commands = [*_delete_rules(table, current), *build_close_commands(table, current)]
    return [*commands, {"delete": {"chain": _in_table(table, name=current.chain.name)}}]


def build_close_commands(table: str, current: ServiceState) -> list[Command]:
    """Return the commands after which a service receives no new flows."""
    commands: list[Command] = []
    if current.element is not None:
        commands.append(_delete_element(table, SERVICES, current.element.front))
    if current.is_masqueraded and current.front is not None:
        commands.append(_delete_element(table, MASQUERADED, current.front))
    return commands


def _delete_rules(table: str, current: ServiceState) -> list[Command]:
    return [
        {"delete": {"rule": _in_table(table, chain=each.chain, handle=each.handle)}}
        for each in current.rules
    ]


def _set_masquerade(
    table: str, front: Front, current: ServiceState | None, *, is_enabled: bool
) -> list[Command]:
    old_front = current.front if current is not None and current.is_masqueraded else None
    if is_enabled and old_front == front:
        return []
    commands: list[Command] = []
    if old_front is not None:
        commands.append(_delete_element(table, MASQUERADED, old_front))
    if is_enabled:
        elements = [{"concat": [*front]}]
        commands.append({"add": {"element": _in_table(table, name=MASQUERADED, elem=elements)}})
    return commands


def _delete_element(table: str, set_name: str, front: Front) -> Command:
    return {"delete": {"element": _in_table(table, name=set_name, elem=[{"concat": [*front]}])}}


def _in_table(table: str, **fields: object) -> Command:
    return {"family": FAMILY, "table": table, **fields}


# --- rules


_NO_OP: Final[Expressions] = [{"continue": None}]


def match(left: object, right: object, operator: str = "==") -> Command:
    """Return a comparison."""
    return {"match": {"op": operator, "left": left, "right": right}}


def is_protocol(protocol: Protocol) -> Command:
    """Return the comparison that nft requires before ports."""
    return match({"meta": {"key": "l4proto"}}, protocol)


def _body(protocol: Protocol, balance: Balance, backends: list[Backend]) -> list[Expressions]:
    """Return rules. The first one that matches redirects a connection to its backend."""
    if not backends:
        return [[_reject(protocol)]]
    rules: list[Expressions] = []
    for number, backend in enumerate(backends):
        is_last = number == len(backends) - 1
        conditions = [] if is_last else [_select_backend(balance, number, len(backends))]
        target = {"dnat": {"addr": backend.address, "port": backend.port}}
        rules.append([is_protocol(protocol), *conditions, target])
    return rules


def _select_backend(balance: Balance, number: int, count: int) -> Command:
    """Return the comparison that selects a backend if no earlier one was selected."""
    remaining = count - number
    match balance:
        case "Random":
            return match({"numgen": {"mode": "random", "mod": remaining, "offset": 0}}, 0)
        case "RoundRobin":
            # Each rule counts the packets that reach it. Of three, the first takes every third, the
            # second every other one of the rest.
            return match({"numgen": {"mode": "inc", "mod": remaining, "offset": 0}}, 0)
        case "SourceAddress":
            address = {"payload": {"protocol": "ip", "field": "saddr"}}
            return match({"jhash": {"mod": count, "seed": _SEED, "expr": address}}, number)


def _reject(protocol: Protocol) -> Command:
    """Return the action that rejects a connection immediately if there is no backend."""
    if protocol == "tcp":
        return {"reject": {"type": "tcp reset"}}
    return {"reject": {"type": "icmp", "expr": "port-unreachable"}}


class _Dnat(msgspec.Struct, frozen=True):
    addr: str
    port: int


class _Target(msgspec.Struct, frozen=True):
    dnat: _Dnat


def _backend_of(rule: Expressions) -> Backend | None:
    """Return the backend that a rule redirects to; None if it does something else."""
    try:
        target = msgspec.convert(rule[-1], _Target).dnat
        return Backend(target.addr, target.port)
    except (IndexError, msgspec.ValidationError, ValueError):
        return None
