"""Services through the whole loop in namespaces: the documented example, and drift."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import yaml

from events.intake import Withdrawn
from events.log import AbsenceDoubted, ActionDecided, DriftDetected, ListingsResumed
from events.manifest import Fields, Manifest
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, config_key
from infra.providers.nftables.service import SERVICE
from reconciler.provider.kind import KindRegistry
from tests.nftables import Network, is_refused_within, namespace, network, run
from tests.scenarios.harness import World, api_config, every

pytestmark = pytest.mark.nftables

PAGE = (Path(__file__).parents[2] / "docs" / "kinds" / "service.md").read_text()
(EXAMPLE,) = re.findall(r"<!-- applied by [^\n]*-->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
VIRTUAL_ADDRESS = "198.18.0.10"
REPAIR_SECONDS = 1.0
SLACK_SECONDS = 4.0
"""Extra time on a machine that runs four tests at a time."""


@pytest.fixture
def net() -> Iterator[Network]:
    """The documented backends have the addresses of the third and fourth hosts."""
    with network(clients=2, backends=2) as created_network:
        yield created_network


def documented_manifests() -> dict[str, Manifest]:
    read = [msgspec.convert(each, Manifest) for each in yaml.safe_load_all(EXAMPLE)]
    return {each.metadata.name: each for each in read}


@pytest.fixture
async def reconciling_world(bare_world: World, net: Network) -> World:
    """Start a reconciler of the router's services."""
    world = bare_world
    world.kinds = KindRegistry([SERVICE])
    await world.start_reconciler()
    await world.configure(build_config(net), "services")
    return world


def build_config(
    net: Network, table: str = "reconciler", resync: float = 3600
) -> ProviderConfigSpec:
    documented = msgspec.convert(documented_manifests()["services"].spec, ProviderConfigSpec)
    assert documented.endpoint == "nft:reconciler"
    return api_config(
        net.router.endpoint(table),
        provider=documented.provider,
        resync=resync,
        least_resync_seconds=documented.least_resync_seconds,
    )


async def apply_example(world: World) -> dict[str, Manifest]:
    """Declare the documented services, and wait until they converge."""
    declared = documented_manifests()
    del declared["services"]
    await world.declare_all(list(declared.values()))
    for each in declared.values():
        await world.until_outcome(each.key, "Converged")
    return declared


async def count_responses(net: Network, port: int, times: int) -> Counter[str]:
    """Connect this many times from each client; count the responses by backend and source."""

    def connect_all() -> Counter[str]:
        return Counter(
            client.connect(VIRTUAL_ADDRESS, port) for client in net.clients for _ in range(times)
        )

    return await asyncio.to_thread(connect_all)


def with_spec(manifest: Manifest, **spec: object) -> Manifest:
    return msgspec.structs.replace(manifest, spec={**manifest.spec, **spec})


