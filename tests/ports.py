"""Ports for servers that a test stops and starts again on the same port."""

from __future__ import annotations

import contextlib
import random
import socket

# Below the range from which the kernel assigns ports (32768 on Linux). A port in that range may
# be assigned to another process's connection between the choice and the bind, or during a restart.
_PORTS = range(20_000, 32_000)
_random = random.SystemRandom()


def free_port() -> int:
    """Return a port on 127.0.0.1 on which nothing listens.

    It stays free until its server binds it, unless another test draws the same number meanwhile.
    """
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return ports as ``free_port`` does, all different."""
    ports: set[int] = set()
    while len(ports) < count:
        port = _random.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)
