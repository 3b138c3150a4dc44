"""Scenario 27: an unusable message becomes a dead letter with the reason; others continue."""

from __future__ import annotations

import msgspec
import pytest

from events.log import OutcomeRecorded
from tests.scenarios.harness import World, manifest
from tests.scenarios.test_unusable import (
    CASES,
    CASES_ON_SERVER,
    FOO,
    check_dead_letter,
    message_with_unknown_field,
)


@pytest.mark.parametrize("case", [each for each in CASES if each not in CASES_ON_SERVER])
async def test_27_an_unusable_message_becomes_a_dead_letter_and_its_publisher_gets_a_reply(
    world: World, case: str
):
    await check_dead_letter(world, case)


async def test_27_a_refused_declaration_is_reported_on_the_outcome_stream_and_changes_nothing(
    world: World,
):
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged", generation=1)
    position = await world.log_position()

    await world.ask_raw(FOO, message_with_unknown_field())

    rejected = await world.until_outcome("foo", "Rejected")
    assert (rejected.generation, rejected.reason) == (1, "Invalid")
    assert "spec.colour: unknown field" in rejected.message
    assert await world.log_position() == position
    recorded = [each for each in await world.facts("foo") if isinstance(each, OutcomeRecorded)]
    assert [each.outcome for each in recorded] == ["Converged"]


async def test_27_a_manifest_published_without_an_envelope_is_accepted(world: World):
    payload = msgspec.json.encode(manifest("foo"))
    reply = await world.ask_raw(FOO, payload)

    assert (reply.accepted, reply.reason) == (True, "Accepted")
    await world.until_outcome("foo", "Converged")
