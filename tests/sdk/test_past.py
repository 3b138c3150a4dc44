"""A history that the `eventsourcing` library reads matches our own fold of the log."""

import asyncio

import pytest
from eventsourcing.application import AggregateNotFoundError
from eventsourcing.persistence import InterfaceError, NotSupportedError

from infra.eventstore.bus import RunningLoop
from infra.jetstream.connection import close, connect
from reconciler.resource.evolve import fold
from reconciler.sdk import Client
from reconciler.sdk.history import History, ResourceLog, project
from tests.sdk.conftest import Stack, shape


async def create_history(client: Client, name: str) -> None:
    """Create, change and withdraw a resource."""
    for color in ("Red", "Blue"):
        reply = await client.declare(shape(name, color))
        await client.wait_for(shape(name).key, generation=reply.generation)
    reply = await client.withdraw(shape(name).key)
    await client.wait_for(shape(name).key, generation=reply.generation)


async def test_every_version_in_the_repository_equals_our_fold_up_to_it(
    stack: Stack, client: Client, name: str
) -> None:
    await create_history(client, name)
    history = await client.history(shape(name).key)
    expected = [fold([each.event for each in history[:end]]) for end in range(1, len(history) + 1)]

    def read_every_version() -> list[object]:
        log = ResourceLog(env={"NATS_URL": stack.bus_url})
        with pytest.raises(AggregateNotFoundError):
            log.repository.get("default/Shape/never", projector_func=project)
        with pytest.raises(NotSupportedError, match="declare resources instead"):
            log.events.put(history)
        states = [
            log.repository.get(str(shape(name).key), version=version, projector_func=project)
            for version in range(1, len(history) + 1)
        ]
        newest = log.repository.get(str(shape(name).key), projector_func=project)
        log.close()
        assert newest == states[-1]
        assert [past.version for past in states] == list(range(1, len(history) + 1))
        assert [list(past.events) for past in states] == [
            history[:version] for version in range(1, len(history) + 1)
        ]
        return [past.state for past in states]

    assert await asyncio.to_thread(read_every_version) == expected
    assert len(expected) > 6


async def test_a_connected_program_reads_over_its_own_connection(
    stack: Stack, client: Client, name: str
) -> None:
    await create_history(client, name)
    nc = await connect(stack.bus_url, name="test")
    past = await History(nc).get(shape(name).key)
    early = await History(nc).get(shape(name).key, version=2)
    nothing = await History(nc).get(shape("never").key)
    await close(nc)

    assert list(past.events) == await client.history(shape(name).key)
    assert past.damage is None
    assert (early.version, early.events) == (2, past.events[:2])
    assert (nothing.version, nothing.events) == (0, ())


async def test_an_event_loop_does_not_wait_for_itself() -> None:
    with pytest.raises(InterfaceError, match=r"asyncio\.to_thread"):
        RunningLoop().call(asyncio.sleep(0))
