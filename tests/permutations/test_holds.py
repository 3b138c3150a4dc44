"""Scenarios 17 and 18: other clients hold a resource or reference it; an implausible loss."""

from __future__ import annotations

import uuid

from events.intake import FinalizerReleased, FinalizerRequested
from events.log import FinalizerRemoved, HoldApproved, OwnershipReleased, ReleaseForced
from tests.scenarios.harness import World, api_config, manifest, only, shape
from tests.scenarios.test_holds import (
    INVOICE,
    NEEDS_FOO,
    declare_and_converge,
    is_referenced,
    reference,
)


async def test_17_a_forced_release_is_an_event_with_an_actor(world: World):
    await declare_and_converge(world)
    async with world.client_as("billing") as billing:
        await billing.request_finalizer(shape("foo"), INVOICE)
    await world.withdraw("foo")
    await world.until_outcome("foo", "Held", reason="Finalizers")

    async with world.client_as("cli:ann") as ann:
        await ann.force_release_many([shape("foo")], reason="billing is shut down")

    await world.until_outcome("foo", "Deleted")
    (forced,) = [e for e in await world.history("foo") if isinstance(e.data, ReleaseForced)]
    assert forced.actor == "cli:ann"


async def test_17_only_its_holder_removes_a_finalizer_unless_forced(world: World):
    await declare_and_converge(world)
    reply = await world.ask_as("billing", shape("foo"), FinalizerRequested(INVOICE))
    assert reply.accepted
    refused = await world.ask_as("shop", shape("foo"), FinalizerReleased(INVOICE))
    assert refused.reason == "HeldByAnother"
    forced = await world.ask_as("shop", shape("foo"), FinalizerReleased(INVOICE, True, "late"))
    assert forced.accepted
    assert only(FinalizerRemoved, await world.facts("foo")).forced


async def test_18_a_reference_with_policy_release_releases_its_target_and_dangles(world: World):
    await declare_and_converge(world)
    await world.client.declare(reference("Release"))
    await world.until(lambda: is_referenced(world), "the target lists its reference")

    await world.withdraw("foo")

    await world.until_outcome("foo", "Released")
    await world.until_outcome(NEEDS_FOO, "Held", reason="Dangling")
    assert only(OwnershipReleased, await world.facts("foo")).reason == "Orphaned"
    assert await world.human.effects("foo") == ["POST", "PUT"]  # our label is removed


async def test_18_a_reference_with_policy_ignore_permits_deletion_and_dangles(
    world: World,
):
    await declare_and_converge(world)
    await world.client.declare(reference("Ignore"))
    await world.until(lambda: is_referenced(world), "the target lists its reference")

    await world.withdraw("foo")

    await world.until_outcome("foo", "Deleted")
    await world.until_outcome(NEEDS_FOO, "Held", reason="Dangling")


async def test_18_a_reference_dangles_until_its_target_is_declared(world: World):
    await world.client.declare(reference("Keep"))
    await world.until_outcome(NEEDS_FOO, "Held", reason="Dangling")
    await world.declare("foo")
    await world.until_outcome(NEEDS_FOO, "Converged", reason="Resolved")


async def test_a_listing_of_an_empty_api_recreates_nothing_before_approval(
    world: World, empty_api_url: str
):
    """An operator changed the endpoint to another API, or the API lost its data."""
    names = [f"foo-{number:02}" for number in range(12)]
    await world.declare_all([manifest(name) for name in names])
    for name in names:
        await world.until_outcome(name, "Converged")

    await world.configure(api_config(empty_api_url))

    for name in names:
        await world.until_outcome(name, "Held", reason="LossGuard")
    await world.until_observed_again()
    assert await world.human.effects() == ["POST"] * 12
    await world.client.approve_many([shape("foo-00")], hold="LossGuard", reason=uuid.uuid4().hex)
    await world.until_outcome("foo-00", "Converged")
    assert only(HoldApproved, await world.facts("foo-00")).hold == "LossGuard"

    await world.configure(api_config(world.human.url))  # the original API, with all objects

    for name in names[1:]:
        await world.until_outcome(name, "Converged")
    assert await world.human.effects() == ["POST"] * 12
