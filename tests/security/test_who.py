"""Only the server's authentication determines the sender of a message."""

from __future__ import annotations

from pathlib import Path

from nats.aio.client import Client

from events.names import ResourceKey
from events.subjects import actor, intake, user_of
from infra.bus.intake import JetStreamIntakeReader
from infra.bus.streams import ensure_topology, find_log
from infra.bus.user import user_of_connection
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import close, connect
from infra.jetstream.publish import publish
from tests.security.guarded import Guarded, shape


async def test_a_services_name_is_in_the_history(guarded: Guarded, name: str) -> None:
    async with guarded.sdk_as("acme") as client:
        await client.declare(shape("acme", name))
        await client.wait_for(f"acme/Shape/{name}", generation=1)
    async with guarded.sdk_as("operator") as client:
        first = (await client.history(f"acme/Shape/{name}"))[0].event
        assert first.actor.startswith("acme=")
        await client.withdraw(f"acme/Shape/{name}")
        await client.wait_for(f"acme/Shape/{name}", generation=2)
        newest = [each.event for each in await client.history(f"acme/Shape/{name}")]
        assert any(each.actor.startswith("operator=") for each in newest)


async def test_a_user_finds_its_name_with_its_own_permissions(guarded: Guarded) -> None:
    for user in ("acme", "operator"):
        async with guarded.bus_as(user) as nc:
            assert await user_of_connection(nc) == user
    async with guarded.bus_as("decider") as nc:
        assert await user_of_connection(nc) == ""


async def test_no_name_is_accepted_without_authentication(tmp_path: Path) -> None:
    server = EmbeddedServer()
    await server.start(tmp_path)
    nc: Client = await connect(server.url, name="test")
    await ensure_topology(nc)
    assert await user_of_connection(nc) == ""
    key = ResourceKey("default", "Shape", "foo")
    subject = intake("desired", key, "ann")
    await publish(nc, subject, b"{}")
    reader = JetStreamIntakeReader(nc, await find_log(nc))
    [delivery] = await reader.next_batch()
    assert (user_of(delivery.subject), delivery.user) == ("ann", "")
    await reader.close()
    await close(nc)
    await server.stop()


def test_a_source_that_looks_authenticated_is_anonymous() -> None:
    assert actor("ann", "cli:root") == "ann=cli:root"
    assert actor("", "cli:root") == "cli:root"
    assert actor("", "ann=cli:root") == "anonymous=ann=cli:root"
