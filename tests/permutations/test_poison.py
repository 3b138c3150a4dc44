"""A message that always fails becomes a dead letter with its reason; a retry resolves it."""

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
from tests.scenarios.test_poison import FOO, short_retry_delay, wait_for_dead_letters

__all__ = ["short_retry_delay"]

WHALE = {f"l{number}": "x" * 250 for number in range(12)}


async def test_a_message_that_always_fails_becomes_a_dead_letter_after_its_retries(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    original = decide.handle_command

    def fail_for_purple(command: Any, *rest: Any) -> Any:
        data = command.data
        if isinstance(data, Declared) and data.manifest.spec.get("color") == "Purple":
            raise ZeroDivisionError("purple is too much")
        return original(command, *rest)

    monkeypatch.setattr(decide, "handle_command", fail_for_purple)
    await world.declare_all(
        [
            manifest("foo", color="Red"),
            manifest("foo", color="Purple"),
            manifest("neighbor"),
            manifest("foo", color="Green"),
        ]
    )

    await world.until_outcome("neighbor", "Converged")
    await world.until_outcome("foo", "Converged", generation=2)
    (letter,) = await wait_for_dead_letters(world, resource=FOO)
    assert (letter.record.stage, letter.sender, letter.state) == ("decision", ACTOR, "Open")
    assert (
        letter.record.reason
        == "failed to process the resource: ZeroDivisionError: purple is too much"
    )
    declared = [
        each.fields["color"] for each in await world.facts("foo") if isinstance(each, SpecDeclared)
    ]
    assert declared == ["Red", "Green"]
    assert (await world.outcomes(FOO))[-1].outcome in ("Converged", "Rejected")

    monkeypatch.setattr(decide, "handle_command", original)
    with pytest.raises(LetterRefusedError, match="newer declaration or withdrawal by team-a"):
        await world.client.retry_dead_letter(letter)
    assert await world.client.dead_letters() == [letter]


async def test_retrying_a_dead_letter_succeeds_once_the_cause_is_fixed(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_inputs: Any) -> Any:
        raise ZeroDivisionError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(decide, "handle_command", fail)
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
    original = ShapesProvider.create

    async def fail_for_foo(self: ShapesProvider, action: Action) -> Any:
        if action.external_name == "foo":
            raise ZeroDivisionError("x" * 100_000)
        return await original(self, action)

    with monkeypatch.context() as patch:
        patch.setattr(ShapesProvider, "create", fail_for_foo)
        await world.declare_all([manifest("foo"), manifest("neighbor")])
        await world.until_outcome("neighbor", "Converged")
        degraded = await world.until_outcome("foo", "Degraded")
    assert degraded.message.startswith("ZeroDivisionError: xxx")
    await world.until_outcome("foo", "Converged")


async def test_an_oversized_object_is_reported_once_and_the_others_are_observed(
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
