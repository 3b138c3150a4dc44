"""Fault 5: connections that are slow, one-way or silently dead, and nodes that are cut off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from nats.aio.client import Client

from infra.bus.streams import LOG
from infra.jetstream.append import append
from infra.jetstream.errors import AppendConflictError, BusUnavailableError
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.reads import read_subject
from reconciler.wiring import Role, initialize, open_connection, run_roles
from tests.cluster.routes import Routes
from tests.cluster.servers import NODES, leader
from tests.cluster.story import until
from tests.faults.tcp_proxy import Direction, proxied
from tests.faulty_api import FaultyApi
from tests.judge.from_bus import check
from tests.scenarios.harness import Human, World, api_config

SUBJECT = "log.default.Shape.foo.event"
FAULTS: list[tuple[str, set[Direction]]] = [
    ("half-open", {"to server", "to client"}),
    ("nothing comes back", {"to client"}),
]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    process = FaultyApi()
    human = Human(await process.start(tmp_path / "api"))
    async with World(tmp_path / "nats", human).open() as world:
        roles: list[Role] = ["worker", "observer", "projector"]
        await world.start_reconciler(roles)
        yield world
    await human.close()
    await process.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "directions", [directions for _, directions in FAULTS], ids=[name for name, _ in FAULTS]
)
async def test_fault_5_a_decider_with_a_dead_connection_detects_it_and_continues(
    world: World, directions: set[Direction]
) -> None:
    """Its connection is silently dead; pings detect it, and the next connection works."""
    async with (
        proxied(world.server.port) as proxy,
        open_connection(proxy.url) as proxied_nc,
        run_roles(proxied_nc, ["decider"], kinds=world.kinds),
    ):
        await world.configure(api_config(world.human.url))
        proxy.delay_seconds = 0.02
        await world.declare("slow")
        await world.until_outcome("slow", "Converged")
        proxy.held = set(directions)
        await world.declare("foo")

        async def is_connection_lost() -> bool:
            return not proxied_nc.is_connected or proxied_nc.stats["reconnects"] > 0

        await world.until(is_connection_lost, "the connection is closed", seconds=40)
        proxy.heal()
        await world.client.wait_for("default/Shape/foo", generation=1, timeout_seconds=40)
        await world.until_settled()
        assert await world.human.effects("foo") == ["POST"]
        assert await check(world.nc, world.human.url) == []


# --- between nodes


async def _holds_both(nc: Client) -> bool:
    """Return whether a read returns both messages; any replica may respond, and may lag."""
    stored = [each.payload for each in await read_subject(nc, LOG, SUBJECT)]
    assert stored in ([], [b"first"], [b"first", b"from the majority"])
    return len(stored) == 2


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_fault_5_a_leader_that_is_cut_off_acknowledges_nothing(
    tmp_path: Path,
) -> None:
    routes = Routes()
    async with AsyncExitStack() as stack:
        await routes.start(tmp_path / "nats", stack)
        cluster = routes.cluster
        async with open_connection(cluster.url) as nc:
            await initialize(nc, replicas=3)
            await until(lambda: _is_led(nc), lambda: "no leader")
            minority = await leader(nc, LOG)
        assert minority is not None
        majority = (minority + 1) % NODES
        async with (
            open_connection(cluster.url_of(minority)) as minority_nc,
            open_connection(cluster.url_of(majority)) as majority_nc,
        ):
            [first] = await append(majority_nc, [_build_message(0, b"first")])
            routes.isolate(minority)
            with pytest.raises(BusUnavailableError):
                await append(minority_nc, [_build_message(first, b"from the minority")])
            await until(
                lambda: _append_on_majority_side(majority_nc, first), lambda: "no new leader"
            )
            routes.rejoin(minority)
            await until(
                lambda: _is_minority_refused(minority_nc, first),
                lambda: "the minority did not come back",
            )
            await until(lambda: _holds_both(majority_nc), lambda: "no replica has both")


def _build_message(position: int, payload: bytes) -> OutgoingMessage:
    return OutgoingMessage(SUBJECT, payload, None, "log.default.Shape.foo.>", position)


async def _is_led(nc: Client) -> bool:
    return await leader(nc, LOG) is not None


async def _append_on_majority_side(nc: Client, position: int) -> bool:
    """Append on the majority side; a conflict means that an earlier attempt was stored."""
    try:
        await append(nc, [_build_message(position, b"from the majority")])
    except BusUnavailableError:
        return False
    except AppendConflictError:
        return True
    return True


async def _is_minority_refused(nc: Client, position: int) -> bool:
    """Return whether the minority's append is refused permanently."""
    try:
        await append(nc, [_build_message(position, b"from the minority")])
    except BusUnavailableError:
        return False
    except AppendConflictError:
        return True
    raise AssertionError("two writers won")
