"""Fault 30: a lagging projector, a stop at any batch of rows, and a start with a long log.

The rows belong to 1,400 resources, some of which are deleted and some recreated.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from nats.aio.client import Client

from events.log import LogEvent
from events.names import ResourceKey
from infra.bus import rows as rows_module
from infra.bus.event_log import JetStreamLog, open_log
from infra.bus.rows import JetStreamRows
from infra.bus.streams import ROWS, ROWS_PREFIX
from infra.embedded import EmbeddedServer
from infra.jetstream.append import append
from infra.jetstream.connection import api_request, close, connect
from infra.jetstream.follow import follow
from projections.read_models import (
    CHECKPOINT,
    ReadModels,
    decode_checkpoint,
    rebuild,
    status_name,
)
from reconciler.cli.folded_log import replay_from_start
from reconciler.cli.row_comparison import compare
from reconciler.failpoints import Failpoint
from reconciler.ports import ResourceAppend, StoredEvent
from reconciler.roles.projector.projector import Projector, load_models
from reconciler.wiring import initialize
from tests.crashes.role_process import RoleProcess
from tests.projections.logs import renamed
from tests.resource.building import Story, converged_story

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = 1_400
MIN_ROW_BATCHES = 4  # the first one empties the store
RESOURCES_PER_APPEND = 50
TIMEOUT_SECONDS = 60.0


class History:
    """A resource's history: created, deleted, recreated."""

    def __init__(self) -> None:
        story, self.ends = converged_story(), list[int]()
        self.ends.append(len(story.log))
        story.withdraw()
        story.succeed()
        self.ends.append(len(story.log))
        story.declare()
        story.succeed()
        self.ends.append(len(story.log))
        self._story: Story = story

    def part(self, key: ResourceKey, number: int) -> list[LogEvent]:
        first = ([0, *self.ends])[number]
        events = renamed(self._story, key).log[first : self.ends[number]]
        return [replace(event, causationposition=0) for event in events]  # this log has no intake


HISTORY = History()


class Log:
    """The log of one server, and the expected rows."""

    def __init__(self, url: str, nc: Client, log: JetStreamLog) -> None:
        self.url = url
        self.nc = nc
        self._log = log
        self._heads: dict[ResourceKey, int] = {}

    async def append_part(self, keys: Sequence[ResourceKey], part: int) -> None:
        """Append a part of each resource's history."""
        for start in range(0, len(keys), RESOURCES_PER_APPEND):
            appends = [
                ResourceAppend(key, HISTORY.part(key, part), self._heads.get(key, 0))
                for key in keys[start : start + RESOURCES_PER_APPEND]
            ]
            positions = await self._log.append(appends)
            self._heads |= {each.key: last for each, last in zip(appends, positions, strict=True)}

    async def events(self) -> list[StoredEvent]:
        return sorted(await self._log.read_kind("*", "*"), key=lambda each: each.position)

    async def expected(self) -> dict[str, bytes]:
        return dict(rebuild((each.position, each.event) for each in await self.events()).rows())

    async def is_written(self) -> bool:
        payload, _ = await JetStreamRows(self.nc).checkpoint()
        if not payload:
            return False
        checkpoint = decode_checkpoint(payload)
        return checkpoint.is_whole and checkpoint.position == await self._log.last_position()

    async def delete_rows(self) -> None:
        await api_request(self.nc, f"STREAM.PURGE.{ROWS}", {})

    async def verify(self) -> None:
        """Compare the rows with the log, as ``replay --verify`` does."""
        async with replay_from_start(self.nc) as replay:
            comparison = await compare(self.nc, replay, lambda _position: None)
        assert (comparison.note, comparison.differences) == ("", [])
        assert comparison.checkpoint == await self._log.last_position()


