"""Only the `Service` kind: connections in namespaces, damaged rules, and the cost of writes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields, InvalidManifestError
from events.provider_config import Limits, ProviderConfigSpec, Scope
from infra.providers.nftables import nft as nft_module
from infra.providers.nftables import rules
from infra.providers.nftables.marks import MAX_COMMENT_BYTES
from infra.providers.nftables.service import SERVICE
from infra.providers.nftables.services import ServicesProvider
from infra.providers.nftables.system import read_system_id
from infra.providers.nftables.table_ref import parse_endpoint
from reconciler.errors import (
    ConfigurationError,
    ConflictError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider.call_permit import CALL_GATE, CallPermit
from reconciler.provider.contract import action, listing, with_version_of
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL
from tests.hostile_server import measure_memory
from tests.nftables import (
    Backend,
    Echo,
    Flow,
    Host,
    Namespace,
    Network,
    is_refused_within,
    namespace,
    network,
    run,
)
from tests.providers.permit import ClosedGate

pytestmark = pytest.mark.nftables

VIRTUAL_ADDRESS = "198.18.0.1"
REFUSED_WITHIN_SECONDS = 0.5
"""An unanswered SYN is retransmitted after a second."""


class Services:
    """A provider, with operations for tests."""

    def __init__(self, network_namespace: Namespace, table: str = "reconciler") -> None:
        self.network_namespace, self.table = network_namespace, table
        self.provider = provider_at(network_namespace.endpoint(table))

    def fields(self, *backends: tuple[str, int], **spec: Any) -> Fields:
        backend_fields = [{"address": address, "port": port} for address, port in backends]
        return SERVICE.check_fields(
            {"address": VIRTUAL_ADDRESS, "port": 80, "backends": backend_fields, **spec}
        )

    async def create_service(
        self, name: str, *backends: tuple[str, int], **spec: Any
    ) -> ExternalObject:
        create = action("Create", name, self.fields(*backends, **spec))
        effect = await self.provider.create(create)
        assert effect.object is not None
        return effect.object

    async def update_service(
        self, existing: ExternalObject, *backends: tuple[str, int], **spec: Any
    ) -> ExternalObject:
        update = with_version_of(
            action("Update", existing.name, self.fields(*backends, **spec)), existing
        )
        effect = await self.provider.update(update)
        assert effect.object is not None
        return effect.object

    async def list_services(self) -> list[ExternalObject]:
        return await listing(self.provider, Scope())

    async def find_service(self, name: str) -> ExternalObject:
        """Return a service as a listing shows it."""
        (existing,) = [each for each in await self.list_services() if each.name == name]
        return existing


def provider_at(endpoint: str, timeout_seconds: float = 10) -> ServicesProvider:
    limits = Limits(request_timeout_seconds=timeout_seconds)
    config = ProviderConfigSpec(provider="nftables", endpoint=endpoint, limits=limits)
    return ServicesProvider(config, Secrets(), CallPermit())


@pytest.fixture
def network_namespace() -> Iterator[Namespace]:
    with namespace() as created_namespace:
        yield created_namespace


@pytest.fixture
async def services(network_namespace: Namespace) -> AsyncIterator[Services]:
    opened = Services(network_namespace)
    yield opened
    await opened.provider.close()


@pytest.fixture
def net() -> Iterator[Network]:
    with network(clients=2, backends=2) as created_network:
        yield created_network


@pytest.fixture
async def routed(net: Network) -> AsyncIterator[Services]:
    opened = Services(net.router)
    yield opened
    await opened.provider.close()


def backend_addresses(net: Network) -> list[tuple[str, int]]:
    return [(each.host.address, each.port) for each in net.backends]


def count_responses(net: Network, times: int) -> Counter[str]:
    """Connect this many times from each client; return how often each backend responded."""
    responses = [
        client.connect(VIRTUAL_ADDRESS, 80).split()[0]
        for client in net.clients
        for _ in range(times)
    ]
    return Counter(responses)


# --- connections


async def test_two_clients_reach_two_backends_through_a_virtual_address_evenly(
    routed: Services, net: Network
) -> None:
    service = await routed.create_service("web", *backend_addresses(net), balance="RoundRobin")
    assert await asyncio.to_thread(count_responses, net, 10) == {"b0": 10, "b1": 10}, (
        "the backends alternate"
    )

    service = await routed.update_service(service, *backend_addresses(net), balance="Random")
    counts = await asyncio.to_thread(count_responses, net, 100)
    assert counts.total() == 200
    # Of 200 coin tosses, fewer than 50 are heads once in 10^12 times.
    assert min(counts["b0"], counts["b1"]) >= 50

    await routed.update_service(service, *backend_addresses(net), balance="SourceAddress")
    for each in net.clients:
        responses = {await asyncio.to_thread(each.connect, VIRTUAL_ADDRESS, 80) for _ in range(10)}
        assert len(responses) == 1, "the same backend always responds to a client"


async def test_three_backends_alternate_for_clients_and_the_machine_itself(
    routed: Services, net: Network
) -> None:
    first, second = backend_addresses(net)
    await routed.create_service("web", first, second, (first[0], first[1]), balance="RoundRobin")
    router = Host("router", net.router, "10.77.1.1")
    responses = [await asyncio.to_thread(router.connect, VIRTUAL_ADDRESS, 80) for _ in range(10)]
    assert Counter(each.split()[0] for each in responses) == {"b0": 5, "b1": 5}
    net.backends.append(Backend(net.backends[0].host, 9090))
    service = await routed.provider.read("web")
    assert service is not None
    third = (net.backends[0].host.address, 9090)
    await routed.update_service(service, first, second, third, balance="RoundRobin")
    counts = await asyncio.to_thread(count_responses, net, 15)
    assert counts == {"b0": 20, "b1": 10}, "two of the three are on b0"


async def test_backends_see_this_machine_or_the_client_as_declared(
    routed: Services, net: Network
) -> None:
    client = net.clients[0]
    service = await routed.create_service("web", backend_addresses(net)[0])
    source_address = (await asyncio.to_thread(client.connect, VIRTUAL_ADDRESS, 80)).split()[1]
    assert source_address == net.backends[0].host.address.removesuffix("2") + "1", (
        "the router's own address"
    )
    service = await routed.update_service(service, backend_addresses(net)[0], masquerade=False)
    assert service.fields["masquerade"] is False
    assert (await asyncio.to_thread(client.connect, VIRTUAL_ADDRESS, 80)).split()[
        1
    ] == client.address


async def test_without_backends_connections_are_refused_immediately(
    routed: Services, net: Network
) -> None:
    client = net.clients[0]
    service = await routed.create_service("web")
    assert SERVICE.ready(service.fields, service).reason == "NoBackends"
    for each in (*net.clients, Host("router", net.router, "10.77.1.1")):
        call = partial(each.connect, VIRTUAL_ADDRESS, 80)
        assert await asyncio.to_thread(is_refused_within, REFUSED_WITHIN_SECONDS, call), each.name
    service = await routed.update_service(service, *backend_addresses(net))
    assert SERVICE.ready(service.fields, service).is_ready
    await asyncio.to_thread(client.connect, VIRTUAL_ADDRESS, 80)

    service = await routed.update_service(service, backend_addresses(net)[1])
    assert await asyncio.to_thread(count_responses, net, 10) == {"b1": 20}, (
        "a removed backend does not receive connections"
    )
    await routed.provider.delete(with_version_of(action("Delete", "web", {}), service))
    assert routed.network_namespace.nft("list map ip reconciler services").count("elements") == 0


async def test_datagrams_are_forwarded_or_refused(routed: Services, net: Network) -> None:
    host, client = net.backends[0].host, net.clients[0]
    echo = Echo(host, 5353)
    try:
        dns = {"port": 53, "protocol": "udp"}
        service = await routed.create_service("dns", (host.address, 5353), **dns)
        response = await asyncio.to_thread(client.send_datagram, VIRTUAL_ADDRESS, 53)
        assert response.split()[0] == "b0"
        await routed.update_service(service, **dns)
        call = partial(client.send_datagram, VIRTUAL_ADDRESS, 53)
        assert await asyncio.to_thread(is_refused_within, REFUSED_WITHIN_SECONDS, call)
    finally:
        echo.close()


# --- flows that the kernel keeps


DNS: Fields = {"port": 53, "protocol": "udp"}


@pytest.fixture
def echoes(net: Network) -> Iterator[list[tuple[str, int]]]:
    """Respond to datagrams on both backends."""
    opened = [Echo(each.host, 5353) for each in net.backends]
    yield [(each.host.address, 5353) for each in opened]
    for each in opened:
        each.close()


@pytest.fixture
def flow(net: Network) -> Iterator[Flow]:
    opened = Flow(net.clients[0], VIRTUAL_ADDRESS, 53)
    yield opened
    opened.close()


async def responder(flow: Flow) -> str:
    return (await asyncio.to_thread(flow.send)).split()[0]


async def test_a_udp_client_leaves_a_removed_backend_and_stays_on_a_kept_one(
    routed: Services, net: Network, flow: Flow, echoes: list[tuple[str, int]]
) -> None:
    first, second = echoes
    service = await routed.create_service("dns", first, **DNS)
    assert await responder(flow) == "b0"
    service = await routed.update_service(service, first, second, balance="RoundRobin", **DNS)
    for _ in range(6):
        assert await responder(flow) == "b0", "a flow to a declared backend is kept"
    service = await routed.update_service(service, second, **DNS)
    assert await responder(flow) == "b1"
    assert service == await routed.find_service("dns")
    await routed.update_service(service, **DNS)
    call = partial(flow.send)
    assert await asyncio.to_thread(is_refused_within, REFUSED_WITHIN_SECONDS, call)


async def test_a_udp_client_of_a_deleted_or_moved_service_reaches_no_backend(
    routed: Services, net: Network, flow: Flow, echoes: list[tuple[str, int]]
) -> None:
    service = await routed.create_service("dns", echoes[0], **DNS)
    assert await responder(flow) == "b0"
    service = await routed.update_service(service, echoes[0], **{**DNS, "port": 54})
    assert list_flows(net) == ""
    service = await routed.update_service(service, echoes[0], **DNS)
    assert await responder(flow) == "b0"
    await routed.provider.delete(with_version_of(action("Delete", "dns", {}), service))
    assert list_flows(net) == ""
    assert await routed.list_services() == []


async def test_a_flow_that_began_before_its_service_reaches_it(
    routed: Services, net: Network, flow: Flow, echoes: list[tuple[str, int]]
) -> None:
    other = await routed.create_service("other", echoes[0], **{**DNS, "port": 54})
    run_in_router(net, "ip", "route", "add", VIRTUAL_ADDRESS, "via", echoes[1][0])
    await asyncio.to_thread(flow.send_unanswered)
    assert "dport=53" in list_flows(net)
    await routed.create_service("dns", echoes[0], **DNS)
    assert await responder(flow) == "b0"
    assert other == await routed.find_service("other")


async def test_a_flow_to_a_removed_backend_differs_from_the_declaration(
    routed: Services, net: Network, flow: Flow, echoes: list[tuple[str, int]]
) -> None:
    """A worker may be killed between the rules and the flows."""
    first, second = echoes
    service = await routed.create_service("dns", first, second, **DNS)
    while await responder(flow) != "b0":
        run_in_router(net, "conntrack", "-F")
    without_first = action("Update", "dns", routed.fields(second, **DNS))
    update = with_version_of(without_first, service)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infra.providers.nftables.services.end_flows", stop_worker)
        with pytest.raises(asyncio.CancelledError):
            await routed.provider.update(update)
    for observed in (await routed.find_service("dns"), await routed.provider.read("dns")):
        assert observed is not None
        assert observed.fields["backends"] == [
            {"address": address, "port": port} for address, port in (second, first)
        ]
    assert (await routed.provider.update(update)).replayed, "the same action continues"
    assert await responder(flow) == "b1"
    assert (await routed.find_service("dns")).fields == without_first.fields


async def test_a_udp_client_is_masqueraded_as_declared(
    routed: Services, net: Network, flow: Flow, echoes: list[tuple[str, int]]
) -> None:
    service = await routed.create_service("dns", echoes[0], **DNS)
    assert (await asyncio.to_thread(flow.send)).split()[1] == "10.77.3.1"
    await routed.update_service(service, echoes[0], masquerade=False, **DNS)
    assert (await asyncio.to_thread(flow.send)).split()[1] == net.clients[0].address


async def test_flows_of_other_ports_and_tcp_connections_are_kept(
    routed: Services, net: Network, flow: Flow, echoes: list[tuple[str, int]]
) -> None:
    service = await routed.create_service("dns", echoes[0], **DNS)
    await routed.create_service("other", echoes[0], **{**DNS, "port": 54})
    await routed.create_service("web", *backend_addresses(net))
    await asyncio.to_thread(net.clients[1].send_datagram, VIRTUAL_ADDRESS, 54)
    await asyncio.to_thread(net.clients[1].connect, VIRTUAL_ADDRESS, 80)
    before = list_flows(net), list_flows(net, "tcp").count("dport=80")
    await asyncio.to_thread(flow.send)
    await routed.update_service(service, echoes[1], **DNS)
    assert (re.sub(r" \d+ ", " ", list_flows(net)), list_flows(net, "tcp").count("dport=80")) == (
        re.sub(r" \d+ ", " ", before[0]),
        before[1],
    )


async def test_without_conntrack_a_udp_service_is_refused_before_any_change(
    services: Services, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = await services.create_service("dns", ("10.0.0.1", 53), **DNS)
    rules_before = services.network_namespace.nft("list ruleset", "-a")
    monkeypatch.setattr("infra.providers.nftables.flows.SEARCH_PATH", str(tmp_path))
    assert await services.list_services() == [service]
    for refused in (
        services.create_service("new", ("10.0.0.1", 53), **{**DNS, "port": 54}),
        services.update_service(service, ("10.0.0.2", 53), **DNS),
        services.provider.delete(with_version_of(action("Delete", "dns", {}), service)),
    ):
        with pytest.raises(ConfigurationError, match="install the conntrack package"):
            await refused
    assert services.network_namespace.nft("list ruleset", "-a") == rules_before
    await services.create_service("web", ("10.0.0.1", 80))


def run_in_router(net: Network, *command: str) -> str:
    return run("nsenter", f"--net=/run/netns/{net.router.name}", *command)


def list_flows(net: Network, protocol: str = "udp") -> str:
    return run_in_router(net, "conntrack", "-L", "-p", protocol)


async def stop_worker(*_arguments: object) -> None:
    raise asyncio.CancelledError


# --- identity of the system


def test_the_system_is_the_machine_and_its_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = read_system_id(parse_endpoint("nft:reconciler"))
    named = {read_system_id(parse_endpoint(f"netns:{each}/reconciler")) for each in "ab"}
    machine_id = tmp_path / "machine-id"
    monkeypatch.setattr("infra.providers.nftables.system._MACHINE_ID", machine_id)
    for unknown in ("", "uninitialized"):
        machine_id.write_text(unknown)
        assert read_system_id(parse_endpoint("nft:reconciler")) is None
    machine_id.write_text("0123456789abcdef" * 2)
    other_machine = read_system_id(parse_endpoint("nft:reconciler"))
    assert len({host, *named, other_machine} - {None}) == 4


def test_an_unnamed_namespace_is_not_the_host(network_namespace: Namespace) -> None:
    host = read_system_id(parse_endpoint("nft:reconciler"))
    code = (
        "from infra.providers.nftables.system import read_system_id;"
        "from infra.providers.nftables.table_ref import parse_endpoint;"
        "print(read_system_id(parse_endpoint('nft:reconciler')))"
    )
    inside = (f"--net=/run/netns/{network_namespace.name}", sys.executable, "-c", code)
    first = run("nsenter", *inside)
    assert first == run("nsenter", *inside)
    with namespace() as other:
        second = run("nsenter", f"--net=/run/netns/{other.name}", sys.executable, "-c", code)
    assert len({host, first.strip(), second.strip()}) == 3


# --- foreign tables and rules


async def test_other_tables_stay_the_same_byte_for_byte(services: Services) -> None:
    network_namespace = services.network_namespace
    network_namespace.nft(
        "add table inet filter\n"
        "add chain inet filter input { type filter hook input priority 0; policy accept; }\n"
        'add rule inet filter input tcp dport 22 counter accept comment "ssh"\n'
        "add table ip nat\nadd map ip nat services { type ipv4_addr : verdict; }\n"
        "add chain ip nat service-web\nadd rule ip nat service-web accept\n"
        "add element ip nat services { 198.18.0.1 : goto service-web }\n"
    )
    rules_before = network_namespace.ruleset()
    service = await services.create_service("web", ("10.0.0.1", 80))
    service = await services.update_service(service, ("10.0.0.2", 80))
    network_namespace.nft("flush table ip reconciler")
    service = await services.update_service(await services.find_service("web"))
    assert network_namespace.ruleset("reconciler") == rules_before
    await services.provider.delete(with_version_of(action("Delete", "web", {}), service))
    assert network_namespace.ruleset("reconciler") == rules_before


async def test_foreign_rules_in_our_table_are_kept_and_listed_if_they_form_a_service(
    services: Services,
) -> None:
    await services.create_service("web", ("10.0.0.1", 80))
    services.network_namespace.nft(
        "add chain ip reconciler service-theirs\n"
        "add rule ip reconciler service-theirs meta l4proto tcp dnat to 10.0.0.7:70\n"
        "add element ip reconciler services { 198.18.0.7 . tcp . 70 : goto service-theirs }\n"
        "add chain ip reconciler scratch\n"
        "add rule ip reconciler scratch accept\n"
        "add element ip reconciler services { 198.18.0.8 . tcp . 70 : goto scratch }\n"
        "add element ip reconciler services { 198.18.0.9 . tcp . 70 : drop }\n"
        "add element ip reconciler services { 198.18.0.9 . 132 . 70 : goto scratch }\n"
        'insert rule ip reconciler prerouting counter comment "theirs"\n'
    )
    foreign_service = await services.provider.read("theirs")
    assert foreign_service is not None
    assert [each.name for each in await services.list_services()] == ["theirs", "web"]
    assert foreign_service == await services.find_service("theirs")
    assert foreign_service.labels == {}
    assert foreign_service.fields["backends"] == [{"address": "10.0.0.7", "port": 70}]
    with pytest.raises(ConflictError) as caught:
        await services.create_service("theirs", ("10.0.0.1", 80), address="198.18.0.77")
    assert caught.value.obstacle == foreign_service
    for port, owner in {"198.18.0.7": "service 'theirs'", "198.18.0.8": "chain scratch"}.items():
        with pytest.raises(NotDoneError, match=owner):
            await services.create_service("new", ("10.0.0.1", 80), address=port, port=70)

    table = services.network_namespace.nft("list table ip reconciler")
    web = await services.find_service("web")
    web = await services.update_service(web, ("10.0.0.2", 80))
    assert (
        services.network_namespace.nft("list table ip reconciler")
        .replace("10.0.0.2:80", "10.0.0.1:80")
        .split("chain service-web")[0]
        == table.split("chain service-web")[0]
    )
    services.network_namespace.nft(
        "add element ip reconciler services { 198.18.0.10 . tcp . 1 : goto service-web }"
    )
    with pytest.raises(NotDoneError, match="another program's rule or element refers to it"):
        await services.provider.delete(with_version_of(action("Delete", "web", {}), web))
    assert await services.provider.read("web") == web, "the deletion removes all or nothing"
    adopted = await services.update_service(
        foreign_service, ("10.0.0.3", 80), address="198.18.0.7", port=70
    )
    assert adopted.uid == foreign_service.uid
    assert adopted.labels


async def test_another_clients_table_is_refused(services: Services) -> None:
    services.network_namespace.nft("add table ip reconciler; add chain ip reconciler theirs")
    with pytest.raises(
        ConfigurationError, match="is in use by another program, which created chain theirs"
    ):
        await services.create_service("web", ("10.0.0.1", 80))
    assert await services.list_services() == []
    services.network_namespace.nft(
        "delete chain ip reconciler theirs;"
        "add map ip reconciler services { type ipv4_addr : verdict; }"
    )
    with pytest.raises(ConfigurationError, match="created map services"):
        await services.create_service("web", ("10.0.0.1", 80))


async def test_two_tables_do_not_disturb_each_other(net: Network) -> None:
    services, other_services = Services(net.router, "one"), Services(net.router, "other")
    try:
        own_service = await services.create_service("web", backend_addresses(net)[0])
        foreign_service = await other_services.create_service(
            "web", backend_addresses(net)[1], address="198.18.0.2"
        )
        assert await asyncio.to_thread(count_responses, net, 2) == {"b0": 4}
        assert (await asyncio.to_thread(net.clients[0].connect, "198.18.0.2", 80))[:2] == "b1"
        assert await services.list_services() == [own_service]
        await services.provider.delete(with_version_of(action("Delete", "web", {}), own_service))
        assert await other_services.list_services() == [foreign_service]
        assert (await asyncio.to_thread(net.clients[0].connect, "198.18.0.2", 80))[:2] == "b1"
    finally:
        await services.provider.close()
        await other_services.provider.close()


async def test_an_address_in_use_by_another_table_is_refused_and_named(
    network_namespace: Namespace,
) -> None:
    services, others = Services(network_namespace), Services(network_namespace, "others")
    network_namespace.nft(
        "add table ip theirs; add map ip theirs services { type ipv4_addr : verdict; };"
        "add map ip theirs other { type ipv4_addr . inet_proto . inet_service : verdict; }"
    )
    try:
        labels = {OWNER_LABEL: "log.billing.Service.api"}
        first = replace(action("Create", "api", others.fields()), labels=labels)
        await others.provider.create(first)
        for tenant, owner in (
            ("billing", "service 'api' in table ip others;"),
            ("mallory", "a service in another namespace in table ip others;"),
        ):
            second = action("Create", "web", services.fields())
            second = replace(second, action_id=f"{tenant}/Service/web/1")
            with pytest.raises(NotDoneError, match="already mapped") as raised:
                await services.provider.create(second)
            assert owner in raised.value.message
        assert await services.list_services() == []

        # An update to the address, and a repair after it was taken, are refused too.
        web = await services.create_service("web", ("10.0.0.1", 80), port=81)
        with pytest.raises(NotDoneError, match="already mapped"):
            await services.update_service(web, ("10.0.0.1", 80))
        assert await services.find_service("web") == web
        network_namespace.nft("flush map ip reconciler services")
        await others.create_service("taker", port=81)
        with pytest.raises(NotDoneError, match="already mapped"):
            await services.update_service(await services.find_service("web"), port=81)

        # A service whose address stays, and one with a free address, are written.
        await others.create_service("udp", protocol="udp")
        free = await services.create_service("free", port=82)
        await services.update_service(free, ("10.0.0.1", 80), port=82)
    finally:
        await services.provider.close()
        await others.provider.close()


# --- out-of-band changes


FOREIGN_ELEMENT = "198.18.0.1 . tcp . 81 : goto service-web"
"""Another client's element, which is kept."""

