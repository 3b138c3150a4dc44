"""Poison: a message that always fails is parked with its reason, and a retry ends it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from events.external import ExternalObject
from events.intake import Declared
from events.log import Action, SpecDeclared
from reconciler.resource import decide
from reconciler.roles.objects import oversize
from reconciler.sdk.dead_letters import LetterRefusedError
from shapes_api.kinds.shapes import ShapesProvider
from tests.scenarios.harness import ACTOR, World, manifest, shape
from tests.scenarios.test_poison import FOO, impatient, wait_for_dead_letters

__all__ = ["impatient"]

WHALE = {f"l{number}": "x" * 250 for number in range(12)}


async def test_a_message_that_always_fails_is_parked_and_a_retry_decides_it_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    really = decide.handle_command

    def fails_for_purple(command: Any, *rest: Any) -> Any:
        data = command.data
        if isinstance(data, Declared) and data.manifest.spec.get("color") == "Purple":
            raise ZeroDivisionError("purple is too much")
        return really(command, *rest)

    monkeypatch.setattr(decide, "handle_command", fails_for_purple)
    await world.declare_all(
        [
            manifest("foo", color="Red"),
            manifest("foo", color="Purple"),
            manifest("neighbour"),
            manifest("foo", color="Green"),
        ]
    )

    await world.until_outcome("neighbour", "Converged")
    await world.until_outcome("foo", "Converged", generation=2)
    (letter,) = await wait_for_dead_letters(world, resource=FOO)
    assert (letter.record.stage, letter.sender, letter.state) == ("decision", ACTOR, "Open")
    assert (
        letter.record.reason
        == "processing the resource failed: ZeroDivisionError: purple is too much"
    )
    declared = [
        each.fields["color"] for each in await world.facts("foo") if isinstance(each, SpecDeclared)
    ]
    assert declared == ["Red", "Green"]
    assert (await world.outcomes(FOO))[-1].outcome in ("Converged", "Rejected")

    monkeypatch.setattr(decide, "handle_command", really)
    with pytest.raises(LetterRefusedError, match="newer declaration or withdrawal by team-a"):
        await world.client.retry_dead_letter(letter)
    assert await world.client.dead_letters() == [letter]


async def test_a_retry_decides_what_was_parked_once_the_cause_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_inputs: Any) -> Any:
        raise ZeroDivisionError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(decide, "handle_command", fails)
        await world.declare("foo")
        (letter,) = await wait_for_dead_letters(world, resource=FOO)

    retried = await world.client.retry_dead_letter(letter)

    assert retried.reply is not None
    assert (retried.reply.reason, retried.reply.generation) == ("Accepted", 1)
    await world.until_outcome("foo", "Converged", generation=1)
    assert await world.client.dead_letters() == []
    (handled,) = await world.client.dead_letters(only_open=False)
    assert (handled.state, handled.handled[0].by, handled.handled[0].position) == (
        "Retried",
        ACTOR,
        retried.position,
    )
    with pytest.raises(LetterRefusedError, match="it was already retried by team-a"):
        await world.client.retry_dead_letter(handled)
    again = await world.client.retry_dead_letter(handled, force=True)
    assert again.reply is not None
    assert (again.reply.reason, again.position > retried.position) == ("Duplicate", True)
    assert await world.human.effects("foo") == ["POST"]


async def test_a_provider_that_always_raises_degrades_its_resource_and_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    really = ShapesProvider.create

    async def raises(self: ShapesProvider, action: Action) -> Any:
        if action.external_name == "foo":
            raise ZeroDivisionError("x" * 100_000)
        return await really(self, action)

    with monkeypatch.context() as patch:
        patch.setattr(ShapesProvider, "create", raises)
        await world.declare_all([manifest("foo"), manifest("neighbour")])
        await world.until_outcome("neighbour", "Converged")
        degraded = await world.until_outcome("foo", "Degraded")
    assert degraded.message.startswith("ZeroDivisionError: xxx")
    await world.until_outcome("foo", "Converged")


async def test_an_object_too_long_to_be_observed_is_reported_once_and_the_rest_is_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(oversize, "MAX_OBJECT_BYTES", 2_000)
    await world.human.create("whale", labels=WHALE)
    await world.human.create("minnow")

    await world.until_outcome("minnow", "Unowned")
    await world.until_observed_again(3)
    await world.restart_reconciler()
    await world.until_observed_again(2)

    (letter,) = await world.client.dead_letters()
    assert (letter.record.stage, letter.resource) == ("observation", shape("whale"))
    assert "object 'whale' of 'default': its 3" in letter.record.reason
    observed_object = msgspec.json.decode(letter.payload, type=ExternalObject)
    assert observed_object.labels == WHALE

    await world.human.update("whale", labels={**WHALE, "one": "more"})
    await wait_for_dead_letters(world, 2)
