"""Rows never revert to older ones if projectors stop at any step or lag behind each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.hold import Hold
from events.integrity import LogDamage
from events.names import ResourceKey
from infra.jetstream.errors import BusUnavailableError
from projections.read_models import (
    CHECKPOINT,
    SCHEMA,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    rebuild,
    restore,
)
from reconciler.roles.projector import projector as projector_module
from reconciler.roles.projector.projector import Projector, load_models
from tests.memory_bus.rows import Rows
from tests.projections.logs import Log, histories, interleave, log_of, quick, renamed
from tests.resource.building import converged_story

MAX_ROWS_PER_SAVE = 3  # small, so that the rows of these logs need many saves
ROUNDS = (
    5  # rounds after which the standby projector has detected that the other one does not write
)


class Stopped(BaseException):
    """The process was killed."""


class WatchedRows:
    """Implements ``RowStore`` for one projector, and checks the rows after every save."""

    def __init__(self, rows: Rows, log: Log) -> None:
        self._rows = rows
        self.log = log
        self.rows_per_save = MAX_ROWS_PER_SAVE
        self.steps = 0
        self.faults: dict[int, BaseException] = {}
        self.before_step: dict[int, Callable[[], Awaitable[None]]] = {}
        self.before_clear: Callable[[], Awaitable[None]] | None = None
        self.is_before = True
        self.is_watched = True

    async def load(self) -> Mapping[str, bytes]:
        return dict(self._rows.content)

    async def checkpoint(self) -> tuple[bytes, int]:
        return self._rows.checkpoint()

    async def save(self, changes: Mapping[str, bytes | None], revision: int) -> int:
        self._inject_fault(is_before=True)
        if self.steps in self.before_step:
            await self.before_step.pop(self.steps)()
        position_before = _complete_position(self._rows)
        saved = self._rows.save(changes, revision)
        self._check_rows(position_before)
        self._inject_fault(is_before=False)
        return saved

    async def clear(self, before: int) -> None:
        self._inject_fault(is_before=True)
        if self.before_clear is not None:
            await self.before_clear()
        self._rows.clear(before)
        self._inject_fault(is_before=False)

    def _inject_fault(self, *, is_before: bool) -> None:
        self.steps += is_before
        if self.is_before == is_before and self.steps in self.faults:
            raise self.faults.pop(self.steps)

    def _check_rows(self, position_before: int) -> None:
        now = _complete_position(self._rows)
        if now and self.is_watched:
            assert now > position_before, f"the checkpoint went from {position_before} to {now}"
            history = [each for each in self.log if each[0] <= now]
            assert self._rows.content == dict(rebuild(history).rows())


def _complete_position(rows: Rows) -> int:
    """Return the position from which a projector can continue, 0 for none."""
    if CHECKPOINT not in rows.content:
        return 0
    checkpoint = decode_checkpoint(rows.content[CHECKPOINT])
    return checkpoint.position if checkpoint.is_whole and checkpoint.schema == SCHEMA else 0


class Process:
    """One projector of the log, which can be killed and restarted."""

    def __init__(self, rows: Rows, log: Log) -> None:
        self.store = WatchedRows(rows, log)
        self._log = log
        self.folded = 0
        self.start_positions: list[int] = []

    async def start(self) -> None:
        self._models = await load_models(self.store)
        self.start_positions.append(self._models.position)
        self._projector = Projector(self._models, self.store)

    def follow(self, log: Log) -> None:
        """Continue with a longer log."""
        self._log = self.store.log = log

    async def fold(self, count: int) -> None:
        remaining = [each for each in self._log if each[0] > self._models.position]
        for position, event in remaining[:count]:
            self._projector.apply(position, event)

    def mark_damage(self, damage: LogDamage) -> None:
        self._projector.mark_damage(damage)

    async def write(self) -> None:
        try:
            await self._projector.flush()
        except BusUnavailableError:
            return  # retried later, as in ``run``
        except Stopped:
            await self.start()


@quick
@given(histories, st.integers(0, 99), st.booleans())
def test_after_a_stop_at_any_batch_of_rows_the_next_start_continues_from_these_rows(
    story_seeds: list[int], seed: int, is_before: bool
) -> None:
    """The next start is also stopped, and so on until all rows have been written."""
    log = log_of(story_seeds, seed)
    rows = Rows()

    async def run() -> None:
        for stop_at in range(1, 10 * len(log) + 10):
            process = Process(rows, log)
            process.store.is_before = is_before
            process.store.faults = {stop_at if is_before else 3: Stopped()}
            await process.start()
            assert process.start_positions == [_complete_position(rows)], "all stored rows are used"
            await process.fold(len(log))
            await process.write()
            if not process.store.faults:
                continue
            return
        raise AssertionError("the projector never finished")

    if log:
        asyncio.run(run())
        assert rows.content == dict(rebuild(log).rows())


schedules = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["fold", "fold", "write", "write", "lose", "kill", "kill later", "erase"]),
        st.integers(1, 12),
    ),
    max_size=40,
)


@quick
@given(histories, st.integers(0, 99), schedules)
def test_two_projectors_never_replace_rows_with_older_ones(
    story_seeds: list[int], seed: int, schedule: list[tuple[int, str, int]]
) -> None:
    """The schedule determines which one applies events, writes, is killed, or loses a response."""
    log = log_of(story_seeds, seed)
    rows = Rows()

    async def run() -> None:
        processes = [Process(rows, log), Process(rows, log)]
        for process in processes:
            await process.start()
        for projector_index, what, count in schedule:
            process = processes[projector_index]
            process.store.is_before = what == "kill"
            match what:
                case "fold":
                    await process.fold(count)
                case "write":
                    await process.write()
                case "erase":
                    rows.clear()
                case _:
                    fault = BusUnavailableError("lost") if what == "lose" else Stopped()
                    process.store.faults = {process.store.steps + count % 4 + 1: fault}
                    await process.fold(count)
                    await process.write()
        for process in processes:
            process.store.faults = {}
            await process.fold(len(log))
        for _ in range(ROUNDS):
            for process in processes:
                await process.write()

    asyncio.run(run())
    if log and rows.content:
        assert rows.content == dict(rebuild(log).rows())


# --- special cases

MANY = 20  # resources, whose rows need several saves


def log_of_many() -> Log:
    keys = [ResourceKey("default", "Block", f"foo-{number}") for number in range(MANY)]
    return interleave(*(renamed(converged_story(), key) for key in keys))


async def write_all(rows: Rows, log: Log) -> Process:
    process = Process(rows, log)
    await process.start()
    await process.fold(len(log))
    await process.write()
    return process


def expected(log: Log) -> dict[str, bytes]:
    return dict(rebuild(log).rows())


async def test_rows_removed_while_a_projector_is_running_are_all_written_again() -> None:
    """It is stopped at every batch of rows, and the next one continues."""
    log = log_of_many()
    for stop_at in range(1, 100):
        rows = Rows()
        process = await write_all(rows, log[:-1])
        process.follow(log)
        rows.clear()
        await process.fold(1)
        process.store.faults = {process.store.steps + stop_at: Stopped()}
        for _ in range(ROUNDS):
            await process.write()
        is_done = bool(process.store.faults)
        await process.fold(len(log))
        await process.write()
        assert rows.content == expected(log)
        if is_done:
            break
    else:
        raise AssertionError("the projector never finished")
    assert stop_at > 5, "the rows filled several batches"


async def test_rows_are_all_written_again_if_the_bus_lost_some() -> None:
    """The checkpoint still exists, so the rows seem to have been written."""
    log, rows = log_of_many(), Rows()
    await write_all(rows, log)
    lost_name = next(name for name in rows.content if name.startswith("status."))
    del rows.content[lost_name]
    process = Process(rows, log)
    process.store.is_watched = False  # the checkpoint moves back
    await process.start()
    assert process.start_positions == [0]
    await process.fold(len(log))
    await process.write()
    assert rows.content == expected(log)


async def test_rows_that_another_projector_continues_are_all_written_again() -> None:
    """It does not read them, so it cannot detect that one is missing or older."""
    log, rows = log_of_many(), Rows()
    running = await write_all(rows, log[:-1])
    lost_name = next(name for name in rows.content if name.startswith("status."))
    del rows.content[lost_name]
    running.follow(log)
    restarted = Process(rows, log)
    for each in (running, restarted):
        each.store.is_watched = False
    await restarted.start()
    assert restarted.start_positions == [0]
    await running.fold(1)
    await running.write()
    for each in (restarted, running):
        await each.fold(len(log))
        await each.write()
        assert rows.content == expected(log)


async def test_the_more_advanced_of_two_projectors_that_start_over_writes_all_rows() -> None:
    log, rows = log_of_many(), Rows()
    advanced = await write_all(rows, log[:-1])
    advanced.follow(log)
    rows.clear()
    newcomer = Process(rows, log)
    await newcomer.start()
    await newcomer.fold(len(log) // 2)
    await newcomer.write()
    assert 0 < _complete_position(rows) < log[-2][0]
    await advanced.fold(1)
    for _ in range(ROUNDS):
        await advanced.write()
    assert rows.content == expected(log)
    await newcomer.fold(len(log))
    for _ in range(ROUNDS):
        await newcomer.write()
    assert rows.content == expected(log)


async def test_rows_are_not_removed_while_another_projector_writes_them() -> None:
    """One checks the store, and the other continues before the first has cleared it."""
    log, rows = log_of_many(), Rows()
    first, second = [await write_all(rows, log[:-1]) for _ in range(2)]
    rows.clear()
    for process in (first, second):
        process.follow(log)
        await process.fold(1)
    await first.write()  # after the conflict, it stands by
    halfway, may_continue = asyncio.Event(), asyncio.Event()

    async def stop_halfway() -> None:
        halfway.set()
        await may_continue.wait()

    second.store.before_step = {second.store.steps + 5: stop_halfway}
    write_task = asyncio.ensure_future(second.write())
    await halfway.wait()

    async def let_it_continue() -> None:
        may_continue.set()
        await write_task

    first.store.before_clear = let_it_continue
    await _write_in_rounds(first)
    await _write_in_rounds(second)
    assert rows.content == expected(log)


async def _write_in_rounds(process: Process) -> None:
    for _ in range(ROUNDS):
        await process.write()


async def test_rows_from_an_earlier_release_are_removed_and_later_ones_are_kept() -> None:
    log, rows = log_of_many(), Rows()
    old = Checkpoint(SCHEMA - 1, position=log[-1][0] + 100)
    rows.save({"status.gone": b"{}", CHECKPOINT: encode_checkpoint(old)}, 0)
    await write_all(rows, log)
    assert rows.content == expected(log)

    new = encode_checkpoint(Checkpoint(SCHEMA + 1, position=1))
    revision = rows.checkpoint()[1]
    rows.save({CHECKPOINT: new}, revision)
    stored = dict(rows.content)
    await write_all(rows, log)
    assert rows.content == stored


async def test_damage_that_is_detected_late_is_written_without_other_changes() -> None:
    log, rows = log_of_many(), Rows()
    process = await write_all(rows, log)
    process.store.is_watched = False  # a rebuild does not detect it
    position, event = log[3]
    process.mark_damage(LogDamage("Changed", position, 1, "a", "b", event.subject))
    await process.write()
    models = restore(rows.content)
    assert models.position == log[-1][0]
    assert list(models.damage) == [event.subject]
    assert models.status[event.subject].reason == Hold.LOG_DAMAGED


async def test_damage_found_by_a_lagging_projector_is_written_after_it_catches_up() -> None:
    log, rows = log_of_many(), Rows()
    lagging = Process(rows, log)
    await lagging.start()
    await lagging.fold(len(log) // 2)
    await write_all(rows, log)
    lagging.store.is_watched = False
    position, event = log[3]
    lagging.mark_damage(LogDamage("Changed", position, 1, "a", "b", event.subject))
    await lagging.write()
    assert not restore(rows.content).damage, "older rows would be written with it"
    await lagging.fold(len(log))
    for _ in range(ROUNDS):
        await lagging.write()
    assert list(restore(rows.content).damage) == [event.subject]


async def test_a_loss_in_the_log_is_recorded_wherever_the_projector_stops() -> None:
    log = log_of_many()
    last = log[len(log) // 2][0]
    newest = {ResourceKey.parse(event.subject): at for at, event in log if at <= last}
    rows = Rows()
    await write_all(rows, log)
    losses: list[set[str]] = []
    for _ in range(MANY):
        store = WatchedRows(rows, log)
        store.is_watched = False
        store.faults = {2: Stopped()}
        models = await load_models(store)
        for damage in models.find_losses(newest):
            models.mark_damage(damage)
        models.record_lost_end(last)
        losses.append(set(models.damage))
        try:
            await Projector(models, store).flush()
        except Stopped:
            continue
        break
    assert all(each == losses[0] for each in losses), "the loss is detected again, or recorded"
    stored = restore(rows.content)
    assert stored.damage.keys() == losses[0]
    assert len(losses) > 1
    assert (stored.position, stored.losses) == (last, 1)
    assert (await load_models(WatchedRows(rows, log))).position == last


async def test_projection_continues_without_a_store_and_writes_everything_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(projector_module, "_RETRY_SECONDS", 0.01)
    log, rows = log_of_many(), Rows()
    store = WatchedRows(rows, log)
    store.faults = {step: BusUnavailableError("no response") for step in range(10_000)}
    models = await load_models(store)
    projector = Projector(models, store)
    async with asyncio.timeout(60):
        running = asyncio.ensure_future(projector.run())
        for position, event in log:
            projector.apply(position, event)
            await projector.wait_for_room()
        store.faults = {}
        while rows.content != expected(log):  # noqa: ASYNC110 - nothing reports the end
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_no_more_events_are_applied_than_can_be_written() -> None:
    log, rows = log_of_many(), Rows()
    store = WatchedRows(rows, log)
    store.rows_per_save = 1
    models = await load_models(store)
    projector = Projector(models, store)
    for position, event in log:
        projector.apply(position, event)
    waiting = asyncio.ensure_future(projector.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    running = asyncio.ensure_future(projector.run())
    async with asyncio.timeout(60):
        await waiting
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert rows.content == expected(log)
