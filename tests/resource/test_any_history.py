"""After any history, with any fault, the invariants hold and the resource converges."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, assume, example, given, note, settings
from hypothesis import strategies as st

from events.external import ExternalObject
from events.log import OwnershipReleased
from events.manifest import Fields
from tests.resource.world import FAULTS, World

small = st.integers(min_value=0, max_value=6)
colors = st.sampled_from(["Red", "Green", "Blue"])
specs: st.SearchStrategy[Fields] = st.fixed_dictionaries(
    {"color": colors},
    optional={
        "type": st.sampled_from(["Square", "Circle"]),
        "size": st.fixed_dictionaries(
            {}, optional={"w": st.sampled_from([1, 2]), "h": st.sampled_from([1, 2])}
        ),
    },
)
policies: st.SearchStrategy[Fields] = st.sampled_from(
    [
        {},
        {},
        {"adoption": "Adopt"},
        {"adoption": "Adopt", "deletion": "Orphan"},
        {"deletion": "Orphan"},
        {"mode": "CreateOnly"},
        {"mode": "ObserveOnly"},
        {"mode": "Absent"},
        {"mode": "Absent", "adoption": "Adopt"},
        {"ignoreFields": ["color"]},
        {"paused": True},
    ]
)
# Under other policies (an orphan is kept, a pause is honored), the result depends on the history.
convergent_policies: st.SearchStrategy[Fields] = st.sampled_from(
    [{"adoption": "Adopt"}, {"adoption": "Adopt", "mode": "Absent"}]
)
steps = st.one_of(
    st.tuples(st.just("declare"), specs, policies),
    st.tuples(st.just("withdraw")),
    st.tuples(st.just("deliver"), small),
    st.tuples(st.just("deliver"), st.just(100)),
    st.tuples(st.just("redeliver"), st.integers(min_value=0, max_value=50)),
    st.tuples(st.just("work"), st.sampled_from(FAULTS), st.booleans()),
    st.tuples(st.just("work"), st.sampled_from(FAULTS), st.booleans()),
    st.tuples(st.just("wake stuck")),
    st.tuples(st.just("permit"), st.sampled_from([("*",), ("others",)])),
    st.tuples(st.just("begin listing")),
    st.tuples(st.just("publish observation"), small),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 10.0, 3600.0])),
    st.tuples(st.just("create by hand"), colors),
    st.tuples(
        st.just("edit by hand"),
        st.fixed_dictionaries({}, optional={"color": colors, "note": st.sampled_from(["a", "b"])}),
    ),
    st.tuples(st.sampled_from(["strip labels by hand", "touch by hand", "delete by hand"])),
)
quick = settings(
    max_examples=int(os.environ.get("EXAMPLES", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


STEPS: dict[str, Callable[..., object]] = {
    "declare": World.declare,
    "withdraw": World.withdraw,
    "deliver": World.deliver,
    "redeliver": World.redeliver,
    "work": World.work,
    "wake stuck": World.wake_stuck,
    "permit": World.permit,
    "begin listing": World.begin_listing,
    "publish observation": World.publish_observation,
    "wait": World.wait,
    "create by hand": World.create_by_hand,
    "edit by hand": World.edit_by_hand,
    "strip labels by hand": World.strip_labels_by_hand,
    "touch by hand": World.touch_by_hand,
    "delete by hand": World.delete_by_hand,
}


def run_step(world: World, step: tuple[Any, ...]) -> None:
    STEPS[step[0]](world, *step[1:])


def was_released(world: World) -> bool:
    """Return whether an object was released on purpose, so that others now own its fields."""
    released = [each.data for each in world.story.log if isinstance(each.data, OwnershipReleased)]
    return any(each.reason == "Orphaned" for each in released)


def run_history(history: list[tuple[Any, ...]]) -> World:
    world = World()
    for step in history:
        run_step(world, step)
    return world


def managed_content(existing: ExternalObject | None) -> object:
    """Return the content that the reconciler manages, without the note of other clients."""
    if existing is None:
        return None
    return {name: each for name, each in existing.fields.items() if name != "note"}, existing.labels


def check_idle(world: World) -> None:
    events, effects = len(world.story.log), world.api.effects
    world.settle()
    assert (len(world.story.log), world.api.effects) == (events, effects)


PAUSED_IN_DOUBT: list[tuple[Any, ...]] = [
    ("declare", {"color": "Red"}, {}),
    ("deliver", 100),
    ("declare", {"color": "Red"}, {"paused": True}),
    ("work", "throttled", False),
]
"""A creation with an unknown result stays unchanged until the pause final_states."""


@quick
@example(PAUSED_IN_DOUBT)
@given(st.lists(steps, max_size=40))
def test_any_history_becomes_idle_and_can_be_replayed(history: list[tuple[Any, ...]]):
    world = run_history(history)
    world.settle()
    check_idle(world)
    world.check()


RELEASE_OVERTAKEN: list[tuple[Any, ...]] = [
    ("declare", {"color": "Red", "type": "Square"}, {}),
    ("deliver", 1),
    ("declare", {"color": "Red"}, {"adoption": "Adopt", "deletion": "Orphan"}),
    ("withdraw",),
    ("work", "none", False),
]
"""A field that was declared earlier stays on the object when only its label is removed."""


@quick
@example(RELEASE_OVERTAKEN, {"color": "Red"})
@example(PAUSED_IN_DOUBT, {"color": "Red"})
@given(st.lists(steps, max_size=40), specs)
def test_after_any_history_the_object_exists_as_declared(
    history: list[tuple[Any, ...]], fields: Fields
):
    world = run_history(history)
    world.declare({**fields, "color": "White"}, {"adoption": "Adopt"})
    world.settle()
    existing = world.api.object
    note(f"{existing} {world.story.outcome}")
    assert world.story.outcome == "Converged"
    assert existing is not None
    assert world.has_own_owner_label
    managed_fields = {name: value for name, value in existing.fields.items() if name != "note"}
    expected: Fields = {**fields, "color": "White"}
    assert (
        managed_fields == expected
        if not was_released(world)
        else managed_fields | expected == managed_fields
    )
    check_idle(world)
    world.check()


@quick
@given(st.lists(steps, max_size=40))
def test_after_any_history_a_withdrawal_leaks_nothing(history: list[tuple[Any, ...]]):
    world = run_history(history)
    world.declare({"color": "White"}, {})
    world.withdraw()
    world.settle()
    existing = world.api.object
    note(f"{existing} {world.story.outcome} {world.story.reason}")
    assert existing is None or existing.uid not in world.judge.ledger.ours
    world.check()
    assert world.story.outcome in ("Deleted", "Unowned", "Released", "Disputed")
    check_idle(world)


@quick
@given(
    st.lists(steps, max_size=25),
    st.lists(
        st.one_of(
            st.tuples(st.just("declare"), specs, convergent_policies), st.just(("withdraw",))
        ),
        max_size=5,
    ),
    st.tuples(st.just("declare"), specs, convergent_policies),
    st.lists(st.integers(min_value=1, max_value=3), max_size=6),
)
def test_every_split_of_a_batch_leads_to_the_same_state(
    history: list[tuple[Any, ...]],
    batch: list[tuple[Any, ...]],
    last: tuple[Any, ...],
    cuts: list[int],
):
    final_states: list[Any] = []
    for sizes in ([len(batch) + 1], cuts):
        world = run_history(history)
        world.settle()
        for step in [*batch, last]:
            run_step(world, step)
        for size in sizes:
            world.deliver(size)
        world.settle()
        assume(not was_released(world))
        final_states.append((world.story.outcome, managed_content(world.api.object)))
    assert final_states[0] == final_states[1]
