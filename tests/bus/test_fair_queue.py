"""The decider's queue: namespaces take turns, and messages beyond a quota are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from events.names import ResourceKey
from events.subjects import Intake, intake, namespace_of
from reconciler.ports import IntakeDelivery
from reconciler.roles.decider.fair_queue import (
    MAX_BYTES_PER_TURN,
    MAX_MESSAGES_PER_TURN,
    Destination,
    FairQueue,
    ParkedCounts,
    Quota,
    parking_place,
)

LARGE = Quota(messages=100_000, bytes=2**40, all_messages=200_000, all_bytes=2**40, slots=400_000)
SMALL = Quota(messages=10, bytes=1_000, all_messages=20, all_bytes=2_000, slots=40)


def message(
    namespace: str, position: int, *, what: Intake = "desired", size: int = 10, partition: int = 0
) -> IntakeDelivery:
    key = ResourceKey(namespace, "Shape", f"n{position}")
    subject = intake(what, key).replace("rec.", f"in.{partition}.", 1)
    return IntakeDelivery(position, subject, b"x" * size, str(position), None, 1, None)


def filled_queue(messages: Iterable[IntakeDelivery], quota: Quota = LARGE) -> FairQueue:
    queue = FairQueue(quota)
    queue.add(messages)
    return queue


def count_namespaces(messages: Iterable[IntakeDelivery]) -> Counter[str]:
    return Counter(namespace_of(each.subject) for each in messages)


def test_a_namespace_behind_a_flood_is_in_the_next_batch():
    queue = filled_queue(message("flood", position) for position in range(10_000))
    assert len(queue.take()) == MAX_MESSAGES_PER_TURN
    queue.add([message("quiet", 10_001), message("quiet", 10_002)])
    assert count_namespaces(queue.take())["quiet"] == 2


def test_namespaces_share_a_turn_and_the_rest_of_one_goes_to_the_others():
    queue = filled_queue(message(name, n) for n in range(1_000) for name in ("one", "two"))
    queue.add(message("few", n) for n in range(10))
    counts_by_namespace = count_namespaces(queue.take())
    assert counts_by_namespace["few"] == 10
    assert (
        counts_by_namespace["one"]
        == counts_by_namespace["two"]
        == (MAX_MESSAGES_PER_TURN - 10) // 2
    )


def test_long_messages_do_not_fill_the_turn_of_other_namespaces():
    queue = filled_queue(message("long", n, size=MAX_BYTES_PER_TURN // 4) for n in range(100))
    queue.add(message("quiet", n) for n in range(20))
    deliveries = queue.take()
    assert count_namespaces(deliveries)["quiet"] == 20
    assert sum(len(each.payload) for each in deliveries) <= 2 * MAX_BYTES_PER_TURN


def test_more_namespaces_than_a_turn_has_messages_take_turns_in_order():
    names = [f"ns{n}" for n in range(MAX_MESSAGES_PER_TURN + 100)]
    queue = filled_queue(message(name, n) for name in names for n in range(2))
    first, second = count_namespaces(queue.take()), count_namespaces(queue.take())
    assert set(first) == set(names[:MAX_MESSAGES_PER_TURN])
    assert set(names[MAX_MESSAGES_PER_TURN:]) <= set(second)


def test_messages_beyond_the_quota_are_excess():
    queue = filled_queue((message("flood", n) for n in range(15)), SMALL)
    assert [each.position for each in queue.take_excess()] == list(range(10, 15))
    assert not queue.take_excess()
    queue.add([message("quiet", 20), message("flood", 21, partition=1)])
    assert not queue.take_excess(), "the quota is per namespace and partition"


def test_bytes_are_limited_but_one_message_always_fits():
    queue = filled_queue([message("flood", 1, size=5_000), message("flood", 2)], SMALL)
    assert [each.position for each in queue.take_excess()] == [2]


def test_a_redelivered_message_is_not_refused():
    queue = filled_queue((message("flood", n) for n in range(10)), SMALL)
    queue.add([replace(message("flood", 11), delivered=2)])
    assert not queue.take_excess()


def test_messages_from_roles_are_never_refused():
    queue = filled_queue((message("flood", n, what="result") for n in range(50)), SMALL)
    assert not queue.take_excess()


def test_taken_messages_are_no_longer_counted():
    queue = filled_queue((message("flood", n) for n in range(10)), SMALL)
    assert len(queue.take()) == 10
    assert not queue
    queue.add([message("flood", 11)])
    assert not queue.take_excess()


def test_several_flooding_namespaces_do_not_block_a_quiet_one():
    floods = [f"flood{n}" for n in range(5)]
    queue = filled_queue((message(name, n) for n in range(10) for name in floods), SMALL)
    assert len([*queue]) <= SMALL.all_messages + len(floods)
    queue.take_excess()
    queue.add([message("quiet", 100), message("quiet", 101)])
    assert not queue.take_excess()


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 400)), max_size=200
    )
)
def test_nothing_is_lost_and_each_namespace_keeps_its_order(
    drawn: list[tuple[str, int, int]],
):
    messages = [
        message(namespace, position, partition=partition, size=size)
        for position, (namespace, partition, size) in enumerate(drawn)
    ]
    queue = filled_queue(messages, SMALL)
    excess = queue.take_excess()
    deliveries: list[IntakeDelivery] = []
    while queue:
        batch = queue.take()
        assert batch, "a queue with messages returns some"
        deliveries += batch
    assert {each.position for each in (*deliveries, *excess)} == set(range(len(messages)))
    for namespace in "abc":
        own_positions = [
            each.position for each in deliveries if namespace_of(each.subject) == namespace
        ]
        assert own_positions == sorted(own_positions)


def test_a_slow_namespace_continues_where_it_stopped_with_fewer_messages():
    queue = filled_queue(
        [message("slow", position) for position in range(1_000)]
        + [message("quick", position) for position in range(2_000, 2_900)]
    )
    turn = queue.take()
    undecided = [each for each in turn if namespace_of(each.subject) == "slow"][3:]
    queue.put_back(undecided, turn)
    for expected in (3, 6, 12):
        turn = queue.take()
        slow = [each for each in turn if namespace_of(each.subject) == "slow"]
        assert len(slow) == expected
        assert slow[0].position == expected, "in order"
        queue.put_back([], turn)


def test_a_namespace_without_a_decision_is_first_in_the_next_turn():
    queue = filled_queue(message(name, at) for at in range(3) for name in ("a", "b", "c"))
    turn = queue.take()
    queue.put_back([each for each in turn if namespace_of(each.subject) == "c"], turn)
    assert namespace_of(queue.take()[0].subject) == "c"


@given(st.data())
def test_messages_that_are_put_back_keep_their_order_and_are_counted_again(data: st.DataObject):
    names = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=30))
    queue = filled_queue((message(name, at) for at, name in enumerate(names)), SMALL)
    waiting = [each.position for each in queue]
    decided: dict[str, list[int]] = {}
    while queue:
        turn = queue.take()
        done = {
            name: data.draw(st.integers(0, count)) for name, count in count_namespaces(turn).items()
        }
        undecided: list[IntakeDelivery] = []
        for each in turn:
            name = namespace_of(each.subject)
            if done[name]:
                done[name] -= 1
                decided.setdefault(name, []).append(each.position)
            else:
                undecided.append(each)
        if len(undecided) == len(turn):  # a turn decides at least one message
            first = undecided.pop(0)
            decided.setdefault(namespace_of(first.subject), []).append(first.position)
        queue.put_back(undecided, turn)
    assert all(positions == sorted(positions) for positions in decided.values())
    assert sorted(each for positions in decided.values() for each in positions) == sorted(waiting)
    queue.add(message("a", 1_000 + at) for at in range(10))
    assert len(queue.take()) == 10, "no message may still be counted as waiting"


def test_a_turn_ends_when_the_remaining_bytes_are_fewer_than_the_namespaces():
    namespaces = ("one", "two", "three")
    size = MAX_BYTES_PER_TURN // len(namespaces)
    queue = filled_queue(message(name, n, size=size) for n in range(2) for name in namespaces)
    assert count_namespaces(queue.take())["three"] == 1


def test_parked_messages_of_roles_do_not_fill_the_partition():
    queue, none = FairQueue(SMALL), ParkedCounts()
    for namespace, first in (("one", 0), ("two", 5)):
        timers = [message(namespace, first + at, what="timer") for at in range(5)]
        assert queue.can_park(timers[0], none)
        queue.park(Destination(namespace, "default"), timers)
    assert not queue.can_park(message("three", 100, what="timer"), none)
    assert queue.can_park(message("one", 102), none), "declarations have slots of their own"
    queue.resume(Destination("one", "default"), 1)
    assert queue.can_park(message("three", 103, what="timer"), none)


@pytest.mark.parametrize("slots", [1, 3, 20, 16_000])
def test_parked_messages_leave_slots_for_results(slots: int):
    queue, parked = FairQueue(Quota.for_slots(slots)), ParkedCounts()
    for position in range(2 * slots):
        each = message("one", position, what="desired" if position % 2 else "timer")
        if queue.can_park(each, parked):
            parked[parking_place(each)] += 1
    assert parked.total() < slots
