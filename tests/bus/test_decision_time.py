"""The CPU time that the decisions in a batch may take."""

from __future__ import annotations

from events.names import ResourceKey
from reconciler.roles.decider.decision_time import DecisionTime

SLOW, QUICK = (ResourceKey(namespace, "Shape", "foo") for namespace in ("slow", "quick"))


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def spend(time: DecisionTime, clock: Clock, key: ResourceKey, seconds: float) -> None:
    started_at = clock()
    clock.seconds += seconds
    time.add(key.namespace, started_at)


def test_the_resources_of_a_namespace_that_used_a_lot_of_time_come_last():
    clock = Clock()
    time = DecisionTime(clock)
    time.begin(0.03, ["slow", "quick"])
    assert time.order([SLOW, QUICK]) == [SLOW, QUICK]
    spend(time, clock, SLOW, 0.4)
    spend(time, clock, QUICK, 0.0001)
    assert time.is_used_up("quick")
    for _ in range(4):
        time.begin(0.03, ["slow", "quick"])
        assert time.order([SLOW, QUICK]) == [QUICK, SLOW]
        assert not time.is_used_up("quick")
    for _ in range(4):
        time.begin(0.03, ["slow", "quick"])
    assert time.order([SLOW, QUICK]) == [SLOW, QUICK], "it has used none for a while"
