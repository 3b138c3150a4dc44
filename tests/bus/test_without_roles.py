"""A process without roles: it serves servers, and knows nothing that could become untrue."""

from nats.aio.client import Client

from infra.bus.streams import SHAPES, WORKERS
from infra.jetstream.connection import api_request
from reconciler.wiring import initialise, running


async def _consumers(bus: Client) -> list[str]:
    return (await api_request(bus, f"CONSUMER.NAMES.{SHAPES}", {}))["consumers"]


async def test_without_roles_nothing_follows_the_log_which_may_be_restored_meanwhile(
    bus: Client,
) -> None:
    await initialise(bus)
    async with running(bus, ()):
        assert await _consumers(bus) == [WORKERS]
    async with running(bus, ("projector",)):
        assert len(await _consumers(bus)) == 2