CHANGES: dict[str, str] = {
    "flush table": "flush table ip reconciler",
    "flush chain": "flush chain ip reconciler service-web",
    "flush map": "flush map ip reconciler services",
    "flush all": "flush table ip reconciler; flush map ip reconciler services",
    "flush set": "flush set ip reconciler masqueraded",
    "delete table": "delete table ip reconciler",
    "flush ruleset": "flush ruleset",
    "element deleted": "delete element ip reconciler services { 198.18.0.1 . tcp . 80 }",
    "chain deleted": (
        "delete element ip reconciler services { 198.18.0.1 . tcp . 80 };"
        "delete chain ip reconciler service-web"
    ),
    "rule added": "insert rule ip reconciler service-web counter accept",
    "rule of another kind": "add rule ip reconciler service-web drop",
    "prerouting flushed": "flush chain ip reconciler prerouting",
    "output deleted": "flush chain ip reconciler output; delete chain ip reconciler output",
    "postrouting flushed": "flush chain ip reconciler postrouting",
    "policy": "add chain ip reconciler prerouting { policy drop; }",
    "dormant": "add table ip reconciler { flags dormant; }",
    "element moved": (
        "delete element ip reconciler services { 198.18.0.1 . tcp . 80 };"
        f"add element ip reconciler services {{ {FOREIGN_ELEMENT} }}"
    ),
    "jump": (
        "delete element ip reconciler services { 198.18.0.1 . tcp . 80 };"
        "add element ip reconciler services { 198.18.0.1 . tcp . 80 : jump service-web }"
    ),
    "another's chain": (
        "add chain ip reconciler theirs;"
        "delete element ip reconciler services { 198.18.0.1 . tcp . 80 };"
        "add element ip reconciler services { 198.18.0.1 . tcp . 80 : goto theirs }"
    ),
    "another's verdict": (
        "delete element ip reconciler services { 198.18.0.1 . tcp . 80 };"
        "add element ip reconciler services { 198.18.0.1 . tcp . 80 : drop }"
    ),
}
OCCUPIED_ADDRESSES = {"another's chain", "another's verdict"}
"""Changes that point the service's address to a foreign target, which the provider leaves alone."""


