"""Faults of one server in a cluster, and how to end them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from tests.cluster.routes import Routes
from tests.cluster.servers import EmbeddedCluster


@dataclass(frozen=True)
class Fault:
    """A fault of one server; ``end`` brings the server back."""

    name: str
    begin: Callable[[], Awaitable[None]]
    end: Callable[[], Awaitable[None]]


def stopped(cluster: EmbeddedCluster, index: int) -> Fault:
    return Fault("stopped", cluster.nodes[index].stop, partial(cluster.start_node, index))


def hung(cluster: EmbeddedCluster, index: int) -> Fault:
    server = cluster.nodes[index]
    return Fault("hung", _as_async(server.pause), _as_async(server.resume))


def without_disk(cluster: EmbeddedCluster, index: int) -> Fault:
    async def lose_disk() -> None:
        await cluster.nodes[index].kill()
        await asyncio.to_thread(shutil.rmtree, cluster.nodes[index].data_dir)

    return Fault("without disk", lose_disk, partial(cluster.start_node, index))


def cut_off(routes: Routes, index: int) -> Fault:
    """Return a fault that cuts the routes of a server, which clients can still reach."""
    isolate, rejoin = partial(routes.isolate, index), partial(routes.rejoin, index)
    return Fault("cut off", _as_async(isolate), _as_async(rejoin))


def _as_async(act: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        act()

    return call
