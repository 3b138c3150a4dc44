"""The replicas of each stream, and whether they are up to date."""

from __future__ import annotations

from typing import Any

import msgspec
from nats.aio.client import Client

from infra.bus.streams import SUBJECTS
from infra.jetstream.connection import api_request


class StreamReplicas(msgspec.Struct, frozen=True):
    """The replicas of one stream.

    Attributes:
        configured: number of replicas in the configuration.
        present: number of servers with a replica, up to date or not. Removed servers do not count.
        leader: server that receives all writes; "" while there is none.
        behind: servers whose replica is offline or out of date. One more failure may lose data.
    """

    stream: str
    configured: int
    present: int
    leader: str
    behind: tuple[str, ...]


async def read_replicas(nc: Client) -> list[StreamReplicas]:
    """Read the state of every stream's replicas.

    Raises:
        BusError: a request failed.
    """
    return [
        _parse_replicas(name, await api_request(nc, f"STREAM.INFO.{name}", None))
        for name in SUBJECTS
    ]


def _parse_replicas(stream: str, info: dict[str, Any]) -> StreamReplicas:
    cluster: dict[str, Any] = info.get("cluster") or {}
    replicas: list[dict[str, Any]] = cluster.get("replicas") or []
    behind = [
        f"{each['name']} ({'offline' if each.get('offline') else 'not up to date'})"
        for each in replicas
        if each.get("offline") or not each.get("current")
    ]
    leader = cluster.get("leader", "") if cluster else "the only server"
    replica_count = int(info["config"].get("num_replicas", 1))
    return StreamReplicas(stream, replica_count, 1 + len(replicas), leader, tuple(sorted(behind)))
