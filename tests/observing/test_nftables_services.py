"""Services through the whole loop, in namespaces: the page's example, and what hands do to it."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import yaml

from events.intake import Withdrawn
from events.log import ActionDecided, DriftDetected
from events.manifest import Fields, Manifest
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from infra.providers.nftables.service import SERVICE
from reconciler.provider.kind import KindRegistry
from tests.nftables import Network, is_refused_within, network
from tests.scenarios.harness import World, api_config, every

pytestmark = pytest.mark.nftables

PAGE = (Path(__file__).parents[2] / "docs" / "kinds" / "service.md").read_text()
(EXAMPLE,) = re.findall(r"<!-- applied by [^\n]*-->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
VIRTUAL = "198.18.0.10"
HEALED_SECONDS = 1.0
SLACK_SECONDS = 4.0
"""What a machine with four tests at a time may add."""


@pytest.fixture
def net() -> Iterator[Network]:
    """The page's backends have the addresses of the third and fourth machine."""
    with network(clients=2, backends=2) as one:
        yield one


def example() -> dict[str, Manifest]:
    read = [msgspec.convert(each, Manifest) for each in yaml.safe_load_all(EXAMPLE)]
    return {each.metadata.name: each for each in read}


@pytest.fixture
async def served(bare_world: World, net: Network) -> World:
    """A reconciler of the services of the router."""
    world = bare_world
    world.kinds = KindRegistry([SERVICE])
    await world.start_reconciler()
    await world.configure(configured(net), "services")
    return world


def configured(net: Network, table: str = "reconciler", resync: float = 3600) -> ProviderConfigSpec:
    documented = msgspec.convert(example()["services"].spec, ProviderConfigSpec)
    assert documented.endpoint == "nft:reconciler"
    return api_config(
        net.router.endpoint(table),
        provider=documented.provider,
        resync=resync,
        least_resync_seconds=documented.least_resync_seconds,
    )


async def applied(world: World) -> dict[str, Manifest]:
    """Declare the page's services, and wait until they are there."""
    declared = example()
    del declared["services"]
    await world.declare_all(list(declared.values()))
    for each in declared.values():
        await world.until_outcome(each.key, "Converged")
    return declared


async def answers(net: Network, port: int, times: int) -> Counter[str]:
    """Have each client call so many times; return who answered to whom."""

    def count_answers() -> Counter[str]:
        return Counter(
            client.connect(VIRTUAL, port) for client in net.clients for _ in range(times)
        )

    return await asyncio.to_thread(count_answers)


def changed(manifest: Manifest, **spec: object) -> Manifest:
    return msgspec.structs.replace(manifest, spec={**manifest.spec, **spec})