@pytest.mark.parametrize("change", CHANGES)
async def test_every_out_of_band_change_to_a_service_is_a_difference_and_is_repaired(
    services: Services, change: str
) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80), ("10.0.0.2", 80))
    other_service = await services.create_service("other", ("10.0.0.1", 80), address="198.18.0.2")
    table_before = services.network_namespace.nft("list table ip reconciler")
    services.network_namespace.nft(CHANGES[change])
    existing_services = [each for each in await services.list_services() if each.name == "web"]
    fields = services.fields(("10.0.0.1", 80), ("10.0.0.2", 80))
    if change in OCCUPIED_ADDRESSES:
        assert "address" not in existing_services[0].fields
        with pytest.raises(NotDoneError, match="withdraw that"):
            await services.update_service(existing_services[0], ("10.0.0.1", 80), ("10.0.0.2", 80))
        return
    if existing_services:
        (existing,) = existing_services
        assert existing.uid == service.uid, "the service keeps its identity"
        assert (existing.fields, existing.labels) != (fields, service.labels)
        repaired = await services.update_service(existing, ("10.0.0.1", 80), ("10.0.0.2", 80))
    else:
        repaired = await services.create_service("web", ("10.0.0.1", 80), ("10.0.0.2", 80))
        assert repaired.uid != service.uid
    assert repaired.fields == fields
    assert repaired.labels == service.labels
    assert await services.find_service("web") == repaired
    existing = [each for each in await services.list_services() if each.name == "other"]
    if existing:
        await services.update_service(existing[0], ("10.0.0.1", 80), address="198.18.0.2")
    else:
        await services.create_service("other", ("10.0.0.1", 80), address="198.18.0.2")
    assert (await services.find_service("other")).fields == other_service.fields
    table_after = services.network_namespace.nft("list table ip reconciler")
    if change == "element moved":
        table_after = table_after.replace(FOREIGN_ELEMENT, "")
    assert sorted_parts(table_after) == sorted_parts(table_before)


