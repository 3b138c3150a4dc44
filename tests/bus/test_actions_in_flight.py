"""How many actions of a namespace may begin at an API."""

from __future__ import annotations

from events.intake import ActionError
from events.log import Action, ActionDecided, ActionFailed, ActionRetried, ActionSucceeded
from events.names import ResourceKey
from reconciler.roles.decider.actions_in_flight import ActionsInFlight
from reconciler.roles.decider.fair_queue import Destination


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def began(actions: ActionsInFlight, namespace: str, count: int, config: str = "default") -> None:
    for number in range(count):
        key = ResourceKey(namespace, "Shape", f"{config}-{number}")
        actions.apply(key, ActionDecided(_action(key, config)))


def _action(key: ResourceKey, config: str = "default") -> Action:
    return Action(f"{key}@1", "key", "Create", 1, config, key.name, (), {}, {})


def test_one_namespace_may_have_all_of_an_api():
    actions = ActionsInFlight(Clock(), 10)
    began(actions, "one", 10)
    assert actions.remaining(Destination("one", "default")) == 0
    assert actions.remaining(Destination("one", "other")) == 10


def test_another_namespace_gets_its_share_though_all_are_under_way():
    actions = ActionsInFlight(Clock(), 10)
    began(actions, "flood", 10)
    assert actions.remaining(Destination("quiet", "default")) == 5
    began(actions, "quiet", 5)
    assert actions.remaining(Destination("quiet", "default")) == 0


def test_of_many_namespaces_each_may_begin_one():
    actions = ActionsInFlight(Clock(), 10)
    for number in range(50):
        began(actions, f"ns{number}", 1)
    assert actions.remaining(Destination("ns1", "default")) == 0
    assert actions.remaining(Destination("quiet", "default")) == 1


def test_an_ended_action_makes_room_and_a_retry_takes_it_again():
    actions = ActionsInFlight(Clock(), 1)
    key, place = ResourceKey("one", "Shape", "foo"), Destination("one", "default")
    action = _action(key)
    actions.apply(key, ActionDecided(action))
    actions.apply(key, ActionFailed(action.action_id, "Create", 1, ActionError("NotDone", "")))
    assert actions.remaining(place) == 1
    actions.apply(key, ActionRetried(action, 2))
    assert actions.remaining(place) == 0
    actions.apply(key, ActionSucceeded(action.action_id, "Create", 2, None))
    actions.apply(key, ActionSucceeded(action.action_id, "Create", 2, None))
    assert actions.remaining(place) == 1


def test_an_action_whose_end_is_never_seen_is_forgotten():
    clock = Clock()
    actions = ActionsInFlight(clock, 1)
    began(actions, "one", 1)
    clock.now += 61
    assert actions.remaining(Destination("one", "default")) == 1
