"""How many copies of each stream there are, and which of them are up to date."""

from __future__ import annotations

from typing import Any

import msgspec
from nats.aio.client import Client

from infra.bus.streams import SUBJECTS
from infra.jetstream.connection import api_request


class Copies(msgspec.Struct, frozen=True):
    """The copies of one stream.

    Attributes:
        wanted: how many there should be, by the stream's configuration.
        present: how many servers have one, up to date or not: a removed server has none.
        leader: the server that all writes go through, "" while there is none.
        behind: servers whose copy is away or not up to date: one more failure may lose it.
    """

    stream: str
    wanted: int
    present: int
    leader: str
    behind: tuple[str, ...]


async def copies(nc: Client) -> list[Copies]:
    """Look at every stream's copies; raises ``BusError``."""
    return [_copies(name, await api_request(nc, f"STREAM.INFO.{name}", None)) for name in SUBJECTS]


def _copies(stream: str, info: dict[str, Any]) -> Copies:
    cluster: dict[str, Any] = info.get("cluster") or {}
    replicas: list[dict[str, Any]] = cluster.get("replicas") or []
    behind = [
        f"{each['name']} ({'offline' if each.get('offline') else 'not up to date'})"
        for each in replicas
        if each.get("offline") or not each.get("current")
    ]
    leader = cluster.get("leader", "") if cluster else "the only server"
    wanted = int(info["config"].get("num_replicas", 1))
    return Copies(stream, wanted, 1 + len(replicas), leader, tuple(sorted(behind)))