def sorted_parts(table: str) -> list[str]:
    """Return the sorted parts of a table, without uids and keys."""
    lines = table.replace("{", "\n").replace("}", "\n").replace(",", "\n").splitlines()
    parts = (each.partition("comment")[0].strip() for each in lines)
    return sorted(each for each in parts if each)


async def test_a_shared_chain_with_another_hook_is_kept_and_named(services: Services) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80))
    services.network_namespace.nft(
        "flush chain ip reconciler output; delete chain ip reconciler output;"
        "add chain ip reconciler output { type filter hook output priority 0; policy accept; }"
    )
    assert "address" not in (await services.find_service("web")).fields
    with pytest.raises(NotDoneError, match=r"chain output of table ip reconciler .* delete it"):
        await services.update_service(service, ("10.0.0.1", 80))


# --- comments


async def test_labels_with_any_characters_are_kept_up_to_a_total_size(
    services: Services,
) -> None:
    labels = {"a": "", "quote": '"\\ }\n', "naïve/ключ": "värde %41 + & =", "long": "x" * 1500}
    fields = services.fields(("10.0.0.1", 80))
    create = replace(action("Create", "web", fields), labels=labels)
    service = (await services.provider.create(create)).object
    assert service is not None
    assert service.labels == labels
    assert service == await services.find_service("web")
    assert service.written_by == create.idempotency_key
    ruleset = services.network_namespace.nft("list table ip reconciler")
    services.network_namespace.nft(f"delete table ip reconciler\n{ruleset}")
    restored = await services.find_service("web")
    assert (restored.uid, restored.labels) == (service.uid, service.labels), (
        "nft accepts its own output"
    )

    update = with_version_of(action("Update", "web", fields), restored)
    with pytest.raises(RefusedError, match=r"metadata.labels: their 7,\d+ bytes"):
        await services.provider.update(replace(update, labels={"long": "x" * 7000}))
    assert await services.find_service("web") == restored


