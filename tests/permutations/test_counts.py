"""What a resource costs: stored messages and their bytes, API calls, and steps of the event loop.

Unlike times, these numbers are the same on every machine. A change that lowers a number lowers it
here as well. A change that raises a number states the reason in its commit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from events.intake import Withdrawn
from events.provider_config import DeletionGuard
from projections.read_models import STATUS
from tests.permutations.world import MemoryWorld
from tests.scenarios.harness import api_config, manifest, shape

RESOURCES: Final = 100
NAMES: Final = [f"shape-{number:03}" for number in range(RESOURCES)]
DELETED: Final = NAMES[: RESOURCES // 10]

SETTLE_SECONDS: Final = 3.0
"""Virtual seconds after which all work is done, and the projector has written its rows."""

NO_LISTING_SECONDS: Final = 100_000.0
"""A resync interval that is longer than a test, so that only a start lists objects."""


class Cost(NamedTuple):
    """What was done for a number of resources.

    ``messages``: the number of stored messages by type, and their average size in bytes. ``calls``:
    the number of API calls by method. ``steps``: callbacks of the event loop for each resource,
    including those of the API's server.
    """

    messages: Mapping[str, tuple[int, int]]
    calls: Mapping[str, int]
    steps: int


CREATION = Cost(
    messages={
        "row": (100, 736),
        "Declared": (100, 286),
        "Reported": (100, 547),
        "SpecDeclared": (100, 479),
        "ActionDecided": (100, 680),
        "ActionSucceeded": (100, 680),
        "OutcomeRecorded": (100, 625),
    },
    calls={"POST": 100},
    steps=19,
)
UPDATE = Cost(
    messages={
        "row": (100, 736),
        "Declared": (100, 287),
        "Reported": (100, 548),
        "SpecDeclared": (100, 481),
        "ActionDecided": (100, 741),
        "ActionSucceeded": (100, 681),
        "OutcomeRecorded": (100, 625),
    },
    calls={"GET": 100, "PUT": 100},
    steps=21,
)
REPEATED_DECLARATION = Cost(messages={"Declared": (100, 287)}, calls={}, steps=0)
RESTART = Cost(messages={}, calls={"GET": 1}, steps=1)
DRIFT = Cost(
    messages={
        "row": (10, 749),
        "Observed": (10, 407),
        "Reported": (10, 550),
        "ExternalObserved": (10, 438),
        "DriftDetected": (10, 464),
        "OwnershipReleased": (10, 475),
        "ActionDecided": (10, 675),
        "ActionSucceeded": (10, 685),
        "OutcomeRecorded": (10, 628),
    },
    calls={"POST": 10, "GET": 2},
    steps=36,
)
WITHDRAWAL = Cost(
    messages={
        "deleted row": (100, 0),
        "Withdrawn": (100, 164),
        "Reported": (100, 353),
        "SpecWithdrawn": (100, 350),
        "ActionDecided": (100, 622),
        "ActionSucceeded": (100, 488),
        "OutcomeRecorded": (100, 614),
    },
    calls={"DELETE": 100, "GET": 100},
    steps=33,
)


async def test_each_operation_stores_and_calls_what_it_needs_and_no_more(bare_world: MemoryWorld):
    world = bare_world
    await world.start_reconciler()
    guard = DeletionGuard(max_count=RESOURCES)
    config = api_config(world.human.url, resync=NO_LISTING_SECONDS, deletion_guard=guard)
    await world.configure(config)
    meter = _Meter(world)
    await meter.skip()

    await world.declare_all([manifest(name) for name in NAMES])
    assert await meter.read("Converged", generation=1) == CREATION
    await world.declare_all([manifest(name, color="Blue") for name in NAMES])
    assert await meter.read("Converged", generation=2) == UPDATE
    await world.declare_all([manifest(name, color="Blue") for name in NAMES])
    assert await meter.read("Converged", generation=2) == REPEATED_DECLARATION
    await world.restart_reconciler()
    assert await meter.read("Converged", generation=2) == RESTART
    await world.stop_reconciler()
    for name in DELETED:
        await world.human.delete(name)
    await meter.skip()
    await world.start_reconciler()
    assert await meter.read("Converged", generation=2, resources=len(DELETED)) == DRIFT
    for name in NAMES:
        await world.publish(shape(name), Withdrawn())
    assert await meter.read("Deleted", generation=3) == WITHDRAWAL


class _Meter:
    """Counts what the world's bus stores, and what its API receives."""

    def __init__(self, world: MemoryWorld) -> None:
        self._world = world
        self._sizes = dict[str, list[int]]()
        self._intake_position = self._log_position = self._step = 0
        save = world.bus.rows.save

        def save_and_count(changes: Mapping[str, bytes | None], revision: int) -> int:
            for name, row in changes.items():
                if name.startswith(f"{STATUS}."):  # the others are written once for many resources
                    self._count("deleted row" if row is None else "row", row or b"")
            return save(changes, revision)

        world.bus.rows.save = save_and_count
        self._mark()

    async def read(self, outcome: str, *, generation: int, resources: int = RESOURCES) -> Cost:
        """Wait until everything is at rest, check the outcomes, and return the cost until then."""
        world = self._world
        await self._settle()
        bus, steps = world.bus, world.loop_steps - self._step
        for name in NAMES:
            await world.until_outcome(name, outcome, generation=generation)
        for message in bus.intake.messages[self._intake_position :]:
            self._count(_type_name(message.payload), message.payload)
        for payload in bus.log.payloads[self._log_position :]:
            self._count(_type_name(payload), payload)
        messages = {
            name: (len(sizes), round(sum(sizes) / len(sizes)))
            for name, sizes in self._sizes.items()
        }
        requests = await world.human.requests()
        calls = Counter({method: sum(each.values()) for method, each in requests.items()})
        await self.skip()
        return Cost(messages, calls, round(steps / resources))

    async def skip(self) -> None:
        """Wait until everything is at rest, and ignore the cost until then."""
        await self._settle()
        await self._world.human.reset_counts()
        self._sizes.clear()
        self._mark()

    async def _settle(self) -> None:
        await asyncio.sleep(SETTLE_SECONDS)

    def _mark(self) -> None:
        bus = self._world.bus
        self._intake_position, self._log_position = len(bus.intake.messages), len(bus.log.payloads)
        self._step = self._world.loop_steps

    def _count(self, name: str, payload: bytes) -> None:
        self._sizes.setdefault(name, []).append(len(payload))


def _type_name(payload: bytes) -> str:
    """Return the last part of a CloudEvent's type."""
    return msgspec.json.decode(payload)["type"].rpartition(".")[2]
