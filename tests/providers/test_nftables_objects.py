"""What only the kind `Service` does: connections in namespaces, spoilt rules, and what it costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
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
    Host,
    Namespace,
    Network,
    is_refused_within,
    namespace,
    network,
)

pytestmark = pytest.mark.nftables

VIRTUAL = "198.18.0.1"
AT_ONCE_SECONDS = 0.5
"""A SYN without a response is sent again after a second."""


class Services:
    """A provider, and what a test does with it."""

    def __init__(self, place: Namespace, table: str = "reconciler") -> None:
        self.place, self.table = place, table
        self.provider = provider_at(place.endpoint(table))

    def fields(self, *backends: tuple[str, int], **spec: Any) -> Fields:
        answering = [{"address": address, "port": port} for address, port in backends]
        return SERVICE.check_fields({"address": VIRTUAL, "port": 80, "backends": answering, **spec})

    async def create_service(
        self, name: str, *backends: tuple[str, int], **spec: Any
    ) -> ExternalObject:
        create = action("Create", name, self.fields(*backends, **spec))
        effect = await self.provider.create(create)
        assert effect.object is not None
        return effect.object

    async def updated(
        self, thing: ExternalObject, *backends: tuple[str, int], **spec: Any
    ) -> ExternalObject:
        update = with_version_of(
            action("Update", thing.name, self.fields(*backends, **spec)), thing
        )
        effect = await self.provider.update(update)
        assert effect.object is not None
        return effect.object

    async def listed(self) -> list[ExternalObject]:
        return await listing(self.provider, Scope())

    async def listed_service(self, name: str) -> ExternalObject:
        """What a listing shows of a service."""
        (existing,) = [each for each in await self.listed() if each.name == name]
        return existing


def provider_at(endpoint: str, timeout_seconds: float = 10) -> ServicesProvider:
    limits = Limits(request_timeout_seconds=timeout_seconds)
    config = ProviderConfigSpec(provider="nftables", endpoint=endpoint, limits=limits)
    return ServicesProvider(config, Secrets(), CallPermit())


@pytest.fixture
def place() -> Iterator[Namespace]:
    with namespace() as one:
        yield one


@pytest.fixture
async def services(place: Namespace) -> AsyncIterator[Services]:
    one = Services(place)
    yield one
    await one.provider.close()


@pytest.fixture
def net() -> Iterator[Network]:
    with network(clients=2, backends=2) as one:
        yield one


@pytest.fixture
async def routed(net: Network) -> AsyncIterator[Services]:
    one = Services(net.router)
    yield one
    await one.provider.close()


def at(net: Network) -> list[tuple[str, int]]:
    return [(each.host.address, each.port) for each in net.backends]


def callers(net: Network, times: int) -> Counter[str]:
    """Have each client call so many times; return how often each backend answered."""
    answers = [each.connect(VIRTUAL, 80).split()[0] for each in net.clients for _ in range(times)]
    return Counter(answers)


# --- connections


async def test_two_clients_reach_two_backends_through_a_virtual_address_evenly(
    routed: Services, net: Network
) -> None:
    service = await routed.create_service("web", *at(net), balance="RoundRobin")
    assert await asyncio.to_thread(callers, net, 10) == {"b0": 10, "b1": 10}, "each in turn"

    service = await routed.updated(service, *at(net), balance="Random")
    counted = await asyncio.to_thread(callers, net, 100)
    assert counted.total() == 200
    # Of 200 tosses of a coin, fewer than 50 are heads once in 10^12 times.
    assert min(counted["b0"], counted["b1"]) >= 50

    await routed.updated(service, *at(net), balance="SourceAddress")
    for each in net.clients:
        answers = {await asyncio.to_thread(each.connect, VIRTUAL, 80) for _ in range(10)}
        assert len(answers) == 1, "a client is always answered by the same one"


async def test_three_backends_are_reached_in_turn_and_the_machine_itself_is_a_client(
    routed: Services, net: Network
) -> None:
    first, second = at(net)
    await routed.create_service("web", first, second, (first[0], first[1]), balance="RoundRobin")
    router = Host("router", net.router, "10.77.1.1")
    answers = [await asyncio.to_thread(router.connect, VIRTUAL, 80) for _ in range(10)]
    assert Counter(each.split()[0] for each in answers) == {"b0": 5, "b1": 5}
    net.backends.append(Backend(net.backends[0].host, 9090))
    service = await routed.provider.read("web")
    assert service is not None
    third = (net.backends[0].host.address, 9090)
    await routed.updated(service, first, second, third, balance="RoundRobin")
    counted = await asyncio.to_thread(callers, net, 15)
    assert counted == {"b0": 20, "b1": 10}, "two of the three are on b0"


async def test_backends_see_this_machine_or_the_client_as_declared(
    routed: Services, net: Network
) -> None:
    client = net.clients[0]
    service = await routed.create_service("web", at(net)[0])
    source_address = (await asyncio.to_thread(client.connect, VIRTUAL, 80)).split()[1]
    assert source_address == net.backends[0].host.address.removesuffix("2") + "1", (
        "the router's own address"
    )
    service = await routed.updated(service, at(net)[0], masquerade=False)
    assert service.fields["masquerade"] is False
    assert (await asyncio.to_thread(client.connect, VIRTUAL, 80)).split()[1] == client.address


async def test_without_backends_connections_are_refused_at_once(
    routed: Services, net: Network
) -> None:
    client = net.clients[0]
    service = await routed.create_service("web")
    assert SERVICE.ready(service.fields, service).reason == "NoBackends"
    for each in (*net.clients, Host("router", net.router, "10.77.1.1")):
        call = partial(each.connect, VIRTUAL, 80)
        assert await asyncio.to_thread(is_refused_within, AT_ONCE_SECONDS, call), each.name
    service = await routed.updated(service, *at(net))
    assert SERVICE.ready(service.fields, service).is_ready
    await asyncio.to_thread(client.connect, VIRTUAL, 80)

    service = await routed.updated(service, at(net)[1])
    assert await asyncio.to_thread(callers, net, 10) == {"b1": 20}, "what is taken out is out"
    await routed.provider.delete(with_version_of(action("Delete", "web", {}), service))
    assert routed.place.nft("list map ip reconciler services").count("elements") == 0


async def test_datagrams_are_sent_on_and_refused(routed: Services, net: Network) -> None:
    host, client = net.backends[0].host, net.clients[0]
    echo = Echo(host, 5353)
    try:
        dns = {"port": 53, "protocol": "udp"}
        service = await routed.create_service("dns", (host.address, 5353), **dns)
        assert await asyncio.to_thread(client.send_datagram, VIRTUAL, 53) == "b0"
        await routed.updated(service, **dns)
        call = partial(client.send_datagram, VIRTUAL, 53)
        assert await asyncio.to_thread(is_refused_within, AT_ONCE_SECONDS, call)
    finally:
        echo.close()


# --- what is others'


async def test_other_tables_are_the_same_byte_for_byte(services: Services) -> None:
    place = services.place
    place.nft(
        "add table inet filter\n"
        "add chain inet filter input { type filter hook input priority 0; policy accept; }\n"
        'add rule inet filter input tcp dport 22 counter accept comment "ssh"\n'
        "add table ip nat\nadd map ip nat services { type ipv4_addr : verdict; }\n"
        "add chain ip nat service-web\nadd rule ip nat service-web accept\n"
        "add element ip nat services { 198.18.0.1 : goto service-web }\n"
    )
    rules_before = place.ruleset()
    service = await services.create_service("web", ("10.0.0.1", 80))
    service = await services.updated(service, ("10.0.0.2", 80))
    place.nft("flush table ip reconciler")
    service = await services.updated(await services.listed_service("web"))
    assert place.ruleset("reconciler") == rules_before
    await services.provider.delete(with_version_of(action("Delete", "web", {}), service))
    assert place.ruleset("reconciler") == rules_before


async def test_what_others_put_into_our_table_is_shown_if_it_is_like_a_service_and_stays(
    services: Services,
) -> None:
    await services.create_service("web", ("10.0.0.1", 80))
    services.place.nft(
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
    assert [each.name for each in await services.listed()] == ["theirs", "web"]
    assert foreign_service == await services.listed_service("theirs")
    assert foreign_service.labels == {}
    assert foreign_service.fields["backends"] == [{"address": "10.0.0.7", "port": 70}]
    with pytest.raises(ConflictError) as caught:
        await services.create_service("theirs", ("10.0.0.1", 80), address="198.18.0.77")
    assert caught.value.obstacle == foreign_service
    for port, owner in {"198.18.0.7": "service 'theirs'", "198.18.0.8": "chain scratch"}.items():
        with pytest.raises(NotDoneError, match=owner):
            await services.create_service("new", ("10.0.0.1", 80), address=port, port=70)

    table = services.place.nft("list table ip reconciler")
    web = await services.listed_service("web")
    web = await services.updated(web, ("10.0.0.2", 80))
    assert (
        services.place.nft("list table ip reconciler")
        .replace("10.0.0.2:80", "10.0.0.1:80")
        .split("chain service-web")[0]
        == table.split("chain service-web")[0]
    )
    services.place.nft(
        "add element ip reconciler services { 198.18.0.10 . tcp . 1 : goto service-web }"
    )
    with pytest.raises(NotDoneError, match="another program refers to it"):
        await services.provider.delete(with_version_of(action("Delete", "web", {}), web))
    assert await services.provider.read("web") == web, "all or nothing"
    adopted = await services.updated(
        foreign_service, ("10.0.0.3", 80), address="198.18.0.7", port=70
    )
    assert adopted.uid == foreign_service.uid
    assert adopted.labels


async def test_a_table_of_another_client_is_refused(services: Services) -> None:
    services.place.nft("add table ip reconciler; add chain ip reconciler theirs")
    with pytest.raises(
        ConfigurationError, match="is in use by another program, which created chain theirs"
    ):
        await services.create_service("web", ("10.0.0.1", 80))
    assert await services.listed() == []
    services.place.nft(
        "delete chain ip reconciler theirs;"
        "add map ip reconciler services { type ipv4_addr : verdict; }"
    )
    with pytest.raises(ConfigurationError, match="created map services"):
        await services.create_service("web", ("10.0.0.1", 80))


async def test_two_tables_do_not_disturb_each_other(net: Network) -> None:
    one, other_services = Services(net.router, "one"), Services(net.router, "other")
    try:
        mine = await one.create_service("web", at(net)[0])
        foreign_service = await other_services.create_service(
            "web", at(net)[1], address="198.18.0.2"
        )
        assert await asyncio.to_thread(callers, net, 2) == {"b0": 4}
        assert (await asyncio.to_thread(net.clients[0].connect, "198.18.0.2", 80))[:2] == "b1"
        assert await one.listed() == [mine]
        await one.provider.delete(with_version_of(action("Delete", "web", {}), mine))
        assert await other_services.listed() == [foreign_service]
        assert (await asyncio.to_thread(net.clients[0].connect, "198.18.0.2", 80))[:2] == "b1"
    finally:
        await one.provider.close()
        await other_services.provider.close()


# --- what hands do


LED_BY_HAND = "198.18.0.1 . tcp . 81 : goto service-web"
"""Another client's element stays."""