def test_a_comment_of_the_maximum_length_fits(network_namespace: Namespace) -> None:
    """nft sets the limit, and refuses one byte more instead of truncating the comment."""
    network_namespace.nft("add table ip t; add chain ip t c")
    network_namespace.nft(f'add rule ip t c continue comment "{"x" * MAX_COMMENT_BYTES}"')
    with pytest.raises(Exception, match="status 1"):
        network_namespace.nft(f'add rule ip t c continue comment "{"x" * (MAX_COMMENT_BYTES + 1)}"')


async def test_a_damaged_mark_loses_the_labels_but_not_the_identity(
    services: Services,
) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80))
    chain = services.network_namespace.nft("list chain ip reconciler service-web", "-a")
    handle = chain.rpartition("# handle ")[2].split()[0]
    services.network_namespace.nft(f"delete rule ip reconciler service-web handle {handle}")
    damaged = await services.find_service("web")
    assert (damaged.uid, damaged.labels, damaged.written_by) == (service.uid, {}, None)
    assert damaged == await services.provider.read("web")
    assert (await services.update_service(damaged, ("10.0.0.1", 80))).labels == service.labels


# --- one transaction


async def test_a_write_killed_at_any_time_has_full_effect_or_none(services: Services) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80))
    specs: list[dict[str, Any]] = [{"port": 80}, {"port": 81, "masquerade": False}]
    outcomes: Counter[str] = Counter()
    for number in range(40):
        spec = specs[number % 2]
        expected = services.fields(("10.0.0.1", 80), ("10.0.0.2", 80), **spec)
        killer = WriteKiller(after_seconds=number * 0.0003 if number < 38 else 3.0)
        token = CALL_GATE.set(killer)
        try:
            await services.provider.update(
                with_version_of(action("Update", "web", expected), service)
            )
            outcomes["done"] += 1
        except UnknownResultError as error:
            outcomes[error.message] += 1
        finally:
            CALL_GATE.reset(token)
            await killer.wait_until_finished()
        current = await services.find_service("web")
        assert current.fields in (expected, service.fields), "never part of the change"
        service = current
    kill_error = "nft was killed by signal 9"
    assert (
        {"done", kill_error}
        <= outcomes.keys()
        <= {"done", kill_error, f"the service was written, but it could not be read: {kill_error}"}
    )


