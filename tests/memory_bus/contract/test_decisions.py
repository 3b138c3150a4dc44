"""A decider's messages other than its events: timers, replies, rejections, dead letters."""

from __future__ import annotations

from datetime import timedelta

from events.envelope import decode_intake
from events.intake import Reply, TimerFired
from events.names import ResourceKey
from reconciler.ports import DeadLetter, IntakeDelivery, Rejection, TimerRequest
from tests.bus.histories import new_key
from tests.memory_bus.contract.buses import Bus

SOON = timedelta(seconds=1)


def dead_letter(position: int, *, dedup_key: str = "", content: str = "") -> DeadLetter:
    delivery = IntakeDelivery(position, "in.0.desired.acme.Shape.x", b"x", "", None, 1, None)
    return DeadLetter("intake", "unusable", delivery, dedup_key, content)


async def wait_for_timers(bus: Bus, expected: int) -> list[tuple[str, str]]:
    """Return the resource and purpose of this many timers as they fire; one may fire twice."""
    intake = bus.reading(bus.intake_reader())
    fired_timers: set[tuple[str, str]] = set()
    while len(fired_timers) < expected:
        [each, *others] = await intake.wait_for(1)
        await intake.reader.ack([each])
        await intake.reader.retry_later(others, 0.0)
        tokens = each.subject.split(".")
        data = decode_intake(each.payload, expected="timer", fallback_id="").data
        assert tokens[2] == "timer"
        assert isinstance(data, TimerFired)
        fired_timers.add((".".join(tokens[3:]), data.purpose))
    return sorted(fired_timers)


async def test_a_timer_fires_once_when_it_is_due(bus: Bus) -> None:
    key = new_key()
    due = bus.now() + SOON
    await bus.sink.set_timers([TimerRequest(key, due)])
    assert await wait_for_timers(bus, 1) == [(key.tokens, "Retry")]
    assert bus.now() >= due


async def test_each_resource_has_its_own_timer_for_each_purpose(bus: Bus) -> None:
    own_key = new_key()
    twins = [
        own_key,
        ResourceKey("other", own_key.kind, own_key.name),
        ResourceKey("default", "Record", own_key.name),
    ]
    # Timers of one resource that fire at the same moment may arrive as one.
    soon, later = bus.now() + SOON, bus.now() + 2 * SOON
    await bus.sink.set_timers([TimerRequest(key, soon, "Retry") for key in twins])
    await bus.sink.set_timers([TimerRequest(key, later, "Renewal") for key in twins])
    expected = [(key.tokens, purpose) for key in twins for purpose in ("Renewal", "Retry")]
    assert await wait_for_timers(bus, 6) == sorted(expected)


async def test_a_newer_timer_replaces_the_previous_one(bus: Bus) -> None:
    key = new_key()
    await bus.sink.set_timers([TimerRequest(key, bus.now() + SOON)])
    later = bus.now() + 2 * SOON
    await bus.sink.set_timers([TimerRequest(key, later)])
    assert await wait_for_timers(bus, 1) == [(key.tokens, "Retry")]
    assert bus.now() >= later


async def test_a_timer_in_the_past_fires_immediately(bus: Bus) -> None:
    key = new_key()
    await bus.sink.set_timers([TimerRequest(key, bus.now() - SOON)])
    assert await wait_for_timers(bus, 1) == [(key.tokens, "Retry")]


async def test_a_reply_arrives_in_its_inbox(bus: Bus) -> None:
    subject, future = await bus.inbox()
    other_inbox, other_future = await bus.inbox()
    reply = Reply(True, "Accepted", 1, 7, "")
    await bus.sink.send_replies([(subject, reply), (f"{other_inbox}.gone", reply)])
    assert await future == reply
    assert not other_future.done()


async def test_each_rejection_is_stored_once(bus: Bus) -> None:
    """A decider that dies before its acknowledgment rejects the message again."""
    key, other_key = new_key(), new_key()
    for _ in range(2):
        await bus.sink.reject(
            [
                Rejection(key, Reply(False, "Invalid", 0, position, "no"), "test", bus.now())
                for position in (1, 2, 3)
            ]
        )
    assert (await bus.rejections(key), await bus.rejections(other_key)) == (3, 0)


async def test_each_dead_letter_is_stored_once(bus: Bus) -> None:
    for _ in range(2):
        assert not await bus.sink.store_dead_letters([dead_letter(1), dead_letter(2)])
    assert await bus.dead_letters() == [("intake", 1), ("intake", 2)]


async def test_a_message_reported_once_is_not_repeated_while_its_content_is_unchanged(
    bus: Bus,
) -> None:
    for position, content in enumerate(("a", "a", "b"), start=1):
        unchanged = dead_letter(position, dedup_key="x", content=content)
        assert not await bus.sink.store_dead_letters([unchanged])
    assert await bus.dead_letters() == [("intake", 1), ("intake", 3)]


async def test_dead_letters_that_do_not_fit_are_returned(bus: Bus) -> None:
    dead_letters = [dead_letter(position) for position in range(1, 5)]
    await bus.sink.store_dead_letters(dead_letters[:1])
    await bus.set_remaining_capacity("DEADLETTERS", 1)
    waiting = await bus.sink.store_dead_letters(dead_letters[1:])
    assert [each.delivery.position for each in waiting] == [3, 4]
    await bus.set_remaining_capacity("DEADLETTERS", None)
    assert not await bus.sink.store_dead_letters(waiting)
    assert len(await bus.dead_letters()) == 4


async def test_messages_without_a_dead_letter_are_counted(bus: Bus) -> None:
    await bus.sink.discard([dead_letter(1), dead_letter(2)])
    await bus.sink.discard([dead_letter(3)])
    assert (await bus.discarded(), await bus.dead_letters()) == (3, [])
