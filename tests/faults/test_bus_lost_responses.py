"""Fault 6: the server's response to an append, a declaration or a read never arrives."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.log import SpecDeclared
from infra.bus.streams import LOG
from infra.embedded import EmbeddedServer
from infra.jetstream import connection, reads
from infra.jetstream.append import append
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.reads import SubjectStart, last_by_subject, read_starts
from reconciler.sdk import Client, connect
from reconciler.wiring import initialize, open_connection, run_roles
from tests.faults.tcp_proxy import TcpProxy, proxied
from tests.scenarios.harness import manifest

TIMEOUT_SECONDS = 60.0


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer()
    async with open_connection(await server.start(tmp_path / "nats")) as nc:
        await initialize(nc)
    yield server
    await server.stop()


@pytest.mark.parametrize("count", [1, 20], ids=["plain publishes", "an atomic batch"])
async def test_fault_6_an_append_whose_response_is_lost_is_found_and_not_repeated(
    bus: EmbeddedServer, count: int
) -> None:
    """The decider appends again, gets a conflict, and detects that its own append won."""
    async with (
        proxied(bus.port, by_frames=True) as proxy,
        open_connection(proxy.url) as proxied_nc,
        run_roles(proxied_nc, ["decider"]),
        connect(bus.url, source="test") as client,
    ):
        _swallow_an_acknowledgement(proxy)
        manifests = [manifest(f"s{number}") for number in range(count)]
        replies = await client.declare_many(manifests, timeout_seconds=TIMEOUT_SECONDS)
        assert len(proxy.swallowed) == 1
        assert [getattr(reply, "generation", reply) for reply in replies] == [1] * count
        for number in range(count):
            await _assert_declared_once(client, f"default/Shape/s{number}")


def _swallow_an_acknowledgement(proxy: TcpProxy) -> None:
    """Drop the next acknowledgement from the log, and nothing else."""
    proxy.swallow_one(lambda frame: b'"stream":"LOG_1"' in frame and b'"seq"' in frame)


async def _assert_declared_once(client: Client, shape: str) -> None:
    events = [stored.event for stored in await client.history(shape)]
    assert [event.resourceversion for event in events] == list(range(1, len(events) + 1))
    assert len([event for event in events if isinstance(event.data, SpecDeclared)]) == 1


async def test_fault_6_a_declaration_whose_acknowledgement_is_lost_is_one_generation(
    bus: EmbeddedServer,
) -> None:
    async with (
        proxied(bus.port, by_frames=True) as proxy,
        connect(proxy.url, source="test") as client,
        open_connection(bus.url) as direct,
        run_roles(direct, ["decider"]),
    ):
        proxy.swallow_one(lambda frame: b'"stream":"INTAKE"' in frame and b'"seq"' in frame)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await client.publish([manifest("foo")], timeout_seconds=TIMEOUT_SECONDS)
        assert len(proxy.swallowed) == 1
        assert await client.observation_time() == 2, "the intake must contain the repeat as well"
        reply = await client.declare(manifest("foo"))
        assert reply.generation == 1
        await _assert_declared_once(client, "default/Shape/foo")


async def test_fault_6_a_lost_read_from_a_cluster_is_repeated(
    bus: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server of the cluster may respond."""
    monkeypatch.setattr(reads, "is_clustered", bool)
    subjects = [f"log.default.Shape.s{number}.fact" for number in range(20)]
    async with (
        proxied(bus.port, by_frames=True) as proxy,
        open_connection(proxy.url) as proxied_nc,
        asyncio.timeout(reads.API_TIMEOUT_SECONDS),
    ):
        await append(proxied_nc, [OutgoingMessage(each, each.encode()) for each in subjects])
        proxy.swallow_one(lambda frame: b"NATS/1.0 204" in frame)
        starts = await read_starts(proxied_nc, LOG, [SubjectStart(each, 5) for each in subjects])
        assert [[message.subject for message in each] for each in starts] == [
            [each] for each in subjects
        ]
        proxy.swallow_one(lambda frame: b"s9.fact" in frame)
        assert len(await last_by_subject(proxied_nc, LOG, subjects)) == len(subjects)
        assert len(proxy.swallowed) == 2


async def test_fault_6_a_lost_response_about_a_clusters_stream_is_requested_again(
    bus: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to a leader that has just died gets no response, but its successor responds."""
    monkeypatch.setattr(connection, "is_clustered", bool)
    async with proxied(bus.port, by_frames=True) as proxy, open_connection(proxy.url) as proxied_nc:
        proxy.swallow_one(lambda frame: b"stream_info_response" in frame)
        async with asyncio.timeout(connection.API_TIMEOUT_SECONDS / 2):
            info = await connection.api_request(proxied_nc, f"STREAM.INFO.{LOG}", None)
        assert info["config"]["name"] == LOG
        assert len(proxy.swallowed) == 1
