"""Fault 21, scenario 25: two deciders that each act as the only one; still only one effect."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nats.aio.client import Client

from events.envelope import encode_intake
from events.intake import Reported
from events.log import ActionDecided, ActionSucceeded, SpecDeclared
from infra.bus.decision_sink import JetStreamDecisionSink
from infra.bus.event_log import JetStreamLog, open_log
from infra.bus.intake import JetStreamIntakeReader
from infra.bus.streams import INTAKE, LogIdentity, find_log
from infra.embedded import EmbeddedServer
from infra.jetstream.pull import PullReader
from infra.jetstream.topology import ensure_consumer
from reconciler.ports import AppendLostError, IntakeDelivery, ResourceAppend
from reconciler.provider.kind import installed_kinds
from reconciler.roles.decider.decider import Decider
from reconciler.roles.runtime.configurations import Configurations
from reconciler.wiring import initialize, open_connection
from tests.bus.histories import history_of, new_key
from tests.bus.test_decider import Bus, decider, declaration
from tests.faulty_api import FaultyApi
from tests.judge.from_bus import check
from tests.scenarios.harness import Human, World, api_config, every, manifest, only

COUNT = 100


class CountingLog(JetStreamLog):
    """Counts the conflicts with another decider."""

    conflicts = 0

    async def append(self, appends: Sequence[ResourceAppend]) -> Sequence[int]:
        try:
            return await super().append(appends)
        except AppendLostError:
            self.conflicts += 1
            raise


class SecondReader(JetStreamIntakeReader):
    """Reads the whole intake through its own consumer, whichever reader the server prefers."""

    def __init__(self, nc: Client, identity: LogIdentity) -> None:
        super().__init__(nc, identity)
        self._group = PullReader(nc, INTAKE, "second")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    process = FaultyApi()
    human = Human(await process.start(tmp_path / "api"))
    async with World(tmp_path / "nats", human).open() as world:
        await world.start_reconciler()
        await world.configure(api_config(human.url))
        yield world
    await human.close()
    await process.stop()


@asynccontextmanager
async def second_decider(world: World) -> AsyncGenerator[CountingLog]:
    """Run another decider, which also decides every message, until the context ends."""
    async with open_connection(world.server.url) as nc:
        await ensure_consumer(nc, INTAKE, {"durable_name": "second", "ack_policy": "explicit"})
        log = CountingLog(nc, await find_log(nc))
        configurations = Configurations()
        await configurations.load(log)
        second = Decider(
            reader=SecondReader(nc, log.identity),
            log=log,
            sink=JetStreamDecisionSink(nc),
            kinds=world.kinds,
            configurations=configurations,
        )
        running = asyncio.create_task(second.run())
        yield log
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_scenario_25_two_deciders_decide_everything_and_each_effect_happens_once(
    world: World,
) -> None:
    async with second_decider(world) as log:
        for generation, color in enumerate(("Red", "Blue"), start=1):
            await world.declare_all([manifest(f"s{i}", color=color) for i in range(COUNT)])
            await asyncio.gather(
                *(
                    world.client.wait_for(f"default/Shape/s{i}", generation=generation)
                    for i in range(COUNT)
                )
            )
        await world.until_settled()
        assert log.conflicts > 0, "the deciders never conflicted"
    effects = Counter((each["name"], each["method"]) for each in await world.human.journal())
    assert effects == {(f"s{i}", m): 1 for i in range(COUNT) for m in ("POST", "PUT")}
    assert await check(world.nc, world.human.url) == []


# --- a decider that was paused, with old states and new messages


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[JetStreamLog]:
    server = EmbeddedServer()
    async with open_connection(await server.start(tmp_path / "nats")) as nc:
        await initialize(nc)
        yield await open_log(nc)
    await server.stop()


async def test_scenario_25_a_resumed_decider_does_not_mistake_an_old_state_for_the_declared_one(
    log: JetStreamLog,
) -> None:
    """In its state Red is declared, and it receives Red, so it might find nothing to do."""
    key, bus = new_key(), Bus()
    paused = decider(log, bus)
    await paused.handle([declaration(key, 1, "Red")])
    await decider(log, bus).handle([declaration(key, 2, "Blue")])
    await paused.handle([declaration(key, 3, "Red")])
    assert [reply.generation for reply in bus.replies] == [1, 2, 3]
    declared = every(SpecDeclared, [each.data for each in await history_of(log, key)])
    assert [each.fields["color"] for each in declared] == ["Red", "Blue", "Red"]


async def test_scenario_25_a_resumed_decider_does_not_discard_results_of_unknown_actions(
    log: JetStreamLog,
) -> None:
    key, bus = new_key(), Bus()
    paused, active = _decider_with_api(log, bus), _decider_with_api(log, bus)
    await paused.handle(
        [declaration(key, 1, "Red", expected=5)]
    )  # refused, but the resource is now cached
    await active.handle([declaration(key, 2, "Red")])
    action = only(ActionDecided, [each.data for each in await history_of(log, key)]).action
    now = datetime.now(UTC)
    payload = encode_intake("r1", "worker", Reported(action.action_id, 1, now, now, "w"), time=now)
    subject = f"in.0.result.{key.tokens}"
    await paused.handle([IntakeDelivery(3, subject, payload, "r1", None, 1, None)])
    facts = [each.data for each in await history_of(log, key)]
    assert only(ActionSucceeded, facts).action_id == action.action_id


def _decider_with_api(log: JetStreamLog, bus: Bus) -> Decider:
    configurations = Configurations()
    configurations.by_name["default"] = api_config("http://127.0.0.1:1")
    return Decider(
        reader=bus, log=log, sink=bus, kinds=installed_kinds(), configurations=configurations
    )