class WriteKiller(ClosedGate):
    """Kills the process of a write after a delay."""

    def __init__(self, *, after_seconds: float) -> None:
        self.after_seconds = after_seconds
        self._task: asyncio.Task[None] | None = None

    async def wait(self, *, has_priority: bool = False) -> None:
        if has_priority:  # a write that relies on a read
            self._task = asyncio.create_task(self._kill(list_child_pids()))

    async def _kill(self, pids_before: set[int]) -> None:
        started_pids = set[int]()
        for _ in range(100_000):
            if started_pids := list_child_pids() - pids_before:
                break
            await asyncio.sleep(0)
        await asyncio.sleep(self.after_seconds)
        for pid in started_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def wait_until_finished(self) -> None:
        if self._task is not None:
            await self._task


def list_child_pids() -> set[int]:
    """Return the pids of this process's running children."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


async def test_a_change_between_the_read_and_the_write_is_not_overwritten(
    services: Services,
) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80))
    changes: dict[str, tuple[str, type[ProviderError]]] = {
        "rules": ("flush chain ip reconciler service-web", ConflictError),
        "element": (CHANGES["element deleted"], ConflictError),
        "chain": (CHANGES["chain deleted"], NotFoundError),
        "table": (CHANGES["delete table"], NotFoundError),
    }
    for change, (script, expected) in changes.items():
        update = with_version_of(action("Update", "web", services.fields(port=81)), service)
        token = CALL_GATE.set(
            RunBeforeWrite(lambda script=script: services.network_namespace.nft(script))
        )
        try:
            with pytest.raises(expected):
                await services.provider.update(update)
        finally:
            CALL_GATE.reset(token)
        existing_services = await services.list_services()
        ruleset = services.network_namespace.nft("list ruleset")  # its random ids may contain 81
        assert re.search(r"\b81\b", ruleset) is None, change
        if existing_services:
            service = await services.update_service(existing_services[0], ("10.0.0.1", 80))
        else:
            service = await services.create_service("web", ("10.0.0.1", 80))


class RunBeforeWrite(ClosedGate):
    """Runs a function once, after all reads and before the write."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function: Callable[[], object] | None = function

    async def wait(self, *, has_priority: bool = False) -> None:
        if has_priority and self._function is not None:
            function, self._function = self._function, None
            function()