HARMS: dict[str, str] = {
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
        f"add element ip reconciler services {{ {LED_BY_HAND} }}"
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
TAKEN = {"another's chain", "another's verdict"}
"""An element that another client points elsewhere stays unmanaged."""


@pytest.mark.parametrize("harm", HARMS)
async def test_every_out_of_band_change_of_a_service_is_a_difference_and_is_repaired(
    services: Services, harm: str
) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80), ("10.0.0.2", 80))
    other_service = await services.create_service("other", ("10.0.0.1", 80), address="198.18.0.2")
    whole = services.place.nft("list table ip reconciler")
    services.place.nft(HARMS[harm])
    existing_services = [each for each in await services.listed() if each.name == "web"]
    fields = services.fields(("10.0.0.1", 80), ("10.0.0.2", 80))
    if harm in TAKEN:
        assert "address" not in existing_services[0].fields
        with pytest.raises(NotDoneError, match="withdraw that"):
            await services.updated(existing_services[0], ("10.0.0.1", 80), ("10.0.0.2", 80))
        return
    if existing_services:
        (seen,) = existing_services
        assert seen.uid == service.uid, "it is the same one"
        assert (seen.fields, seen.labels) != (fields, service.labels)
        mended = await services.updated(seen, ("10.0.0.1", 80), ("10.0.0.2", 80))
    else:
        mended = await services.create_service("web", ("10.0.0.1", 80), ("10.0.0.2", 80))
        assert mended.uid != service.uid
    assert mended.fields == fields
    assert mended.labels == service.labels
    assert await services.listed_service("web") == mended
    seen = [each for each in await services.listed() if each.name == "other"]
    if seen:
        await services.updated(seen[0], ("10.0.0.1", 80), address="198.18.0.2")
    else:
        await services.create_service("other", ("10.0.0.1", 80), address="198.18.0.2")
    assert (await services.listed_service("other")).fields == other_service.fields
    again = services.place.nft("list table ip reconciler")
    if harm == "element moved":
        again = again.replace(LED_BY_HAND, "")
    assert shape_of(again) == shape_of(whole), "everything is as it was"


