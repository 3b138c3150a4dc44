"""The observations of one API that are published but not yet reflected in the log are limited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import Observed
from events.log import ExternalObserved, LogEvent
from events.names import ResourceKey
from events.provider_config import Scope
from reconciler.ports import IntakeMessageOut
from reconciler.roles.observer import publication
from reconciler.roles.observer.observer import JITTER
from reconciler.roles.observer.publication import (
    BURST_BYTES,
    BYTES_PER_SECOND,
    MAX_REPEAT_SECONDS,
    MAX_UNPROCESSED,
    MAX_UNPROCESSED_BYTES,
    REPEAT_SECONDS,
    Observation,
    Publication,
)
from tests.observing.test_change_feed import (
    CONFIG,
    Api,
    Intake,
    intervals,
    never_respond,
    running_observer,
    until,
)
from tests.observing.test_change_feed import Stage as ObserverStage

KIB = 1024


def observations(count: int, size: int = 10, start: int = 0) -> list[Observation]:
    return [observation(number, size) for number in range(start, start + count)]


def observation(number: int, size: int = 10) -> Observation:
    existing = ExternalObject(f"n{number}", {"text": "x" * size}, f"u{number}")
    key = ResourceKey("default", "Shape", f"n{number}")
    return key, Observed("default", f"n{number}", existing, "CompleteListing", 1)


def event_of(observed: Observation) -> LogEvent:
    key, data = observed
    return LogEvent(
        id=f"{key}/1",
        source="test",
        type="ExternalObserved",
        subject=str(key),
        time=datetime(2026, 1, 1, tzinfo=UTC),
        resourceversion=1,
        data=ExternalObserved("default", data.external_name, data.object, "CompleteListing", 1),
        causationid="c",
        causationposition=1,
        actor="observer",
    )


class Stage:
    """A publication whose clock the test sets, and what it published."""

    def __init__(self) -> None:
        self.now = 0.0
        self.publication = Publication(lambda: self.now)
        self.published: list[Observation] = []

    async def publish(self, waiting: list[Observation], api: str = "api") -> None:
        async for each in self.publication.slices(api, waiting):
            self.published += each

    async def count(self, waiting: list[Observation], api: str = "api") -> int:
        before = len(self.published)
        await self.publish(waiting, api)
        return len(self.published) - before

    def process(self, count: int) -> None:
        for each in self.published[:count]:
            self.publication.handle_event(event_of(each))
        del self.published[:count]


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_no_more_is_published_than_the_log_reflects(stage: Stage) -> None:
    many = observations(3 * MAX_UNPROCESSED)
    assert await stage.count(many) == MAX_UNPROCESSED
    assert await stage.count(many) == 0
    assert await stage.count(observations(10), "another API") == 10
    stage.process(7)
    assert await stage.count(many) == 7


async def test_repeated_observations_of_a_resource_count(stage: Stage) -> None:
    for _ in range(MAX_UNPROCESSED // 100):
        assert await stage.count(observations(100)) == 100
    assert await stage.count(observations(100)) == 0
    stage.process(1)  # the log shows the newest one of this resource
    assert await stage.count(observations(100)) == MAX_UNPROCESSED // 100


async def test_observations_that_the_log_never_reflects_expire_ever_later(stage: Stage) -> None:
    pauses: list[float] = []
    for _ in range(7):
        await stage.publish(observations(MAX_UNPROCESSED))
        began = stage.now
        while not await stage.count(observations(1)):
            stage.now += 1.0
        stage.now += MAX_REPEAT_SECONDS
        pauses.append(stage.now - began - MAX_REPEAT_SECONDS)
        await stage.publish(observations(1))
    assert pauses[0] == REPEAT_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_REPEAT_SECONDS
    stage.process(1)
    await stage.publish(observations(2 * MAX_UNPROCESSED))
    stage.now += REPEAT_SECONDS
    assert await stage.count(observations(1)) == 1


async def test_namespaces_share_the_bytes_and_deletions_come_first(stage: Stage) -> None:
    large = observations(60, 1024 * KIB)
    small = [
        (ResourceKey("other", "Shape", key.name), data)
        for key, data in (observation(100), observation(101, 300 * KIB))
    ]
    gone = ResourceKey("default", "Shape", "gone"), replace(large[0][1], object=None)
    await stage.publish([*large, *small, gone])
    first = [key.name for key, _ in stage.published[:4]]
    assert sorted(first[:2]) == ["gone", "n100"]
    assert first[2:] == ["n101", "n0"]


async def test_a_listing_ends_while_much_of_it_is_unpublished() -> None:
    """Otherwise the objects of all others are not observed until everything is published."""
    large = [observation(number, 400 * KIB) for number in range(100)]
    slices = Publication(time.monotonic).slices("api", large, max_wait_seconds=0.05)
    published = [each async for part in slices for each in part]
    assert 0 < len(published) < 30


async def test_undeclared_objects_come_last(stage: Stage) -> None:
    declared, undeclared = observation(1, KIB), observation(2)
    slices = stage.publication.slices(
        "api", [undeclared, declared], is_undeclared=lambda key: key == undeclared[0]
    )
    assert [each async for part in slices for each in part] == [declared, undeclared]


async def test_unprocessed_bytes_are_limited(stage: Stage) -> None:
    large = observations(100, 400 * KIB)
    count = await stage.count(large)
    assert MAX_UNPROCESSED_BYTES <= count * 400 * KIB < MAX_UNPROCESSED_BYTES + 401 * KIB
    stage.process(count)
    assert await stage.count(large[count:]) == count


async def test_the_rate_is_limited_in_bytes(stage: Stage) -> None:
    size = 100 * KIB
    published = 0
    for start in range(0, 10_000, 50):
        published += await stage.count(observations(50, size, start))
        stage.process(50)
    assert BURST_BYTES <= published * size <= BURST_BYTES + MAX_UNPROCESSED_BYTES
    stage.now += 60.0
    for start in range(0, 10_000, 50):
        published += await stage.count(observations(50, size, start))
        stage.process(50)
    most = BURST_BYTES + 60 * BYTES_PER_SECOND + 2 * MAX_UNPROCESSED_BYTES
    assert BURST_BYTES + 60 * BYTES_PER_SECOND <= published * size <= most


async def test_small_changes_wait_at_most_a_second_for_the_large_ones_of_a_namespace(
    stage: Stage,
) -> None:
    large = observations(1000, 200 * KIB)
    for seconds in (0.0,) * 10 + (2.0,):  # the burst, and what refills in two seconds
        stage.now += seconds
        stage.process(await stage.count(large))
        stage.published.clear()
    small = [(ResourceKey("other", "Shape", key.name), data) for key, data in observations(3)]
    stage.now += 1.2
    await stage.publish([*large, *small])
    assert stage.published[:3] == small


async def test_a_listing_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "MAX_UNPROCESSED", 5)
    stage = Stage()

    async def publish_all() -> None:
        async for each in stage.publication.slices("api", observations(12), max_wait_seconds=10.0):
            stage.published += each

    listing = asyncio.create_task(publish_all())
    for expected in (5, 5, 2):
        await asyncio.sleep(0.01)
        assert len(stage.published) == expected
        stage.process(5)
    await asyncio.wait_for(listing, 1)


async def test_listings_that_wait_for_room_keep_the_resync_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise many large changes in one namespace delay the next listing for all others."""
    resync_seconds = 0.4

    class Changing(Api):
        async def pages(
            self, scope: Scope, *, page_size: int
        ) -> AsyncIterator[Sequence[ExternalObject]]:
            async for _ in super().pages(scope, page_size=page_size):
                value = len(self.listed_at)
                yield [
                    ExternalObject(f"n{each}", {"value": value}, f"u{each}") for each in range(9)
                ]

    async def accept(_self: Intake, _messages: Sequence[IntakeMessageOut]) -> None: ...

    monkeypatch.setattr(publication, "MAX_UNPROCESSED", 1)
    monkeypatch.setattr(Intake, "publish", accept)
    api = Changing(never_respond)
    config = replace(CONFIG, resync_seconds=resync_seconds, least_resync_seconds=resync_seconds)
    async with running_observer(ObserverStage(api, config)):
        async with asyncio.timeout(10 * resync_seconds):
            await until(lambda: len(api.listed_at) >= 4)
    limit = resync_seconds * (1 + JITTER)
    assert sorted(intervals(api.listed_at))[1] < limit + 0.1
