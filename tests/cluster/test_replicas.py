"""A replica catches up, whatever its node had on disk when it was killed."""

import pytest

from infra.bus.replicas import read_replicas
from infra.bus.streams import LOG, RATES
from infra.jetstream.append import append
from infra.jetstream.connection import api_request
from infra.jetstream.errors import AppendConflictError, BusRefusedError, BusUnavailableError
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.reads import stream_state
from reconciler.cli.checks.cluster import judge_replicas
from reconciler.wiring import initialize, open_connection
from tests.cluster.servers import EmbeddedCluster
from tests.cluster.story import until, until_replicated

EVENT = OutgoingMessage("log.default.Shape.foo.event", b"purple square " * 8_000)
FIRST, MORE = 40, 60
"""Events of 112 kB: FIRST do not fill a block of the store (8 MiB); with MORE, there are two."""

RESTARTED, KILLED = 1, 2


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_replica_of_several_blocks_recovers_after_its_node_was_killed(
    cluster: EmbeddedCluster,
) -> None:
    """A restarted node truncates its replica to its last snapshot, then replays what follows.

    Here, that is in the middle of a closed block. If the block were compressed, the server would
    destroy it. The replica is complete if it forms a quorum with another one.
    """
    async with open_connection(cluster.url_of(0)) as nc:
        await append(nc, [EVENT] * FIRST, timeout=60)
        await cluster.nodes[RESTARTED].stop()  # cleanly, which creates a snapshot
        await cluster.start_node(RESTARTED)
        await until_replicated(nc)
        await append(nc, [EVENT] * MORE, timeout=60)
        await until_replicated(nc)
        await cluster.nodes[RESTARTED].kill()
        await cluster.start_node(RESTARTED)
        await until_replicated(nc)
        await cluster.nodes[KILLED].kill()

        async def is_appended() -> bool:
            """Append one more; a conflict means that an earlier attempt was stored."""
            last = OutgoingMessage(EVENT.subject, b"{}", None, "log.>", FIRST + MORE)
            try:
                await append(nc, [last])
            except AppendConflictError:
                return True
            except BusUnavailableError:
                return False
            return True

        await until(is_appended, lambda: "the replica does not form a majority with another one")
        assert (await stream_state(nc, LOG)).messages == FIRST + MORE + 1


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_replicas_that_another_client_removed_are_named_and_restored(
    cluster: EmbeddedCluster,
) -> None:
    async with open_connection(cluster.url_of(0)) as nc:
        for stream in (LOG, RATES):
            config = (await api_request(nc, f"STREAM.INFO.{stream}", None))["config"]
            await api_request(nc, f"STREAM.UPDATE.{stream}", {**config, "num_replicas": 1})
        with pytest.raises(
            BusRefusedError, match=r"cannot have 5 replicas .*; use at most as many"
        ):
            await initialize(nc, replicas=5)
        finding = judge_replicas(await read_replicas(nc))
        assert finding.details == "too few replicas: LOG_1 has 1 of 3, RATES has 1 of 3"
        await initialize(nc)

        async def has_all() -> bool:
            return judge_replicas(await read_replicas(nc)).verdict == "ok"

        await until(has_all, lambda: "replicas are missing")
