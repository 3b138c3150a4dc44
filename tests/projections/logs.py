"""Logs of a few resources, created, broken, withdrawn and recreated, drawn by hypothesis."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from events.log import LogEvent, event_id
from events.names import ResourceKey
from tests.resource.building import Story
from tests.resource.world import FAULTS, World

Log = list[tuple[int, LogEvent]]
KEYS = [ResourceKey("default", "Block", name) for name in ("Foo", "Bar", "Baz")]


def interleave(*stories: Story, seed: int = 0) -> Log:
    """Interleave the histories of resources into one log; positions grow, with gaps."""
    waiting = [list(story.log) for story in stories]
    rng = random.Random(seed)
    log: Log = []
    position = 0
    while any(waiting):
        history = rng.choice([each for each in waiting if each])
        position += rng.randint(1, 3)
        log.append((position, history.pop(0)))
    return log


def renamed(story: Story, key: ResourceKey) -> Story:
    """Return the same history with another resource key."""
    replayed_story = Story(key=key)
    replayed_story.log = [
        replace(event, subject=str(key), id=event_id(key, event.resourceversion))
        for event in story.log
    ]
    return replayed_story


histories = st.lists(st.integers(0, 2**32), min_size=1, max_size=3)
quick = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def random_life(seed: int) -> World:
    """Run thirty random steps of a resource, its API, its worker and its observer."""
    rng, world = random.Random(seed), World()
    for _ in range(30):
        fields = {"color": rng.choice(["Red", "Green", "Blue"])}
        policy = rng.choice([{}, {"adoption": "Adopt"}, {"deletion": "Orphan"}, {"paused": True}])
        steps: list[Callable[[], object]] = [
            partial(world.declare, fields, policy),
            world.withdraw,
            partial(world.work, rng.choice(FAULTS)),
            partial(world.work, "none"),
            partial(world.wait, 3600.0),
            partial(world.create_by_hand, fields["color"]),
            partial(world.edit_by_hand, fields),
            world.delete_by_hand,
        ]
        rng.choice(steps)()
        world.begin_listing()
        world.publish_observation(-1)
        world.deliver(rng.randint(1, 5))
    return world


def log_of(lives: list[int], seed: int) -> Log:
    worlds = [random_life(life) for life in lives]
    return interleave(*(renamed(w.story, KEYS[n]) for n, w in enumerate(worlds)), seed=seed)