async def test_two_uncoordinated_clients_create_many_services_concurrently(
    services: Services,
) -> None:
    other_services = Services(services.network_namespace)

    async def create_until_done(number: int) -> None:
        client, name = (services, other_services)[number % 2], f"web-{number}"
        create = action("Create", name, client.fields(("10.0.0.1", 80), port=1 + number))
        while True:
            try:
                await client.provider.create(create)
            except NotDoneError:  # both clients created the table, or the kernel was busy
                continue
            return

    try:
        await asyncio.gather(*map(create_until_done, range(20)))
    finally:
        await other_services.provider.close()
    existing_services = await services.list_services()
    assert len(existing_services) == 20
    assert all("address" in each.fields for each in existing_services)
    assert services.network_namespace.nft("list chain ip reconciler prerouting").count("vmap") == 1


# --- cost


class CallCounter(ClosedGate):
    """Counts calls to the API."""

    def __init__(self) -> None:
        self.call_count = 0

    async def wait(self, *, has_priority: bool = False) -> None:
        self.call_count += 1


async def test_an_update_of_one_of_5_000_services_does_not_read_the_others(
    services: Services,
) -> None:
    service = await services.create_service("web-0", ("10.0.0.1", 80))
    commands: list[dict[str, object]] = []
    for number in range(1, 5_000):
        address = f"198.18.{1 + number // 250}.{number % 250}"
        fields = services.fields(("10.0.0.1", 80), ("10.0.0.2", 80), address=address)
        create = action("Create", f"web-{number}", fields)
        commands += rules.build_write_commands("reconciler", create, f"uid-{number}", None)
    await services.provider.nft.apply(commands)
    table_before = services.network_namespace.nft("list table ip reconciler", "-a")

    counter = CallCounter()
    token = CALL_GATE.set(counter)
    await services.update_service(service, ("10.0.0.1", 80), ("10.0.0.3", 80))
    CALL_GATE.reset(token)
    assert counter.call_count <= 5, "chain and elements, one transaction, chain and elements"
    table_after = services.network_namespace.nft("list table ip reconciler", "-a")
    changed_lines = set(table_before.splitlines()) ^ set(table_after.splitlines())
    assert 5 <= len(changed_lines) <= 8, (
        "only its own rules change; all other handles stay the same"
    )
    assert len(await services.list_services()) == 5_000


# --- events


async def test_the_monitor_reports_only_changes_to_our_table(services: Services) -> None:
    await services.create_service("web", ("10.0.0.1", 80))
    provider = provider_at(services.network_namespace.endpoint(), timeout_seconds=1)
    pids_before = list_child_pids()
    try:
        mark = await provider.changes(None)
        assert await provider.changes(mark) == mark, "nothing has changed"
        for change in ("flush map", "rule added", "flush table", "policy", "delete table"):
            services.network_namespace.nft("add table ip other; delete table ip other")
            services.network_namespace.nft(CHANGES[change])
            newer = await provider.changes(mark)
            assert newer != mark, change
            mark = newer
            while (newer := await provider.changes(mark)) != mark:
                mark = newer  # the remaining reports
        services.network_namespace.nft("add table ip reconciler2; delete table ip reconciler2")
        assert await provider.changes(mark) == mark, "a change to another table is not reported"

        (process,) = list_child_pids() - pids_before
        os.kill(process, signal.SIGKILL)
        with pytest.raises(NotDoneError, match="nft monitor exited"):
            await read_changes(provider, mark)
        assert await provider.changes(mark) != mark, "changes may have been missed"
    finally:
        await provider.close()
    assert list_child_pids() <= pids_before, "no process is left"


async def read_changes(provider: ServicesProvider, mark: str) -> None:
    """Read changes three times, and expect none."""
    for _ in range(3):
        assert await provider.changes(mark) == mark


# --- refusals


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "nft:",
        "nft:a b",
        "nft:1a",
        "nft:a;flush ruleset",
        "nft:a\n",
        "netns:/a",
        "netns:../../proc/1/ns/net/a",
        "netns:a/b/c",
        "netns:-a/b",
        "http://127.0.0.1",
    ],
)
def test_an_endpoint_that_names_no_table_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"spec\.endpoint: must be nft:TABLE"):
        parse_endpoint(endpoint)


def test_endpoints_name_a_table_and_a_namespace() -> None:
    assert parse_endpoint("nft:reconciler") == ("reconciler", None)
    assert parse_endpoint("netns:blue-1.a/t_2-x") == ("t_2-x", "blue-1.a")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"address": "198.18.0.256"}, "is not an IPv4 address"),
        ({"address": "::1"}, "is not an IPv4 address"),
        ({"address": "198.18.0.1 }; flush ruleset"}, "is not an IPv4 address"),
        ({"address": "0.0.0.0"}, "not the address of a single machine"),
        ({"address": "224.0.0.1"}, "not the address of a single machine"),
        ({"port": 0}, "spec.port: must be at least 1"),
        ({"port": 65536}, "spec.port: must be at most 65535"),
        ({"protocol": "sctp"}, "sctp"),
        ({"balance": "random"}, "random"),
        ({"backends": [{"address": "10.0.0.1"}]}, "port"),
        ({"backends": [{"address": "host", "port": 1}]}, "is not an IPv4 address"),
        ({"backends": [{"address": "10.0.0.1", "port": n + 1} for n in range(129)]}, "128"),
        ({"backend": []}, "backends"),
    ],
)
def test_an_invalid_spec_is_refused_with_field_and_reason(spec: Fields, reason: str) -> None:
    with pytest.raises(InvalidManifestError, match="spec") as caught:
        SERVICE.check_fields({"address": VIRTUAL_ADDRESS, "port": 80, **spec})
    assert reason in str(caught.value)


