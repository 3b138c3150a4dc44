"""A cluster whose servers connect through proxies, so that a server can be cut off."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from tests.cluster.servers import NODES, EmbeddedCluster
from tests.faults.tcp_proxy import TcpProxy


class Routes:
    """A proxy for each connection from one node to another."""

    def __init__(self) -> None:
        self.cluster = EmbeddedCluster()
        self._proxies: dict[tuple[int, int], TcpProxy] = {}

    async def start(self, folder: Path, stack: AsyncExitStack) -> None:
        for source in range(NODES):
            for target in range(NODES):
                proxy = TcpProxy(self.cluster.route_ports[target])
                await proxy.start()
                stack.push_async_callback(proxy.stop)
                self._proxies[source, target] = proxy
        stack.push_async_callback(self.cluster.kill)
        await self.cluster.start(folder, route_port=lambda a, b: self._proxies[a, b].port)

    def isolate(self, node: int) -> None:
        for each in self._of(node):
            each.partition()

    def rejoin(self, node: int) -> None:
        for each in self._of(node):
            each.heal()

    def _of(self, node: int) -> list[TcpProxy]:
        return [proxy for pair, proxy in self._proxies.items() if node in pair]
