"""Poison: a message that always fails is parked with its reason, and a retry ends it."""

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
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be decided is parked within a second; tracebacks are as the product's."""
    monkeypatch.setattr(decider, "_FIRST_DELAY_SECONDS", 0.05)
    configure_logs("error")


async def wait_for_dead_letters(world: World, count: int = 1, **filters: Any) -> list[DeadLetter]:
    async def are_there() -> list[DeadLetter] | None:
        dead_letters = await world.client.dead_letters(**filters)
        return dead_letters if len(dead_letters) >= count else None

    return await world.until(are_there, f"{count} dead letters")


async def test_a_resource_whose_history_cannot_be_read_holds_up_no_other_decision(world: World):
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await publish(world.nc, log(FOO, "fact"), b"of a newer release")
    await world.restart_reconciler()

    await world.declare_all([manifest("foo", color="Green"), manifest("neighbour")])

    await world.until_outcome("neighbour", "Converged")


async def test_an_event_that_the_bus_cannot_take_is_parked_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """A short message whose event is longer than the server allows: numbers may be written so."""
    really = encode_log

    def longer(told: LogEvent) -> bytes:
        swollen = isinstance(told.data, SpecDeclared) and told.data.fields["color"] == "Purple"
        return really(told) + b" " * (9 * 1024 * 1024 if swollen else 0)

    monkeypatch.setattr("infra.bus.event_log.encode_log", longer)
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


async def test_an_action_that_cannot_be_read_is_reported_once_and_left_to_other_workers(
    world: World,
):
    await publish(world.nc, log(FOO, "action.default"), b"of a newer release")
    action = Action("default/Shape/bar@1", "key", "Delete", 1, "default", "bar", ())
    forged = encode_log(event(shape("bar"), 1, ActionDecided(action)))
    await publish(world.nc, log(shape("baz"), "action.default"), forged)
    outcome = encode_log(event(shape("qux"), 1))
    await publish(world.nc, log(shape("qux"), "action.default"), outcome)
    await world.restart_reconciler()

    await world.declare("neighbour")

    await world.until_outcome("neighbour", "Converged")
    dead_letters = await wait_for_dead_letters(world, 3, stage="action")
    assert {each.record.reason.split(":")[0] for each in dead_letters} == {
        "not a valid log event",
        "the event is for default/Shape/bar, but stored under default/Shape/baz",
        "the event reconciler.resource.OutcomeRecorded is not an action",
    }
    workers = await worker_consumers(world.nc)
    assert (
        sum(each["num_ack_pending"] for each in workers) == 3
    )  # never given up: a newer worker may read them
    with pytest.raises(LetterRefusedError, match="redelivered to the workers automatically"):
        await world.client.retry_dead_letter(dead_letters[0])


async def test_nothing_is_sent_that_is_too_long_and_nothing_reconnects(world: World):
    too_long = encode_intake("m", ACTOR, Declared(manifest("foo", color="R" * 600_000)), time=now())
    assert len(too_long) > MAX_MESSAGE_BYTES

    answer = await world.ask_raw(intake("desired", FOO), too_long)
    await world.declare("neighbour")

    await world.until_outcome("neighbour", "Converged")
    assert "bytes, more than the limit of 524288" in answer.message
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
