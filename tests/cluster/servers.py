"""Three `nats-server` processes on this machine that are one JetStream cluster.

It shows the behavior of a cluster when a node dies; it does not protect against a failure of the
machine.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from nats.aio.client import Client

from infra.embedded.server import EmbeddedServer, EmbeddedServerError
from infra.jetstream.connection import api_request, close, connect
from infra.jetstream.errors import BusError
from tests.ports import free_ports

NODES: Final = 3
READY_SECONDS: Final = 60.0
_REQUEST_SECONDS: Final = 1.0
_PROBE: Final = "cluster-probe"
_POLL_SECONDS: Final = 0.05

RoutePort = Callable[[int, int], int]
"""Returns the port on 127.0.0.1 where a node connects to another one, from (source, target)."""


class EmbeddedCluster:
    """Nodes with fixed ports, each a separate server with its own folder.

    Nodes are named by their index, 0 to 2. A node that was killed or stopped is restarted
    with `start_node`, on the same port and with the same data.

    Attributes:
        nodes: the servers: pause, resume, kill and stop each of them as needed.
        route_ports: where each node listens for the others.
    """

    def __init__(self) -> None:
        self.nodes: Sequence[EmbeddedServer] = [EmbeddedServer() for _ in range(NODES)]
        ports = free_ports(2 * NODES)
        self.route_ports: Sequence[int] = ports[:NODES]
        self._client_ports = ports[NODES:]
        self._folder = Path()
        self._sync_always = True
        self._extra_config = ""
        self._route_port: RoutePort | None = None

    @property
    def url(self) -> str:
        """Every node's URL, separated by commas: clients switch to another one when theirs dies."""
        return ",".join(self.url_of(index) for index in range(NODES))

    def url_of(self, index: int) -> str:
        """Return the client URL of a node, running or not."""
        return f"nats://127.0.0.1:{self._client_ports[index]}"

    async def start(
        self,
        data_dir: Path,
        *,
        sync_always: bool = True,
        extra_config: str = "",
        route_port: RoutePort | None = None,
    ) -> str:
        """Start all nodes; return the URL of all of them once JetStream responds.

        Args:
            data_dir: contains a folder for each node; created if missing.
            sync_always: fsync before each acknowledgement.
            extra_config: lines added to each node's configuration file.
            route_port: port at which a node reaches another one, such as a proxy's, if not its own.

        Raises:
            EmbeddedServerError: a node cannot be started, or the nodes do not agree on a leader.
        """
        self._folder, self._sync_always = data_dir, sync_always
        self._extra_config, self._route_port = extra_config, route_port
        try:
            await asyncio.gather(*(self.start_node(index) for index in range(NODES)))
            await self._until_leader_elected()
        except BaseException:
            await self.kill()
            raise
        return self.url

    async def start_node(self, index: int) -> None:
        """Start one node, which finds the others; raises `EmbeddedServerError`."""
        await self.nodes[index].start(
            self._folder / node_name(index),
            port=self._client_ports[index],
            sync_always=self._sync_always,
            extra_config=f"{self._cluster_config(index)}\n{self._extra_config}",
        )

    async def stop(self) -> None:
        """Stop all nodes cleanly."""
        await asyncio.gather(*(node.stop() for node in self.nodes))

    async def kill(self) -> None:
        """Kill all nodes immediately."""
        await asyncio.gather(*(node.kill() for node in self.nodes))

    async def _until_leader_elected(self) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                nc = await connect(self.url, name="embedded-cluster")
                try:
                    while not await _responds(nc):  # noqa: ASYNC110 - the server reports nothing
                        await asyncio.sleep(_POLL_SECONDS)
                finally:
                    await close(nc)
        except (TimeoutError, BusError) as error:
            raise EmbeddedServerError(
                f"the nodes in {self._folder} did not agree on a leader within "
                f"{READY_SECONDS:.0f} s; see nats.log in each of their folders"
            ) from error

    def _cluster_config(self, index: int) -> str:
        """Return the lines that make a server a node.

        Each node has the addresses of the others, which may be those of proxies.
        """
        others = [other for other in range(NODES) if other != index]
        routes = [f"nats://127.0.0.1:{self._port_for(index, other)}" for other in others]
        listen = f"127.0.0.1:{self.route_ports[index]}"
        cluster = f"name: embedded, listen: {json.dumps(listen)}, routes: {json.dumps(routes)}"
        cluster += ', ping_interval: "2s", ping_max: 2'  # as in docs/how-to/run-in-production.md
        # nothing listens there: otherwise clients would bypass the proxies
        if self._route_port is not None:
            cluster += ', advertise: "127.0.0.1:1"'
        return f"server_name: {node_name(index)}\ncluster {{ {cluster} }}"

    def _port_for(self, source: int, target: int) -> int:
        if self._route_port is None:
            return self.route_ports[target]
        return self._route_port(source, target)

    def metadata_leader(self) -> int:
        """Return the node that leads the cluster's metadata, according to node 0's log."""
        lines = (self._folder / node_name(0) / "nats.log").read_text().splitlines()
        newest = [each for each in lines if "metadata leader" in each][-1]
        if newest.endswith("Self is new JetStream cluster metadata leader"):
            return 0
        return next(index for index in range(NODES) if f"{node_name(index)}/" in newest)


def node_name(index: int) -> str:
    """Return the name of a node in the server's responses."""
    return f"node-{index}"


async def leader(nc: Client, stream: str) -> int | None:
    """Return the node that leads a stream, or None without a leader or a response."""
    try:
        info = await api_request(nc, f"STREAM.INFO.{stream}", None, timeout=_REQUEST_SECONDS)
    except BusError:
        return None
    name = info.get("cluster", {}).get("leader", "")
    return next((index for index in range(NODES) if node_name(index) == name), None)


async def _responds(nc: Client) -> bool:
    """Return whether JetStream has a leader that places replicas on all nodes."""
    probe = {"name": _PROBE, "subjects": [_PROBE], "storage": "memory", "num_replicas": NODES}
    try:
        await api_request(nc, "INFO", None, timeout=_REQUEST_SECONDS)
        await api_request(nc, f"STREAM.CREATE.{_PROBE}", probe, timeout=_REQUEST_SECONDS)
        await api_request(nc, f"STREAM.DELETE.{_PROBE}", None, timeout=_REQUEST_SECONDS)
    except BusError:
        return False
    return True