def shape_of(table: str) -> list[str]:
    """A table without uids and keys, whatever the order of its parts."""
    lines = table.replace("{", "\n").replace("}", "\n").replace(",", "\n").splitlines()
    parts = (each.partition("comment")[0].strip() for each in lines)
    return sorted(each for each in parts if each)


async def test_a_shared_chain_of_another_hook_is_left_and_named(services: Services) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80))
    services.place.nft(
        "flush chain ip reconciler output; delete chain ip reconciler output;"
        "add chain ip reconciler output { type filter hook output priority 0; policy accept; }"
    )
    assert "address" not in (await services.listed_service("web")).fields
    with pytest.raises(NotDoneError, match=r"chain output of table ip reconciler .* delete it"):
        await services.updated(service, ("10.0.0.1", 80))


# --- comments


async def test_labels_of_any_length_and_characters_are_kept_up_to_a_limit(
    services: Services,
) -> None:
    labels = {"a": "", "quote": '"\\ }\n', "naïve/ключ": "värde %41 + & =", "long": "x" * 1500}
    fields = services.fields(("10.0.0.1", 80))
    create = replace(action("Create", "web", fields), labels=labels)
    service = (await services.provider.create(create)).object
    assert service is not None
    assert service.labels == labels
    assert service == await services.listed_service("web")
    assert service.written_by == create.idempotency_key
    text = services.place.nft("list table ip reconciler")
    services.place.nft(f"delete table ip reconciler\n{text}")
    again = await services.listed_service("web")
    assert (again.uid, again.labels) == (service.uid, service.labels), "nft reads what nft prints"

    update = with_version_of(action("Update", "web", fields), again)
    with pytest.raises(RefusedError, match=r"metadata.labels: their 7,\d+ bytes"):
        await services.provider.update(replace(update, labels={"long": "x" * 7000}))
    assert await services.listed_service("web") == again


