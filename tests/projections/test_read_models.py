"""The read models: folded step by step, from stored rows or all at once: the same bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from events.external import digest
from events.intake import FinalizerReleased, FinalizerRequested
from events.log import LogEvent, event_id
from events.names import ShapeKey
from projections.read_models import (
    CHECKPOINT,
    FLEET,
    FleetCount,
    OutdatedRowsError,
    ReadModels,
    decode_checkpoint,
    decode_fleet,
    decode_ownership,
    decode_status,
    ownership_name,
    rebuild,
    restore,
    status_name,
)
from tests.shape.building import Story, converged, repainted, thing
from tests.shape.world import FAULTS, World

Log = list[tuple[int, LogEvent]]
KEYS = [ShapeKey("default", "Block", name) for name in ("Foo", "Bar", "Baz")]


def of(*stories: Story, seed: int = 0) -> Log:
    """Interleave the histories of shapes into one log; positions grow, with gaps."""
    waiting = [list(story.log) for story in stories]
    chance = random.Random(seed)
    log: Log = []
    position = 0
    while any(waiting):
        history = chance.choice([each for each in waiting if each])
        position += chance.randint(1, 3)
        log.append((position, history.pop(0)))
    return log


def apply_changes(rows: dict[str, bytes], changes: dict[str, bytes | None]) -> None:
    for name, payload in changes.items():
        if payload is None:
            rows.pop(name, None)
        else:
            rows[name] = payload


def renamed(story: Story, key: ShapeKey) -> Story:
    """The same history, told of another shape."""
    told = Story(key=key)
    told.log = [
        replace(event, subject=str(key), id=event_id(key, event.shapeversion))
        for event in story.log
    ]
    return told


histories = st.lists(st.integers(0, 2**32), min_size=1, max_size=3)
quick = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def random_life(seed: int) -> World:
    """Thirty things that happen to a shape, its API, its worker and its observer."""
    chance, world = random.Random(seed), World()
    for _ in range(30):
        fields = {"color": chance.choice(["Red", "Green", "Blue"])}
        policy = chance.choice(
            [{}, {"adoption": "Adopt"}, {"deletion": "Orphan"}, {"paused": True}]
        )
        happenings: list[Callable[[], object]] = [
            partial(world.declare, fields, policy),
            world.withdraw,
            partial(world.work, chance.choice(FAULTS)),
            partial(world.work, "none"),
            partial(world.wait, 3600.0),
            partial(world.human_makes, fields["color"]),
            partial(world.human_edits, fields),
            world.human_deletes,
        ]
        chance.choice(happenings)()
        world.look()
        world.show(-1)
        world.deliver(chance.randint(1, 5))
    return world


def log_of(lives: list[int], seed: int) -> Log:
    worlds = [random_life(life) for life in lives]
    return of(*(renamed(w.story, KEYS[n]) for n, w in enumerate(worlds)), seed=seed)


@quick
@given(histories, st.integers(0, 99), st.integers(1, 7))
def test_rows_written_step_by_step_are_those_of_a_rebuild(lives: list[int], seed: int, every: int):
    log = log_of(lives, seed)
    live, stored = ReadModels(), dict[str, bytes]()
    for number, (position, event) in enumerate(log):
        live.apply(position, event)
        if number % every == 0:
            apply_changes(stored, live.take_changes())
    apply_changes(stored, live.take_changes())

    if log:
        assert stored == dict(rebuild(log).rows()) == dict(live.rows())
    assert live.take_changes() == {}


@quick
@given(histories, st.integers(0, 99), st.data())
def test_after_a_crash_between_two_writes_the_same_rows_come_out(
    lives: list[int], seed: int, data: st.DataObject
):
    """Rows are written in several batches, the checkpoint with the last: any may be missing."""
    log = log_of(lives, seed)
    if not log:
        return
    crash = data.draw(st.integers(1, len(log)), "crash after so many events")
    checkpoint = data.draw(st.integers(0, crash), "of which so many are behind the checkpoint")
    live, stored = ReadModels(), dict[str, bytes]()
    for position, event in log[:checkpoint]:
        live.apply(position, event)
    apply_changes(stored, live.take_changes())
    for position, event in log[checkpoint:crash]:
        live.apply(position, event)
    changes = live.take_changes()
    changes.pop(CHECKPOINT, None)
    written = data.draw(st.sets(st.sampled_from(sorted(changes))) if changes else st.just(set()))
    apply_changes(stored, {name: changes[name] for name in written})

    again = restore(stored) if CHECKPOINT in stored else ReadModels()
    for position, event in log:
        if position > again.position:
            again.apply(position, event)
    apply_changes(stored, again.take_changes())

    assert dict(again.rows()) == dict(rebuild(log).rows())
    if CHECKPOINT in stored:
        assert stored == dict(rebuild(log).rows())


def test_a_shape_of_which_nothing_is_left_has_no_row():
    story = converged()
    models = ReadModels()
    for position, event in of(story):
        models.apply(position, event)
    assert {status_name(story.key), ownership_name(story.key)} <= models.take_changes().keys()

    before = len(story.log)
    story.withdraw()
    story.succeed()
    for number, event in enumerate(story.log[before:]):
        models.apply(100 + number, event)

    changes = models.take_changes()
    assert changes[status_name(story.key)] is None
    assert changes[ownership_name(story.key)] is None
    assert [name for name, _ in models.rows()] == [FLEET, CHECKPOINT]
    assert list(changes)[-1] == CHECKPOINT


def test_a_finalizer_that_outlives_its_object_is_shown():
    story = converged()
    story.turn(FinalizerRequested("billing"))
    story.withdraw()
    story.see(None)
    assert list(rebuild(of(story)).status[str(story.key)].finalizers) == ["billing"]
    story.turn(FinalizerReleased("billing"))
    assert not rebuild(of(story)).status


def test_rows_say_how_a_shape_stands():
    story = converged({"type": "Square", "color": "Purple"})
    story.see(repainted(story.seen, color="Green"))
    rows = dict(rebuild(of(story)).rows())

    status = decode_status(rows[status_name(story.key)])
    assert (status.declared, status.owned, status.drifts) == (True, True, 1)
    assert (status.operation, status.attempt, status.action_id) == (
        "Update",
        1,
        story.action.action_id,
    )
    ownership = decode_ownership(rows[ownership_name(story.key)])
    assert (ownership.owned, ownership.uid, ownership.reason) == (True, status.uid, "Created")
    fleet = decode_fleet(rows[FLEET])
    assert (fleet.owned, fleet.in_flight) == (1, 1)
    assert fleet.counts == (FleetCount("default", "Block", "Converged", 1),)


def test_an_action_that_waits_for_its_next_try_is_seen_to_wait_after_a_new_declaration():
    story = Story()
    story.declare({"color": "Red"})
    story.fail("Transient")
    waits_until = story.flight.retry_at
    story.declare({"color": "Blue"})
    status = decode_status(dict(rebuild(of(story)).rows())[status_name(story.key)])
    assert status.retry_at == waits_until is not None


def test_a_paused_shape_is_seen_to_be_paused_until_it_is_not():
    story = converged()
    story.declare({"color": "Red"}, policy={"paused": True})
    assert decode_status(dict(rebuild(of(story)).rows())[status_name(story.key)]).paused
    story.withdraw()
    assert not decode_status(dict(rebuild(of(story)).rows())[status_name(story.key)]).paused


def test_an_object_that_may_have_been_made_while_we_crashed_is_in_the_ownership_row():
    story = Story()
    story.declare()
    row = decode_ownership(dict(rebuild(of(story)).rows())[ownership_name(story.key)])
    assert (row.owned, row.pending_create) == (False, story.action.action_id)

    story.fail("Conflict", shown=thing())
    assert ownership_name(story.key) not in dict(rebuild(of(story)).rows())


def test_nothing_applied_is_nothing_to_write():
    assert ReadModels().take_changes() == {}


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {CHECKPOINT: b'{"position":3,"schema":0}'},
        {CHECKPOINT: b"not JSON"},
        {CHECKPOINT: b'{"position":3,"schema":1}', "status.a.b.c": b"{}"},
    ],
)
def test_rows_that_cannot_be_used_are_told_so(broken: dict[str, bytes]):
    with pytest.raises(OutdatedRowsError):
        restore(broken)


def test_restored_rows_go_on_from_their_checkpoint():
    story = converged()
    stored = dict(rebuild(of(story)).rows())
    again = restore(stored)
    assert again.position == decode_checkpoint(stored[CHECKPOINT]).position
    assert dict(again.rows()) == stored


def test_a_row_knows_what_was_asked_of_an_api_that_shows_nothing_after_a_write() -> None:
    """Else its loss were never told: an observer tells only of what was there."""
    story = Story()
    story.declare()
    story.report(shown=None)
    [row] = rebuild(of(story)).status.values()
    assert story.state.observed is not None
    assert row.observed_digest == digest(story.state.observed)
