"""Find free ports on 127.0.0.1."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Return ports on 127.0.0.1 that are currently free."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def is_free(port: int) -> bool:
    """Return whether a process can listen on a port on 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