def test_a_comment_has_room_for_what_is_written(place: Namespace) -> None:
    """The limit is nft's own: one byte more is refused, and not cut off."""
    place.nft("add table ip t; add chain ip t c")
    place.nft(f'add rule ip t c continue comment "{"x" * MAX_COMMENT_BYTES}"')
    with pytest.raises(Exception, match="status 1"):
        place.nft(f'add rule ip t c continue comment "{"x" * (MAX_COMMENT_BYTES + 1)}"')


async def test_a_mark_that_is_spoilt_costs_the_labels_and_not_the_identity(
    services: Services,
) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80))
    text = services.place.nft("list chain ip reconciler service-web", "-a")
    handle = text.rpartition("# handle ")[2].split()[0]
    services.place.nft(f"delete rule ip reconciler service-web handle {handle}")
    spoilt = await services.listed_service("web")
    assert (spoilt.uid, spoilt.labels, spoilt.written_by) == (service.uid, {}, None)
    assert spoilt == await services.provider.read("web")
    assert (await services.updated(spoilt, ("10.0.0.1", 80))).labels == service.labels


# --- one transaction


async def test_a_write_that_is_killed_at_any_moment_is_done_or_not(services: Services) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80))
    ways: list[dict[str, Any]] = [{"port": 80}, {"port": 81, "masquerade": False}]
    ends: Counter[str] = Counter()
    for number in range(40):
        spec = ways[number % 2]
        expected = services.fields(("10.0.0.1", 80), ("10.0.0.2", 80), **spec)
        killer = Killer(after_seconds=number * 0.0003 if number < 38 else 3.0)
        token = CALL_GATE.set(killer)
        try:
            await services.provider.update(
                with_version_of(action("Update", "web", expected), service)
            )
            ends["done"] += 1
        except UnknownResultError as error:
            ends[error.message] += 1
        finally:
            CALL_GATE.reset(token)
            await killer.ended()
        now = await services.listed_service("web")
        assert now.fields in (expected, service.fields), "one or the other, and never a half"
        service = now
    killed = "nft was killed by signal 9"
    assert (
        {"done", killed}
        <= ends.keys()
        <= {"done", killed, f"the service was written, but reading it failed: {killed}"}
    )


