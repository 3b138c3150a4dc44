"""Whatever happens, in any order, with every fault: the invariants hold and it converges."""

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
# What happens under other policies (an orphan is kept, a pause is honoured) depends on the way.
firm: st.SearchStrategy[Fields] = st.sampled_from(
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
    st.tuples(st.just("look")),
    st.tuples(st.just("show"), small),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 10.0, 3600.0])),
    st.tuples(st.just("human makes"), colors),
    st.tuples(
        st.just("human edits"),
        st.fixed_dictionaries({}, optional={"color": colors, "note": st.sampled_from(["a", "b"])}),
    ),
    st.tuples(st.sampled_from(["human strips", "human touches", "human deletes"])),
)
quick = settings(
    max_examples=int(os.environ.get("EXAMPLES", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


TAKE: dict[str, Callable[..., object]] = {
    "declare": World.declare,
    "withdraw": World.withdraw,
    "deliver": World.deliver,
    "redeliver": World.redeliver,
    "work": World.work,
    "wake stuck": World.wake_stuck,
    "permit": World.permit,
    "look": World.look,
    "show": World.show,
    "wait": World.wait,
    "human makes": World.human_makes,
    "human edits": World.human_edits,
    "human strips": World.human_strips_labels,
    "human touches": World.human_touches,
    "human deletes": World.human_deletes,
}


def take(world: World, step: tuple[Any, ...]) -> None:
    TAKE[step[0]](world, *step[1:])


def let_go_once(world: World) -> bool:
    """Tell whether an object was released on purpose: what it had is others' from then on."""
    released = [each.data for each in world.story.log if isinstance(each.data, OwnershipReleased)]
    return any(each.reason == "Orphaned" for each in released)


def lived(history: list[tuple[Any, ...]]) -> World:
    world = World()
    for step in history:
        take(world, step)
    return world


def as_declared(existing: ExternalObject | None) -> object:
    """Give what the reconciler answers for: not the note, which humans write and may lose."""
    if existing is None:
        return None
    return {name: each for name, each in existing.fields.items() if name != "note"}, existing.labels


def is_quiet(world: World) -> None:
    events, effects = len(world.story.log), world.api.effects
    world.settle()
    assert (len(world.story.log), world.api.effects) == (events, effects)


PAUSED_IN_DOUBT: list[tuple[Any, ...]] = [
    ("declare", {"color": "Red"}, {}),
    ("deliver", 100),
    ("declare", {"color": "Red"}, {"paused": True}),
    ("work", "throttled", False),
]
"""A creation of unknown result is kept as it is until the pause ends."""


@quick
@example(PAUSED_IN_DOUBT)
@given(st.lists(steps, max_size=40))
def test_any_history_comes_to_rest_and_can_be_replayed(history: list[tuple[Any, ...]]):
    world = lived(history)
    world.settle()
    is_quiet(world)
    world.check()


RELEASE_OVERTAKEN: list[tuple[Any, ...]] = [
    ("declare", {"color": "Red", "type": "Square"}, {}),
    ("deliver", 1),
    ("declare", {"color": "Red"}, {"adoption": "Adopt", "deletion": "Orphan"}),
    ("withdraw",),
    ("work", "none", False),
]
"""A field that was declared once is still on the object when only its label is taken off."""


@quick
@example(RELEASE_OVERTAKEN, {"color": "Red"})
@example(PAUSED_IN_DOUBT, {"color": "Red"})
@given(st.lists(steps, max_size=40), specs)
def test_after_any_history_what_is_declared_exists_as_declared(
    history: list[tuple[Any, ...]], fields: Fields
):
    world = lived(history)
    world.declare({**fields, "color": "White"}, {"adoption": "Adopt"})
    world.settle()
    existing = world.api.object
    note(f"{existing} {world.story.outcome}")
    assert world.story.outcome == "Converged"
    assert existing is not None
    assert world.has_own_owner_label
    other_fields = {name: value for name, value in existing.fields.items() if name != "note"}
    expected: Fields = {**fields, "color": "White"}
    assert (
        other_fields == expected
        if not let_go_once(world)
        else other_fields | expected == other_fields
    )
    is_quiet(world)
    world.check()


@quick
@given(st.lists(steps, max_size=40))
def test_after_any_history_what_is_withdrawn_leaks_nothing(history: list[tuple[Any, ...]]):
    world = lived(history)
    world.declare({"color": "White"}, {})
    world.withdraw()
    world.settle()
    existing = world.api.object
    note(f"{existing} {world.story.outcome} {world.story.reason}")
    assert existing is None or existing.uid not in world.judge.ledger.ours
    world.check()
    assert world.story.outcome in ("Deleted", "Unowned", "Released", "Disputed")
    is_quiet(world)


@quick
@given(
    st.lists(steps, max_size=25),
    st.lists(
        st.one_of(st.tuples(st.just("declare"), specs, firm), st.just(("withdraw",))), max_size=5
    ),
    st.tuples(st.just("declare"), specs, firm),
    st.lists(st.integers(min_value=1, max_value=3), max_size=6),
)
def test_however_a_batch_is_split_it_ends_in_the_same_place(
    history: list[tuple[Any, ...]],
    batch: list[tuple[Any, ...]],
    last: tuple[Any, ...],
    cuts: list[int],
):
    ends: list[Any] = []
    for sizes in ([len(batch) + 1], cuts):
        world = lived(history)
        world.settle()
        for step in [*batch, last]:
            take(world, step)
        for size in sizes:
            world.deliver(size)
        world.settle()
        assume(not let_go_once(world))
        ends.append((world.story.outcome, as_declared(world.api.object)))
    assert ends[0] == ends[1]