async def test_the_documented_services_balance_load_follow_changes_and_are_deleted(
    reconciling_world: World, net: Network
) -> None:
    rules_before = net.router.ruleset()
    declared = await apply_example(reconciling_world)
    round_robin = await count_responses(net, 81, 10)
    assert Counter(each.split()[0] for each in round_robin.elements()) == {"b0": 20 // 2, "b1": 10}
    assert {each.split()[1] for each in round_robin} == {each.address for each in net.clients}
    random_choice = await count_responses(net, 80, 1)
    assert {each.split()[1] for each in random_choice} <= {"10.77.3.1", "10.77.4.1"}, (
        "the source is masqueraded"
    )

    key = declared["orders"].key
    (first, second) = declared["orders"].spec["backends"]
    await reconciling_world.declare_all([with_spec(declared["orders"], backends=[second])])
    await reconciling_world.until_outcome(key, "Converged", generation=2)
    assert {each.split()[0] for each in await count_responses(net, 80, 5)} == {"b1"}, (
        "the removed backend does not receive connections"
    )

    await reconciling_world.declare_all([with_spec(declared["orders"], backends=[])])
    await reconciling_world.until_outcome(key, "Converged", generation=3)

    async def is_not_ready() -> bool:
        status = await reconciling_world.client.status(key)
        condition = None if status is None else status.not_ready
        return condition is not None and condition.reason == "NoBackends"

    await reconciling_world.until(is_not_ready, "as declared, and not ready")
    for client in net.clients:
        call = partial(client.connect, VIRTUAL_ADDRESS, 80)
        assert await asyncio.to_thread(is_refused_within, 0.5, call)
    await reconciling_world.declare_all([with_spec(declared["orders"], backends=[first])])
    await reconciling_world.until_outcome(key, "Converged", generation=4)
    assert {each.split()[0] for each in await count_responses(net, 80, 5)} == {"b0"}

    for each in declared.values():
        await reconciling_world.publish(each.key, Withdrawn())
    for each in declared.values():
        await reconciling_world.until_outcome(each.key, "Deleted")
    rules_after = net.router.nft("list table ip reconciler")
    assert "service-" not in rules_after
    assert "elements" not in rules_after
    assert net.router.ruleset("reconciler") == rules_before


CHANGES = {
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


async def test_out_of_band_changes_are_reverted_quickly_and_other_tables_stay(
    reconciling_world: World, net: Network, record_property: Callable[[str, object], None]
) -> None:
    net.router.nft(
        "add table ip theirs; add chain ip theirs prerouting"
        " { type nat hook prerouting priority -90; }; add rule ip theirs prerouting counter"
    )
    foreign_table = net.router.nft("list table ip theirs", "-a", "-s")
    declared = await apply_example(reconciling_world)
    key = declared["orders"].key
    rules_before = rules_of(net)
    durations: dict[str, float] = {}
    for change, script in CHANGES.items():
        await reconciling_world.until_settled()
        drift_count = len(every(DriftDetected, await reconciling_world.facts(key)))
        net.router.nft(script)
        started_at = time.monotonic()

        async def is_reverted() -> bool:
            return await asyncio.to_thread(rules_of, net) == rules_before

        await reconciling_world.until(is_reverted, f"{change} is undone", seconds=30)
        durations[change] = round(time.monotonic() - started_at, 2)
        assert durations[change] < REPAIR_SECONDS + SLACK_SECONDS
        assert {each.split()[0] for each in await count_responses(net, 81, 4)} == {"b0", "b1"}
        await reconciling_world.until_settled()
        existing_drifts = every(DriftDetected, await reconciling_world.facts(key))
        assert len(existing_drifts) > drift_count, f"{change} is recorded as drift"
    record_property("healed after seconds", durations)
    print("healed after", durations)
    assert net.router.nft("list table ip theirs", "-a", "-s") == foreign_table


def rules_of(net: Network) -> list[str]:
    """Return our table's rules in sorted order, without uids and keys."""
    try:
        rules = net.router.nft("list table ip reconciler")
    except Exception:  # noqa: BLE001 - the table is missing
        return []
    parts = re.split(r"[{},\n]", re.sub(r'comment "[^"]*"', "", rules))
    return sorted(" ".join(each.split()) for each in parts if each.strip())


MANY_SERVICES = 11  # more than the loss guard accepts


async def declare_many(world: World) -> list[Manifest]:
    """Declare services, and wait until a listing has recorded their system."""
    service = documented_manifests()["orders"]
    declared = [
        with_spec(
            msgspec.structs.replace(
                service, metadata=msgspec.structs.replace(service.metadata, name=f"s{port}")
            ),
            port=port,
        )
        for port in range(8000, 8000 + MANY_SERVICES)
    ]
    await world.declare_all(declared)
    for each in declared:
        await world.until_outcome(each.key, "Converged")

    async def is_recorded() -> bool:
        facts = await world.facts(config_key("services"))
        return any(each.system_id for each in every(ListingsResumed, facts))

    await world.until(is_recorded, "the system is recorded")
    await world.until_settled()
    return declared


async def test_many_services_return_after_a_flush_or_a_reboot_without_an_approval(
    bare_world: World,
) -> None:
    world = bare_world
    world.kinds = KindRegistry([SERVICE])
    name = f"rec-{uuid.uuid4().hex[:10]}"
    with namespace(name) as router:
        await world.start_reconciler()
        config = api_config(
            router.endpoint(), provider="nftables", resync=0.3, least_resync_seconds=0.1
        )
        await world.configure(config, "services")
        declared = await declare_many(world)

        async def is_complete() -> bool:
            try:
                return router.nft("list map ip reconciler services").count("goto") == MANY_SERVICES
            except subprocess.CalledProcessError:
                return False

        router.nft("flush ruleset")
        await world.until(is_complete, "the services return after a flush", seconds=30)
        await world.until_settled()
        await world.stop_reconciler()
        run("ip", "netns", "del", name)  # a reboot loses all rules and restarts the observer
        run("ip", "netns", "add", name)
        await world.start_reconciler()
        await world.until(is_complete, "the services return after a reboot", seconds=30)
        await world.until_settled()
        for each in declared:
            facts = await world.facts(each.key)
            assert every(AbsenceDoubted, facts) == []
        facts = await world.facts(config_key("services"))
        assert len([each for each in every(ListingsResumed, facts) if each.system_id]) == 1
        await world.stop_reconciler()


async def test_many_missing_services_of_another_machine_are_held(
    bare_world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = bare_world
    world.kinds = KindRegistry([SERVICE])
    name = f"rec-{uuid.uuid4().hex[:10]}"
    with namespace(name) as router:
        await world.start_reconciler()
        config = api_config(
            router.endpoint(), provider="nftables", resync=0.3, least_resync_seconds=0.1
        )
        await world.configure(config, "services")
        declared = await declare_many(world)
        await world.stop_reconciler()
        run("ip", "netns", "del", name)
        run("ip", "netns", "add", name)
        machine_id = tmp_path / "machine-id"
        machine_id.write_text("0123456789abcdef" * 2 + "\n")
        monkeypatch.setattr("infra.providers.nftables.system._MACHINE_ID", machine_id)
        await world.start_reconciler()
        for each in declared:
            await world.until_outcome(each.key, "Held", reason="LossGuard")
        await world.until_observed_again(3)
        assert router.nft("list ruleset") == ""
        await world.stop_reconciler()


async def test_without_drift_nothing_is_written_and_foreign_services_are_listed(
    reconciling_world: World, net: Network
) -> None:
    await reconciling_world.configure(build_config(net, resync=0.3), "services")
    declared = await apply_example(reconciling_world)
    await reconciling_world.until_settled()
    net.router.nft(
        "add chain ip reconciler service-theirs; add rule ip reconciler service-theirs drop;"
        "add element ip reconciler services { 198.18.0.99 . tcp . 1 : goto service-theirs }"
    )
    rules_before = net.router.nft("list ruleset", "-a")

    async def is_reported() -> bool:
        return any(b"theirs" in row for row in (await reconciling_world.rows()).values())

    await reconciling_world.until(is_reported, "the foreign service is listed as unowned")
    await reconciling_world.until_observed_again(3)
    assert net.router.nft("list ruleset", "-a") == rules_before
    histories = [await reconciling_world.facts(each.key) for each in declared.values()]
    assert sum(isinstance(each, ActionDecided) for history in histories for each in history) == 2


async def test_two_configurations_with_two_tables_can_have_services_with_the_same_name(
    reconciling_world: World, net: Network
) -> None:
    await reconciling_world.configure(build_config(net, "other"), "other")
    spec: Fields = {"port": 80, "backends": [{"address": "10.77.3.2", "port": 8080}]}
    both: list[Manifest] = []
    for config, address in {"services": VIRTUAL_ADDRESS, "other": "198.18.0.11"}.items():
        orders = with_spec(
            documented_manifests()["orders"],
            **{**spec, "address": address, "providerConfigRef": {"name": config}},
        )
        metadata = msgspec.structs.replace(
            orders.metadata,
            name=f"orders-{config}",
            annotations={"reconciler/external-name": "orders"},
        )
        both.append(msgspec.structs.replace(orders, metadata=metadata))
    await reconciling_world.declare_all(both)
    for each in both:
        await reconciling_world.until_outcome(each.key, "Converged")
    other_table = net.router.nft("list table ip other", "-a")
    await reconciling_world.publish(
        ResourceKey("default", "Service", "orders-services"), Withdrawn()
    )
    await reconciling_world.until_outcome(both[0].key, "Deleted")
    assert net.router.nft("list table ip other", "-a") == other_table
    response = await asyncio.to_thread(net.clients[0].connect, "198.18.0.11", 80)
    assert response.startswith("b0")
