"""Declarations in a cluster, their progress, and faults meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from nats.aio.client import Client

from events.log import OutcomeRecorded
from events.manifest import RECONCILER_API_VERSION, Manifest, Metadata
from events.names import SYSTEM_NAMESPACE
from events.provider_config import PROVIDER_CONFIG_KIND, Breaker, Limits
from infra.bus.replicas import read_replicas
from infra.bus.streams import INTAKE, LOG
from infra.jetstream.connection import api_request
from infra.jetstream.errors import BusError, BusUnavailableError
from reconciler.sdk import Client as SdkClient
from reconciler.sdk import client_on
from reconciler.wiring import Role, open_connection
from tests.cluster.fleet import Fleet, fleet
from tests.cluster.servers import NODES, EmbeddedCluster, leader
from tests.judge.from_bus import check
from tests.judge.judging import Finding
from tests.scenarios.harness import api_config, manifest

TIMEOUT_SECONDS = 240.0
_POLL_SECONDS = 0.1


class Story:
    """A cluster, the roles that run on it, and resources that are declared repeatedly.

    ``converged`` has the names of converged resources, by generation; ``moments`` has the times
    of the decisions that recorded this, in seconds since 1970.
    """

    def __init__(
        self, cluster: EmbeddedCluster, roles: Fleet, nc: Client, sdk: SdkClient, api_url: str
    ) -> None:
        self.cluster, self.roles, self.nc, self.sdk = cluster, roles, nc, sdk
        self.converged: dict[int, set[str]] = {}
        self.moments: dict[int, list[float]] = {}
        self._api_url = api_url

    async def follow(self) -> None:
        """Read from the log which resources have converged, until canceled."""
        async for events in self.sdk.replay(follow=True, namespace="default", kind="Shape"):
            for _position, event in events:
                if isinstance(event.data, OutcomeRecorded) and event.data.outcome == "Converged":
                    generation = event.data.generation
                    self.moments.setdefault(generation, []).append(event.time.timestamp())
                    self.converged.setdefault(generation, set()).add(event.subject)

    async def declare(self, color: str, count: int) -> None:
        manifests = [manifest(f"s{number}", color=color) for number in range(count)]
        await self.sdk.publish(manifests, timeout_seconds=TIMEOUT_SECONDS)

    async def until_converged(self, generation: int, count: int) -> None:
        """Wait until ``count`` resources have converged in this generation."""
        await until(
            lambda: len(self.converged.get(generation, ())) >= count,
            lambda: f"{len(self.converged.get(generation, ()))} of {count} converged",
        )

    async def kill_leader(self, stream: str) -> int:
        """Kill the node that leads a stream; return its index."""
        leader_id = await self._leader(stream)
        await self.cluster.nodes[leader_id].kill()
        return leader_id

    async def find_server(self, which: str) -> int:
        """Return the "leader" of the log, or a "follower" that leads neither log nor intake.

        A "metadata leader" is such a follower, too.
        """
        leaders = [await self._leader(each) for each in (LOG, INTAKE)]
        if which == "leader":
            return leaders[0]
        if which == "follower":
            return next(each for each in range(NODES) if each not in leaders)
        leader_id = self.cluster.metadata_leader()
        for stream in (LOG, INTAKE):
            while await self._leader(stream) == leader_id:
                await api_request(self.nc, f"STREAM.LEADER.STEPDOWN.{stream}", {})
        return leader_id

    async def _leader(self, stream: str) -> int:
        leader_id: int | None = None

        async def is_led() -> bool:
            nonlocal leader_id
            leader_id = await leader(self.nc, stream)
            return leader_id is not None

        await until(is_led, lambda: f"{stream} has no leader")
        assert leader_id is not None
        return leader_id

    async def until_replicated(self) -> None:
        """Wait until every stream has a leader, and all its replicas are up to date."""
        await until_replicated(self.nc)

    async def assert_nothing_lost_or_duplicated(self) -> None:
        findings: list[Finding] = []

        async def is_read() -> bool:
            nonlocal findings
            try:
                findings = await check(self.nc, self._api_url)
            except BusUnavailableError:  # a restarted server has no leader yet
                return False
            return True

        await until(is_read, lambda: "the history cannot be read")
        assert not findings, "\n".join(map(str, findings[:20]))

    @property
    def longest_gap(self) -> float:
        """The longest time without a converged resource while a generation converges."""
        return max(
            later - earlier
            for moments in map(sorted, self.moments.values())
            for earlier, later in itertools.pairwise(moments)
        )


async def until(
    condition: Callable[[], bool | Awaitable[bool]], otherwise: Callable[[], str]
) -> None:
    """Wait until a condition holds; fail with the message from ``otherwise``."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return
        assert time.monotonic() < deadline, f"after {TIMEOUT_SECONDS:g} s: {otherwise()}"
        await asyncio.sleep(_POLL_SECONDS)


async def until_replicated(nc: Client) -> None:
    """Wait until every stream has a leader, and all its replicas are up to date."""
    wrong = "no response"

    async def is_whole() -> bool:
        nonlocal wrong
        try:
            existing_replicas = await read_replicas(nc)
        except BusError as error:
            wrong = str(error)
            return False
        lacking = [each for each in existing_replicas if not each.leader or each.behind]
        wrong = ", ".join(f"{each.stream}: {each.behind or 'no leader'}" for each in lacking)
        return not lacking

    await until(is_whole, lambda: f"not all replicas are up to date: {wrong}")


@asynccontextmanager
async def running_story(
    cluster: EmbeddedCluster, roles: Sequence[Role], api_url: str, folder: Path
) -> AsyncGenerator[Story]:
    """Run roles for which the API is configured, until the story ends."""
    async with (
        fleet(cluster.url, roles, folder) as processes,
        open_connection(cluster.url) as nc,
        client_on(nc, source="story") as sdk,
    ):
        config = api_config(
            api_url,
            resync=10,  # listing everything takes time, too
            limits=Limits(concurrency=16, request_timeout_seconds=30),  # the machine is slow
            breaker=Breaker(failures=100),  # a process that hung reports all its calls as failed
        )
        fields = msgspec.to_builtins(config, str_keys=True)
        metadata = Metadata("default", SYSTEM_NAMESPACE)
        await sdk.declare(Manifest(RECONCILER_API_VERSION, PROVIDER_CONFIG_KIND, metadata, fields))
        story = Story(cluster, processes, nc, sdk, api_url)
        following = asyncio.create_task(story.follow())
        try:
            yield story
        except AssertionError:
            print(processes.log_ends, f"exits: {processes.exits}", following, sep="\n")
            raise
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