def keys(first: int, last: int) -> list[ResourceKey]:
    return [ResourceKey("default", "Block", f"foo-{number}") for number in range(first, last)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def log(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Log]:
    server = EmbeddedServer()
    url = await server.start(tmp_path_factory.mktemp("bus"))
    nc = await connect(url, name="test")
    await initialize(nc)
    log = Log(url, nc, await open_log(nc))
    await log.append_part(keys(0, COUNT), 0)
    await log.append_part(keys(0, COUNT // 2), 1)
    await log.append_part(keys(0, COUNT // 4), 2)
    yield log
    await close(nc)
    await server.kill()


class Stopped(BaseException):
    """The process was killed."""


async def is_stopped_after(batches: int, projector: Projector) -> bool:
    """Let a projector write and die after ``batches``; return whether it died."""
    stored = itertools.count(1)

    async def append_and_die(nc: Client, messages: Any) -> list[int]:
        sequences = await append(nc, messages)
        if next(stored) > batches:
            raise Stopped
        return sequences

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "append", append_and_die)
        try:
            await projector.flush()
        except Stopped:
            return True
    return False


async def start_projector(log: Log) -> tuple[ReadModels, Projector]:
    store = JetStreamRows(log.nc)
    models = await load_models(store)
    return models, Projector(models, store)


def fold(models: ReadModels, projector: Projector, events: Sequence[StoredEvent]) -> None:
    for each in events:
        if each.position > models.position:
            projector.apply(each.position, each.event)


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await condition():  # noqa: ASYNC110 - the condition is on the bus
            await asyncio.sleep(0.05)
    assert await condition(), what


async def test_30_a_stop_at_any_batch_of_rows_leaves_the_next_start_warm(log: Log) -> None:
    events = await log.events()
    expected = await log.expected()
    positions: list[int] = []
    for batches in itertools.count():
        await log.delete_rows()
        models, projector = await start_projector(log)
        fold(models, projector, events)
        if not await is_stopped_after(batches, projector):
            break
        models, projector = await start_projector(log)
        positions.append(models.position)
        fold(models, projector, events)
        await projector.flush()
        assert await JetStreamRows(log.nc).load() == expected
    assert len(positions) >= MIN_ROW_BATCHES
    assert positions[1] > 0
    assert positions[1:] == sorted(set(positions[1:])), (
        "each batch must be a state to continue from"
    )


async def test_30_a_lagging_projector_does_not_overwrite_newer_rows(
    log: Log,
) -> None:
    await log.delete_rows()
    events = await log.events()
    newest, quick = await start_projector(log)
    lagging, slow = await start_projector(log)
    fold(newest, quick, events)
    fold(lagging, slow, events[: len(events) // 2])
    await quick.flush()
    rows = await JetStreamRows(log.nc).load()
    for end in range(len(events) // 2, len(events), 500):
        fold(lagging, slow, events[:end])
        await slow.flush()
        assert await JetStreamRows(log.nc).load() == rows
    reloaded, projector = await start_projector(log)
    assert reloaded.position == events[-1].position
    fold(reloaded, projector, events)
    assert not reloaded.damage


async def test_30_a_process_that_is_killed_while_it_folds_a_long_log_starts_warm(
    log: Log, tmp_path: Path
) -> None:
    await log.delete_rows()
    position_before = 0
    for number in range(1, 4):
        dying = RoleProcess.fork(
            log.url,
            tmp_path / f"{number}.log",
            roles=["projector"],
            failpoint=f"{Failpoint.PROJECTOR_SAVED}:{2 if position_before == 0 else 1}",
        )
        await dying.wait_until_killed_at(Failpoint.PROJECTOR_SAVED)
        models, _ = await start_projector(log)
        assert models.position > position_before, "it must continue from its last checkpoint"
        position_before = models.position
    last = RoleProcess.fork(log.url, tmp_path / "last.log", roles=["projector"])
    await until(log.is_written, "everything is written")
    await last.stop()
    await log.verify()


async def test_30_a_resumed_projector_does_not_overwrite_newer_rows_and_takes_over_when_alone(
    log: Log, tmp_path: Path
) -> None:
    await log.delete_rows()
    checkpoints: list[int] = []

    async def watch() -> None:
        async with follow(log.nc, ROWS, filters=[ROWS_PREFIX + CHECKPOINT]) as follower:
            async for messages in follower:
                decoded_checkpoints = [
                    decode_checkpoint(each.payload) for each in messages if each.payload
                ]
                checkpoints.extend(each.position for each in decoded_checkpoints if each.is_whole)

    paused = RoleProcess.fork(log.url, tmp_path / "paused.log", roles=["projector"])
    await until(log.is_written, "the first one writes")
    watching = asyncio.ensure_future(watch())
    other_process = RoleProcess.fork(log.url, tmp_path / "other.log", roles=["projector"])
    await other_process.wait_until_ready()

    paused.pause()
    await log.append_part(keys(COUNT, COUNT + 20), 0)
    await until(log.is_written, "the other one takes over")
    await log.append_part(keys(COUNT, COUNT + 10), 1)
    await until(log.is_written, "the other one keeps writing")
    paused.resume()
    await log.append_part(keys(COUNT, COUNT + 10), 2)
    await until(log.is_written, "one of them writes")
    await other_process.kill()
    deleted_keys = keys(COUNT + 10, COUNT + 20)
    await log.append_part(deleted_keys, 1)
    await until(log.is_written, "the one that was paused takes over")

    await log.verify()
    assert await JetStreamRows(log.nc).get([status_name(key) for key in deleted_keys]) == {}
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert len(checkpoints) >= 4
    assert checkpoints == sorted(set(checkpoints)), "checkpoints only increase"
    await paused.stop()
