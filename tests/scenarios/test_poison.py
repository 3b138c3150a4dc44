"""A message that always fails becomes a dead letter with its reason; a retry resolves it."""

from __future__ import annotations

from typing import Any

import pytest

from events.envelope import MAX_MESSAGE_BYTES, encode_intake, encode_log
from events.intake import Declared
from events.log import Action, ActionDecided, LogEvent, SpecDeclared
from events.subjects import intake, log
from infra.bus.streams import worker_consumers
from infra.jetstream.publish import publish
from reconciler.cli.process_logs import configure_logs
from reconciler.roles.decider import decider
from reconciler.sdk.dead_letters import DeadLetter, LetterRefusedError
from tests.bus.histories import event
from tests.scenarios.harness import ACTOR, World, manifest, now, shape

FOO = shape("foo")


@pytest.fixture(autouse=True)
def short_retry_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that cannot be decided become dead letters in a second; logs are set up as usual."""
    monkeypatch.setattr(decider, "_FIRST_DELAY_SECONDS", 0.05)
    configure_logs("error")


async def wait_for_dead_letters(world: World, count: int = 1, **filters: Any) -> list[DeadLetter]:
    async def are_stored() -> list[DeadLetter] | None:
        dead_letters = await world.client.dead_letters(**filters)
        return dead_letters if len(dead_letters) >= count else None

    return await world.until(are_stored, f"{count} dead letters")


async def test_an_unreadable_history_does_not_delay_other_resources(world: World):
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await publish(world.nc, log(FOO, "fact"), b"from a newer release")
    await world.restart_reconciler()

    await world.declare_all([manifest("foo", color="Green"), manifest("neighbor")])

    await world.until_outcome("neighbor", "Converged")


async def test_only_an_event_too_large_for_the_bus_is_dead_lettered(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """A short message can lead to an event that is longer than the server allows."""
    original = encode_log

    def encode_longer(event: LogEvent) -> bytes:
        is_longer = isinstance(event.data, SpecDeclared) and event.data.fields["color"] == "Purple"
        return original(event) + b" " * (9 * 1024 * 1024 if is_longer else 0)

    monkeypatch.setattr("infra.bus.event_log.encode_log", encode_longer)
    names = [f"n{number}" for number in range(6)]
    await world.declare_all(
        [manifest("foo", color="Purple"), *map(manifest, names), manifest("foo", color="Green")]
    )

    for name in (*names, "foo"):
        await world.until_outcome(name, "Converged")
    (letter,) = await wait_for_dead_letters(world)
    assert (letter.resource, letter.record.stage) == (FOO, "decision")
    assert "max_payload" in letter.record.reason
    assert (await world.human.get("foo"))["color"] == "Green"


async def test_an_unreadable_action_is_reported_once_and_left_to_other_workers(
    world: World,
):
    await publish(world.nc, log(FOO, "action.default"), b"from a newer release")
    action = Action("default/Shape/bar@1", "key", "Delete", 1, "default", "bar", ())
    forged = encode_log(event(shape("bar"), 1, ActionDecided(action)))
    await publish(world.nc, log(shape("baz"), "action.default"), forged)
    outcome = encode_log(event(shape("qux"), 1))
    await publish(world.nc, log(shape("qux"), "action.default"), outcome)
    await world.restart_reconciler()

    await world.declare("neighbor")

    await world.until_outcome("neighbor", "Converged")
    dead_letters = await wait_for_dead_letters(world, 3, stage="action")
    assert {each.record.reason.split(":")[0] for each in dead_letters} == {
        "not a valid log event",
        "the event is for default/Shape/bar, but stored under default/Shape/baz",
        "the event reconciler.resource.OutcomeRecorded is not an action",
    }
    workers = await worker_consumers(world.nc)
    assert (
        sum(each["num_ack_pending"] for each in workers) == 3
    )  # never dropped: a newer worker may be able to read them
    with pytest.raises(LetterRefusedError, match="redelivered to the workers automatically"):
        await world.client.retry_dead_letter(dead_letters[0])


async def test_an_oversized_message_is_never_sent_and_does_not_cause_a_reconnect(world: World):
    too_long = encode_intake("m", ACTOR, Declared(manifest("foo", color="R" * 600_000)), time=now())
    assert len(too_long) > MAX_MESSAGE_BYTES

    reply = await world.ask_raw(intake("desired", FOO), too_long)
    await world.declare("neighbor")

    await world.until_outcome("neighbor", "Converged")
    assert "bytes, more than the limit of 524288" in reply.message
    (letter,) = await world.client.dead_letters()
    assert letter.record.payload_truncated
    with pytest.raises(LetterRefusedError, match="only the start of its 600"):
        await world.client.retry_dead_letter(letter)
    corrected = encode_intake("m", ACTOR, Declared(manifest("foo")), time=now())
    retried = await world.client.retry_dead_letter(letter, payload=corrected)
    assert retried.reply is not None
    assert retried.reply.accepted
    await world.until_outcome("foo", "Converged")
    assert world.reconciler_nc.stats["reconnects"] == world.nc.stats["reconnects"] == 0
