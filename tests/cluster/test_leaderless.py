"""One node of three acknowledges nothing, and its reads are not trusted."""

import asyncio

import pytest

from infra.bus.streams import LOG
from infra.jetstream.append import append
from infra.jetstream.connection import api_request
from infra.jetstream.errors import AppendConflictError, BusUnavailableError
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.reads import read_subject, stream_state
from reconciler.wiring import open_connection
from tests.cluster.servers import EmbeddedCluster
from tests.cluster.story import until

SUBJECT = "log.default.Shape.foo.event"


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_fault_5_a_minority_acknowledges_nothing_and_its_empty_stream_is_not_trusted(
    cluster: EmbeddedCluster,
) -> None:
    """The remaining node responds "no messages" for a stream that has no leader."""
    async with open_connection(cluster.url_of(0)) as nc:

        async def is_without_leader() -> bool:
            try:
                info = await api_request(nc, f"STREAM.INFO.{LOG}", None, timeout=2)
            except BusUnavailableError:
                return False
            return not info["cluster"].get("leader")

        async def is_appended() -> bool:
            """Append again; a conflict means that an earlier attempt was stored."""
            try:
                await append(nc, [_build_message(first)])
            except BusUnavailableError:
                return False
            except AppendConflictError:
                return True
            return True

        [first] = await append(nc, [_build_message(0)])
        await asyncio.gather(*(cluster.nodes[index].kill() for index in (1, 2)))
        with pytest.raises(BusUnavailableError):
            await append(nc, [_build_message(first)])
        await until(is_without_leader, lambda: "the node still reports a leader")
        with pytest.raises(BusUnavailableError, match="has no leader at the moment"):
            await stream_state(nc, LOG)
        await asyncio.gather(*(cluster.start_node(index) for index in (1, 2)))
        await until(is_appended, lambda: "not appended")
        assert len(await read_subject(nc, LOG, SUBJECT)) == 2


def _build_message(position: int) -> OutgoingMessage:
    return OutgoingMessage(SUBJECT, b"{}", None, "log.default.Shape.foo.>", position)