class Killer:
    """Kills the process of a write some time after it may begin."""

    may_send_now = False
    interval_seconds = 0.0

    def __init__(self, *, after_seconds: float) -> None:
        self.after_seconds = after_seconds
        self._task: asyncio.Task[None] | None = None

    async def wait(self, *, has_priority: bool = False) -> None:
        if has_priority:  # it relies on what was read
            self._task = asyncio.create_task(self._kill(children()))

    async def _kill(self, others: set[int]) -> None:
        started_pids = set[int]()
        for _ in range(100_000):
            if started_pids := children() - others:
                break
            await asyncio.sleep(0)
        await asyncio.sleep(self.after_seconds)
        for each in started_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    async def ended(self) -> None:
        if self._task is not None:
            await self._task


def children() -> set[int]:
    """The processes that this one has started, and that have not ended."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(each) for task in tasks for each in task.read_text().split()}


async def test_a_change_between_the_read_and_the_write_is_not_overwritten(
    services: Services,
) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80))
    harms: dict[str, tuple[str, type[ProviderError]]] = {
        "rules": ("flush chain ip reconciler service-web", ConflictError),
        "element": (HARMS["element deleted"], ConflictError),
        "chain": (HARMS["chain deleted"], NotFoundError),
        "table": (HARMS["delete table"], NotFoundError),
    }
    for harm, (script, expected) in harms.items():
        update = with_version_of(action("Update", "web", services.fields(port=81)), service)
        token = CALL_GATE.set(BeforeTheWrite(lambda script=script: services.place.nft(script)))
        try:
            with pytest.raises(expected):
                await services.provider.update(update)
        finally:
            CALL_GATE.reset(token)
        there = await services.listed()
        ruleset = services.place.nft("list ruleset")  # random ids in it may contain 81, too
        assert re.search(r"\b81\b", ruleset) is None, harm
        if there:
            service = await services.updated(there[0], ("10.0.0.1", 80))
        else:
            service = await services.create_service("web", ("10.0.0.1", 80))


class BeforeTheWrite:
    """Does something once, when all is read and nothing is written."""

    may_send_now = False
    interval_seconds = 0.0

    def __init__(self, do: Callable[[], object]) -> None:
        self._do: Callable[[], object] | None = do

    async def wait(self, *, has_priority: bool = False) -> None:
        if has_priority and self._do is not None:
            do, self._do = self._do, None
            do()


async def test_many_are_made_at_once_by_two_who_do_not_know_of_each_other(
    services: Services,
) -> None:
    others = Services(services.place)

    async def make(number: int) -> None:
        by, name = (services, others)[number % 2], f"web-{number}"
        create = action("Create", name, by.fields(("10.0.0.1", 80), port=1 + number))
        while True:
            try:
                await by.provider.create(create)
            except NotDoneError:  # both made the table, or the kernel was busy: as it says
                continue
            return

    try:
        await asyncio.gather(*map(make, range(40)))
    finally:
        await others.provider.close()
    listed = await services.listed()
    assert len(listed) == 40
    assert all("address" in each.fields for each in listed)
    assert services.place.nft("list chain ip reconciler prerouting").count("vmap") == 1


# --- what it costs


class Counting:
    """Counts what is asked of the API."""

    may_send_now = False
    interval_seconds = 0.0

    def __init__(self) -> None:
        self.call_count = 0

    async def wait(self, *, has_priority: bool = False) -> None:
        self.call_count += 1


async def test_one_of_five_thousand_is_updated_without_looking_at_the_others(
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
    before = services.place.nft("list table ip reconciler", "-a")

    counting = Counting()
    token = CALL_GATE.set(counting)
    await services.updated(service, ("10.0.0.1", 80), ("10.0.0.3", 80))
    CALL_GATE.reset(token)
    assert counting.call_count <= 5, "chain and elements, one transaction, chain and elements"
    after = services.place.nft("list table ip reconciler", "-a")
    changed = set(before.splitlines()) ^ set(after.splitlines())
    assert 5 <= len(changed) <= 8, "its own rules; the handles of all others are what they were"
    assert len(await services.listed()) == 5_000


# --- events


async def test_the_monitor_reports_our_table_and_no_other(services: Services) -> None:
    await services.create_service("web", ("10.0.0.1", 80))
    provider = provider_at(services.place.endpoint(), timeout_seconds=1)
    began = children()
    try:
        mark = await provider.changes(None)
        assert await provider.changes(mark) == mark, "nothing has happened"
        for harm in ("flush map", "rule added", "flush table", "policy", "delete table"):
            services.place.nft("add table ip other; delete table ip other")
            services.place.nft(HARMS[harm])
            newer = await provider.changes(mark)
            assert newer != mark, harm
            mark = newer
            while (newer := await provider.changes(mark)) != mark:
                mark = newer  # the rest of what it says
        services.place.nft("add table ip reconciler2; delete table ip reconciler2")
        assert await provider.changes(mark) == mark, "another table's"

        (process,) = children() - began
        os.kill(process, signal.SIGKILL)
        with pytest.raises(NotDoneError, match="nft monitor exited"):
            await followed(provider, mark)
        assert await provider.changes(mark) != mark, "by then anything may have happened"
    finally:
        await provider.close()
    assert children() <= began, "no process is left"


async def followed(provider: ServicesProvider, mark: str) -> None:
    """Follow events, none of which come."""
    for _ in range(3):
        assert await provider.changes(mark) == mark


# --- what is refused


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
    ("spec", "why"),
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
def test_a_spec_that_cannot_be_is_refused_with_what_and_where(spec: Fields, why: str) -> None:
    with pytest.raises(InvalidManifestError, match="spec") as caught:
        SERVICE.check_fields({"address": VIRTUAL, "port": 80, **spec})
    assert why in str(caught.value)


def test_a_backend_may_be_what_a_container_gives() -> None:
    address = {"$ref": "Container/orders-1", "field": "outputs.address"}
    declared = {"address": VIRTUAL, "port": 80, "backends": [{"address": address, "port": 8080}]}
    assert SERVICE.check_declared(declared) == declared
    (references,) = SERVICE.references(declared, "default")
    assert "Container/orders-1" in str(references)


async def test_backends_are_a_set(services: Services) -> None:
    service = await services.create_service(
        "web", ("10.0.0.10", 80), ("10.0.0.9", 81), ("10.0.0.10", 80)
    )
    addresses = [each["address"] for each in service.fields["backends"]]
    assert addresses == ["10.0.0.9", "10.0.0.10"]


async def test_where_there_is_no_namespace_nothing_counts_as_gone() -> None:
    provider = provider_at("netns:rec-never/reconciler")
    for call in (
        provider.read("web"),
        listing(provider, Scope()),
        provider.create(
            action("Create", "web", {"address": VIRTUAL, "protocol": "tcp", "port": 1})
        ),
    ):
        with pytest.raises(NotDoneError, match="network namespace 'rec-never' does not exist"):
            await call
    await provider.close()


async def test_a_client_that_may_not_change_the_rules_gets_a_clear_error(
    services: Services,
) -> None:
    nobody = provider_at("nft:reconciler")
    nobody.nft.program = ("setpriv", "--reuid=65534", "--clear-groups", *nobody.nft.program)
    with pytest.raises(ConfigurationError, match="as root, or with CAP_NET_ADMIN"):
        await listing(nobody, Scope())


def test_without_nft_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nft_module, "SEARCH_PATH", "/nowhere")
    with pytest.raises(
        ConfigurationError, match=r"nft is not installed; install the package nftables"
    ):
        provider_at("nft:reconciler")


async def test_a_table_that_is_a_word_of_nft_is_refused(place: Namespace) -> None:
    services = Services(place, "flush")
    with pytest.raises(ConfigurationError, match="flush is a reserved word of nft"):
        await services.create_service("web")
    assert place.nft("list ruleset") == ""


async def test_nft_that_does_not_end_is_killed_and_the_result_is_unknown(
    services: Services,
) -> None:
    service = await services.create_service("web", ("10.0.0.1", 80))
    slow = provider_at(services.place.endpoint(), timeout_seconds=0.3)
    program = slow.nft.program
    slow.nft.program = ("sh", "-c", "sleep 60", *program)
    with pytest.raises(NotDoneError, match="did not exit within"):
        await slow.read("web")
    slow.nft.program = program

    class SlowWrite:
        may_send_now, interval_seconds = False, 0.0

        async def wait(self, *, has_priority: bool = False) -> None:
            if has_priority:
                slow.nft.program = ("sh", "-c", "sleep 60", *program)

    children_before = children()
    token = CALL_GATE.set(SlowWrite())
    with pytest.raises(UnknownResultError, match="did not exit within"):
        await slow.update(with_version_of(action("Update", "web", services.fields()), service))
    CALL_GATE.reset(token)
    assert children() == children_before
    await slow.close()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("yes", "it is longer than 32 MiB"),
        ("yes >&2", "it is longer than 32 MiB"),
        ("yes | head -c 33000000 | tr '\\ny' '[,'", "exceeds the limit of 128 MiB of memory"),
    ],
)
async def test_output_of_nft_that_is_too_large_is_an_error_that_names_the_limit(
    services: Services, script: str, words: str
) -> None:
    """Another program may have filled the table."""
    full = provider_at(services.place.endpoint(), timeout_seconds=30)
    full.nft.program = ("sh", "-c", script)
    children_before = children()
    with measure_memory() as memory, pytest.raises(NotDoneError, match=words):
        await full.read("web")
    assert memory.peak_bytes < 5 * nft_module.MAX_OUTPUT_BYTES
    assert children() == children_before
    await full.close()


async def test_an_action_without_a_name_that_can_be_is_refused(services: Services) -> None:
    for name in ("-web", "web }", 'a"b', "x" * 101, "a\n"):
        with pytest.raises(RefusedError, match="invalid name"):
            await services.provider.read(name)
        bad: Action = action("Create", name, services.fields())
        with pytest.raises(RefusedError, match="invalid name"):
            await services.provider.create(bad)


async def test_a_conflict_names_no_service_of_another_namespace(services: Services) -> None:
    labels = {OWNER_LABEL: "log.billing.Service.svc"}
    first = replace(action("Create", "billing-svc", services.fields()), labels=labels)
    await services.provider.create(first)
    for namespace_, is_named in (("billing", True), ("mallory", False)):
        again = action("Create", "again", services.fields())
        again = replace(again, action_id=f"{namespace_}/Service/again/1")
        with pytest.raises(NotDoneError, match="already mapped") as raised:
            await services.provider.create(again)
        assert ("billing-svc" in raised.value.message) is is_named
