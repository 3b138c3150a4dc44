"""The reliability of an action's delivery count after the server was killed."""

from __future__ import annotations

import pytest
from nats.aio.client import Client

from infra.bus.actions import JetStreamActionReader
from infra.bus.event_log import JetStreamLog
from infra.jetstream.connection import leave_server
from infra.jetstream.errors import BusRefusedError
from reconciler.ports import ActionDelivery, QueueRefusedError, ResourceAppend
from tests.bus.histories import new_key
from tests.bus.test_worker import action_event


async def test_an_actions_delivery_count_is_certain_if_it_was_decided_on_this_connection(
    bus: Client, log: JetStreamLog
) -> None:
    """A killed server loses its record of deliveries from the last milliseconds."""
    reader = JetStreamActionReader(bus)
    await reader.add_queue("default", 4)

    async def deliver() -> ActionDelivery:
        key = new_key()
        await log.append([ResourceAppend(key, [action_event(key, "Create")], 0)])
        [delivery] = await reader.next_batch()
        await reader.ack([delivery])
        return delivery

    assert (await deliver()).is_count_certain
    await leave_server(bus)
    assert not (await deliver()).is_count_certain, "the action may be older than the connection"
    assert (await deliver()).is_count_certain
    await reader.close()


async def test_a_queue_beyond_the_accounts_limits_is_refused_with_its_own_error(
    bus: Client, log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_anything: object) -> str:
        raise BusRefusedError("maximum consumers limit reached", code=400, err_code=10026)

    monkeypatch.setattr("infra.bus.actions.ensure_worker_consumer", refuse)
    reader = JetStreamActionReader(bus)
    with pytest.raises(QueueRefusedError, match="maximum consumers"):
        await reader.add_queue(log.log_id, 4)
