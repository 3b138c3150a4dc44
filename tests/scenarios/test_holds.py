"""Scenarios 17 and 18: other clients hold a resource or reference it."""

from __future__ import annotations

from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from tests.scenarios.harness import World, shape

INVOICE = "billing/last-invoice"
NEEDS_FOO = ResourceKey("default", "ShapeRef", "needs-foo")


def reference(on_withdrawal: str) -> Manifest:
    spec = {"target": {"kind": "Shape", "name": "foo"}, "onWithdrawal": on_withdrawal}
    return Manifest("reconciler/v1", "ShapeRef", Metadata("needs-foo"), spec)


async def declare_and_converge(world: World) -> None:
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")


async def test_17_a_withdrawn_resource_keeps_its_object_until_its_finalizer_is_removed(
    world: World,
):
    await declare_and_converge(world)
    async with world.client_as("billing") as billing:
        await billing.request_finalizer(shape("foo"), INVOICE)

        await world.withdraw("foo")

        held = await world.until_outcome("foo", "Held", reason="Finalizers")
        assert f"{INVOICE} (set by billing)" in held.message
        await world.restart_reconciler()
        await world.until_observed_again()
        assert await world.human.effects("foo") == ["POST"]
        await billing.release_finalizer(shape("foo"), INVOICE)

    await world.until_outcome("foo", "Deleted")
    assert await world.human.effects("foo") == ["POST", "DELETE"]


async def test_18_a_reference_keeps_its_withdrawn_target(world: World):
    await declare_and_converge(world)
    await world.client.declare(reference("Keep"))
    await world.until_outcome(NEEDS_FOO, "Converged", reason="Resolved")
    await world.until(lambda: is_referenced(world), "the target lists its reference")

    await world.withdraw("foo")

    await world.until_outcome("foo", "Held", reason="Referenced")
    dangling = await world.until_outcome(NEEDS_FOO, "Held", reason="Dangling")
    assert "default/Shape/foo is not declared" in dangling.message
    assert await world.human.effects("foo") == ["POST"]
    await world.client.withdraw(NEEDS_FOO)
    await world.until_outcome("foo", "Deleted")


async def is_referenced(world: World) -> bool:
    status = await world.status("foo")
    return status is not None and bool(status.references)
