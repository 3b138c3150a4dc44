"""No tenant can suppress another's message by publishing under the same id (ADR 0059)."""

from __future__ import annotations

import json

from nats.aio.client import Client

from events.log import ActionSucceeded
from infra.bus.streams import INTAKE
from infra.jetstream.publish import publish
from tests.security.guarded import Guarded, shape


async def declare_raw(nc: Client, namespace: str, name: str, message_id: str) -> bool:
    """Declare a shape without the SDK; return whether the stream dropped it as a duplicate."""
    manifest = {
        "apiVersion": "shapes/v1",
        "kind": "Shape",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"type": "Square", "color": "Red"},
    }
    ack = await publish(
        nc,
        f"rec.desired={namespace}.{namespace}.Shape.{name}",
        json.dumps(manifest).encode(),
        msg_id=message_id,
    )
    assert ack.stream == INTAKE
    return ack.duplicate


async def test_46_services_may_use_the_same_id(guarded: Guarded, name: str) -> None:
    for namespace in ("acme", "other"):
        async with guarded.bus_as(namespace) as nc:
            assert not await declare_raw(nc, namespace, f"{name}-{namespace}", "order-1")
    for namespace in ("acme", "other"):
        async with guarded.sdk_as(namespace) as client:
            outcome = await client.wait_for(f"{namespace}/Shape/{name}-{namespace}", generation=1)
            assert outcome.outcome == "Converged"


async def test_46_a_service_cannot_suppress_another_services_result(
    guarded: Guarded, name: str
) -> None:
    """Result ids are predictable: they consist of the action, the attempt and the worker."""
    victim = f"other/Shape/{name}"
    async with guarded.sdk_as("other") as service, guarded.sdk_as("operator") as operator:
        await service.declare(shape("other", name))
        await service.wait_for(victim, generation=1)
        history = [each.event for each in await operator.history(victim)]
        worker = next(each.actor for each in history if isinstance(each.data, ActionSucceeded))
        newest = history[-1].resourceversion
        async with guarded.bus_as("acme") as nc:
            for version in range(newest + 1, newest + 8):
                await declare_raw(nc, "acme", f"{name}-acme", f"{victim}@{version}:1:{worker}:Done")
        await service.declare(shape("other", name, "Blue"))
        assert (await service.wait_for(victim, generation=2)).outcome == "Converged"


async def test_a_repeated_id_creates_one_generation(guarded: Guarded, name: str) -> None:
    async with guarded.bus_as("acme") as nc:
        for _ in range(2):
            assert not await declare_raw(nc, "acme", name, f"{name}-1")
    async with guarded.sdk_as("acme") as service, guarded.sdk_as("operator") as operator:
        await service.wait_for(f"acme/Shape/{name}", generation=1)
        await service.declare(shape("acme", name, "Blue"))
        assert (await service.wait_for(f"acme/Shape/{name}", generation=2)).outcome == "Converged"
        history = [each.event for each in await operator.history(f"acme/Shape/{name}")]
        assert sum(each.type.endswith(".SpecDeclared") for each in history) == 2