def test_a_backend_may_reference_the_outputs_of_a_container() -> None:
    address = {"$ref": "Container/orders-1", "field": "outputs.address"}
    declared = {
        "address": VIRTUAL_ADDRESS,
        "port": 80,
        "backends": [{"address": address, "port": 8080}],
    }
    assert SERVICE.check_declared(declared) == declared
    (references,) = SERVICE.references(declared, "default")
    assert "Container/orders-1" in str(references)


async def test_backends_are_a_set(services: Services) -> None:
    service = await services.create_service(
        "web", ("10.0.0.10", 80), ("10.0.0.9", 81), ("10.0.0.10", 80)
    )
    addresses = [each["address"] for each in service.fields["backends"]]
    assert addresses == ["10.0.0.9", "10.0.0.10"]


async def test_objects_do_not_count_as_deleted_without_their_network_namespace() -> None:
    provider = provider_at("netns:rec-never/reconciler")
    for call in (
        provider.read("web"),
        listing(provider, Scope()),
        provider.create(
            action("Create", "web", {"address": VIRTUAL_ADDRESS, "protocol": "tcp", "port": 1})
        ),
    ):
        with pytest.raises(NotDoneError, match="network namespace 'rec-never' does not exist"):
            await call
    await provider.close()


async def test_an_unprivileged_client_gets_an_error_that_names_the_capability(
    services: Services,
) -> None:
    unprivileged = provider_at("nft:reconciler")
    unprivileged.nft.program = (
        "setpriv",
        "--reuid=65534",
        "--clear-groups",
        *unprivileged.nft.program,
    )
    with pytest.raises(ConfigurationError, match="as root, or with CAP_NET_ADMIN"):
        await listing(unprivileged, Scope())


def test_without_nft_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nft_module, "SEARCH_PATH", "/nowhere")
    with pytest.raises(
        ConfigurationError, match=r"the nft program is not installed; install the nftables package"
    ):
        provider_at("nft:reconciler")


async def test_a_table_named_like_a_reserved_word_is_refused(network_namespace: Namespace) -> None:
    services = Services(network_namespace, "flush")
    with pytest.raises(ConfigurationError, match="flush is a reserved word in nft"):
        await services.create_service("web")
    assert network_namespace.nft("list ruleset") == ""


async def test_nft_that_does_not_exit_is_killed_and_the_result_is_unknown(
    services: Services,
) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80))
    slow_provider = provider_at(services.network_namespace.endpoint(), timeout_seconds=0.3)
    program = slow_provider.nft.program
    slow_provider.nft.program = ("sh", "-c", "sleep 60", *program)
    with pytest.raises(NotDoneError, match="did not exit within"):
        await slow_provider.read("web")
    slow_provider.nft.program = program

    class SlowWrite(ClosedGate):
        async def wait(self, *, has_priority: bool = False) -> None:
            if has_priority:
                slow_provider.nft.program = ("sh", "-c", "sleep 60", *program)

    children_before = list_child_pids()
    token = CALL_GATE.set(SlowWrite())
    with pytest.raises(UnknownResultError, match="did not exit within"):
        await slow_provider.update(
            with_version_of(action("Update", "web", services.fields()), service)
        )
    CALL_GATE.reset(token)
    assert list_child_pids() == children_before
    await slow_provider.close()


@pytest.mark.parametrize(
    ("script", "error_text"),
    [
        ("yes", "it is longer than 32 MiB"),
        ("yes >&2", "it is longer than 32 MiB"),
        ("yes | head -c 33000000 | tr '\\ny' '[,'", "exceeds the limit of 128 MiB of memory"),
    ],
)
async def test_nft_output_that_is_too_large_is_an_error_that_names_the_limit(
    services: Services, script: str, error_text: str
) -> None:
    """Another program may have filled the table."""
    provider = provider_at(services.network_namespace.endpoint(), timeout_seconds=30)
    provider.nft.program = ("sh", "-c", script)
    children_before = list_child_pids()
    with measure_memory() as memory, pytest.raises(NotDoneError, match=error_text):
        await provider.read("web")
    assert memory.peak_bytes < 5 * nft_module.MAX_OUTPUT_BYTES
    assert list_child_pids() == children_before
    await provider.close()


async def test_an_action_with_an_invalid_name_is_refused(services: Services) -> None:
    for name in ("-web", "web }", 'a"b', "x" * 101, "a\n"):
        with pytest.raises(RefusedError, match="invalid name"):
            await services.provider.read(name)
        invalid_create: Action = action("Create", name, services.fields())
        with pytest.raises(RefusedError, match="invalid name"):
            await services.provider.create(invalid_create)


async def test_a_conflict_does_not_name_another_namespaces_service(services: Services) -> None:
    labels = {OWNER_LABEL: "log.billing.Service.svc"}
    first = replace(action("Create", "billing-svc", services.fields()), labels=labels)
    await services.provider.create(first)
    for tenant, is_named in (("billing", True), ("mallory", False)):
        second = action("Create", "again", services.fields())
        second = replace(second, action_id=f"{tenant}/Service/again/1")
        with pytest.raises(NotDoneError, match="already mapped") as raised:
            await services.provider.create(second)
        assert ("billing-svc" in raised.value.message) is is_named