async def test_the_pages_example_answers_evenly_follows_changes_and_goes(
    served: World, net: Network
) -> None:
    rules_before = net.router.ruleset()
    declared = await applied(served)
    in_turn = await answers(net, 81, 10)
    assert Counter(each.split()[0] for each in in_turn.elements()) == {"b0": 20 // 2, "b1": 10}
    assert {each.split()[1] for each in in_turn} == {each.address for each in net.clients}
    at_random = await answers(net, 80, 1)
    assert {each.split()[1] for each in at_random} <= {"10.77.3.1", "10.77.4.1"}, "masqueraded"

    key = declared["orders"].key
    (first, second) = declared["orders"].spec["backends"]
    await served.declare_all([changed(declared["orders"], backends=[second])])
    await served.until_outcome(key, "Converged", generation=2)
    assert {each.split()[0] for each in await answers(net, 80, 5)} == {"b1"}, "out at once"

    await served.declare_all([changed(declared["orders"], backends=[])])
    await served.until_outcome(key, "Converged", generation=3)

    async def is_not_ready() -> bool:
        status = await served.client.status(key)
        condition = None if status is None else status.not_ready
        return condition is not None and condition.reason == "NoBackends"

    await served.until(is_not_ready, "as declared, and not ready")
    for client in net.clients:
        call = partial(client.connect, VIRTUAL, 80)
        assert await asyncio.to_thread(is_refused_within, 0.5, call)
    await served.declare_all([changed(declared["orders"], backends=[first])])
    await served.until_outcome(key, "Converged", generation=4)
    assert {each.split()[0] for each in await answers(net, 80, 5)} == {"b0"}

    for each in declared.values():
        await served.publish(each.key, Withdrawn())
    for each in declared.values():
        await served.until_outcome(each.key, "Deleted")
    rules_after = net.router.nft("list table ip reconciler")
    assert "service-" not in rules_after
    assert "elements" not in rules_after
    assert net.router.ruleset("reconciler") == rules_before


HARMS = {
    "flush table": "flush table ip reconciler",
    "chain deleted": (
        "delete element ip reconciler services { 198.18.0.10 . tcp . 80 };"
        "delete chain ip reconciler service-orders"
    ),
    "rules edited": (
        "flush chain ip reconciler service-orders;"
        "add rule ip reconciler service-orders meta l4proto tcp dnat to 10.77.9.9:1"
    ),
    "element deleted": "delete element ip reconciler services { 198.18.0.10 . tcp . 80 }",
    "prerouting flushed": "flush chain ip reconciler prerouting",
    "delete table": "delete table ip reconciler",
}


async def test_out_of_band_changes_are_reverted_within_about_a_second_and_other_tables_stay(
    served: World, net: Network, record_property: Callable[[str, object], None]
) -> None:
    net.router.nft(
        "add table ip theirs; add chain ip theirs prerouting"
        " { type nat hook prerouting priority -90; }; add rule ip theirs prerouting counter"
    )
    foreign_table = net.router.nft("list table ip theirs", "-a", "-s")
    declared = await applied(served)
    key = declared["orders"].key
    whole = rules_of(net)
    took: dict[str, float] = {}
    for harm, script in HARMS.items():
        await served.until_settled()
        drifts = len(every(DriftDetected, await served.facts(key)))
        net.router.nft(script)
        began = time.monotonic()

        async def is_healed() -> bool:
            return await asyncio.to_thread(rules_of, net) == whole

        await served.until(is_healed, f"{harm} is undone", seconds=30)
        took[harm] = round(time.monotonic() - began, 2)
        assert took[harm] < HEALED_SECONDS + SLACK_SECONDS
        assert {each.split()[0] for each in await answers(net, 81, 4)} == {"b0", "b1"}
        await served.until_settled()
        existing_drifts = every(DriftDetected, await served.facts(key))
        assert len(existing_drifts) > drifts, f"{harm} is a drift in the log"
    record_property("healed after seconds", took)
    print("healed after", took)
    assert net.router.nft("list table ip theirs", "-a", "-s") == foreign_table


def rules_of(net: Network) -> list[str]:
    """What packets meet in our table, whatever its order, uids and keys."""
    try:
        rules = net.router.nft("list table ip reconciler")
    except Exception:  # noqa: BLE001 - it is not there
        return []
    parts = re.split(r"[{},\n]", re.sub(r'comment "[^"]*"', "", rules))
    return sorted(" ".join(each.split()) for each in parts if each.strip())


async def test_nothing_is_written_while_nothing_differs_and_others_are_shown(
    served: World, net: Network
) -> None:
    await served.configure(configured(net, resync=0.3), "services")
    declared = await applied(served)
    await served.until_settled()
    net.router.nft(
        "add chain ip reconciler service-theirs; add rule ip reconciler service-theirs drop;"
        "add element ip reconciler services { 198.18.0.99 . tcp . 1 : goto service-theirs }"
    )
    rules_before = net.router.nft("list ruleset", "-a")

    async def is_reported() -> bool:
        return any(b"theirs" in row for row in (await served.rows()).values())

    await served.until(is_reported, "what is like a service is shown as unowned")
    await served.until_observed_again(3)
    assert net.router.nft("list ruleset", "-a") == rules_before
    facts = [await served.facts(each.key) for each in declared.values()]
    assert sum(isinstance(each, ActionDecided) for many in facts for each in many) == 2


async def test_two_configurations_with_two_tables_have_services_of_one_name(
    served: World, net: Network
) -> None:
    await served.configure(configured(net, "other"), "other")
    spec: Fields = {"port": 80, "backends": [{"address": "10.77.3.2", "port": 8080}]}
    both: list[Manifest] = []
    for config, address in {"services": VIRTUAL, "other": "198.18.0.11"}.items():
        one = changed(
            example()["orders"],
            **{**spec, "address": address, "providerConfigRef": {"name": config}},
        )
        metadata = msgspec.structs.replace(
            one.metadata,
            name=f"orders-{config}",
            annotations={"reconciler/external-name": "orders"},
        )
        both.append(msgspec.structs.replace(one, metadata=metadata))
    await served.declare_all(both)
    for each in both:
        await served.until_outcome(each.key, "Converged")
    other_table = net.router.nft("list table ip other", "-a")
    await served.publish(ResourceKey("default", "Service", "orders-services"), Withdrawn())
    await served.until_outcome(both[0].key, "Deleted")
    assert net.router.nft("list table ip other", "-a") == other_table
    answer = await asyncio.to_thread(net.clients[0].connect, "198.18.0.11", 80)
    assert answer.startswith("b0")
