"""What the count of an action's deliveries is worth after the server was killed."""

from __future__ import annotations

from nats.aio.client import Client

from infra.bus.actions import JetStreamActionReader
from infra.bus.event_log import JetStreamLog
from infra.jetstream.connection import leave_server
from reconciler.ports import ActionDelivery, ResourceAppend
from tests.bus.histories import new_key
from tests.bus.test_worker import decided


async def test_the_count_of_an_action_is_certain_if_it_was_decided_on_this_connection(
    bus: Client, log: JetStreamLog
) -> None:
    """A server that is killed forgets a delivery of the last milliseconds."""
    reader = JetStreamActionReader(bus)
    await reader.take_from("default", 4)

    async def deliver() -> ActionDelivery:
        key = new_key()
        await log.append([ResourceAppend(key, [decided(key, "Create")], 0)])
        [delivery] = await reader.next_batch()
        await reader.ack([delivery])
        return delivery

    assert (await deliver()).is_count_certain
    await leave_server(bus)
    assert not (await deliver()).is_count_certain, "it may have come before the connection"
    assert (await deliver()).is_count_certain
    await reader.close()
