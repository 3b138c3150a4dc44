"""The number of actions that a namespace may begin at an API."""

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


def begin_actions(
    actions: ActionsInFlight, namespace: str, count: int, config: str = "default"
) -> None:
    for number in range(count):
        key = ResourceKey(namespace, "Shape", f"{config}-{number}")
        actions.apply(key, ActionDecided(_action(key, config)))


def _action(key: ResourceKey, config: str = "default") -> Action:
    return Action(f"{key}@1", "key", "Create", 1, config, key.name, (), {}, {})


def test_one_namespace_may_use_all_of_an_apis_capacity():
    actions = ActionsInFlight(Clock(), 10)
    begin_actions(actions, "one", 10)
    assert actions.remaining(Destination("one", "default")) == 0
    assert actions.remaining(Destination("one", "other")) == 10


def test_another_namespace_gets_its_share_while_all_actions_are_in_progress():
    actions = ActionsInFlight(Clock(), 10)
    begin_actions(actions, "flood", 10)
    assert actions.remaining(Destination("quiet", "default")) == 5
    begin_actions(actions, "quiet", 5)
    assert actions.remaining(Destination("quiet", "default")) == 0


def test_each_of_many_namespaces_may_begin_one_action():
    actions = ActionsInFlight(Clock(), 10)
    for number in range(50):
        begin_actions(actions, f"ns{number}", 1)
    assert actions.remaining(Destination("ns1", "default")) == 0
    assert actions.remaining(Destination("quiet", "default")) == 1


def test_an_ended_action_frees_its_slot_and_a_retry_takes_it_again():
    actions = ActionsInFlight(Clock(), 1)
    key, slot = ResourceKey("one", "Shape", "foo"), Destination("one", "default")
    action = _action(key)
    actions.apply(key, ActionDecided(action))
    actions.apply(key, ActionFailed(action.action_id, "Create", 1, ActionError("NotDone", "")))
    assert actions.remaining(slot) == 1
    actions.apply(key, ActionRetried(action, 2))
    assert actions.remaining(slot) == 0
    actions.apply(key, ActionSucceeded(action.action_id, "Create", 2, None))
    actions.apply(key, ActionSucceeded(action.action_id, "Create", 2, None))
    assert actions.remaining(slot) == 1


def test_an_old_action_counts_until_the_log_shows_its_end():
    clock, key = Clock(), ResourceKey("one", "Shape", "default-0")
    actions, slot = ActionsInFlight(clock, 1), Destination("one", "default")
    begin_actions(actions, "one", 1)
    assert not actions.find_old()
    clock.now += 61
    assert actions.find_old() == {f"{key}@1": key}
    actions.renew(f"{key}@1")
    assert not actions.find_old()
    assert actions.remaining(slot) == 0
    actions.end(f"{key}@1")
    assert actions.remaining(slot) == 1
