"""The identity of the kernel's network namespace that holds a table, as evidence after a loss.

A reboot, a flushed ruleset and a recreated namespace all lose every service. If the listed system
is the same as before, the services really no longer exist. A reboot does not change the id, except
for an unnamed namespace other than the host's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from pathlib import Path
from typing import Final

from infra.providers.nftables.table_ref import TableRef

_MACHINE_ID: Final = Path("/etc/machine-id")
_MACHINE_ID_CHARACTERS: Final = 32
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = "/proc/{}/ns/net"
_NAMESPACE_COOKIE: Final = 71  # SO_NETNS_COOKIE, which is unique until the next boot
_COOKIE_BYTES: Final = 8


def read_system_id(table_ref: TableRef) -> str | None:
    """Return an id of the machine and the network namespace; None if it is unknown."""
    try:
        machine_id = _MACHINE_ID.read_text().strip()
        place = _read_place(table_ref)
    except OSError:
        return None
    if len(machine_id) != _MACHINE_ID_CHARACTERS:  # an image before its first boot
        return None
    content = f"{machine_id}\n{os.uname().nodename}\n{place}"
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _read_place(table_ref: TableRef) -> str:
    if table_ref.namespace is not None:
        return f"netns {table_ref.namespace}"
    with contextlib.suppress(PermissionError):  # process 1 belongs to another user or container
        own, first = (Path(_NAMESPACE.format(each)).stat() for each in ("self", "1"))
        if os.path.samestat(own, first):
            return "host"
    with socket.socket() as probe:
        cookie = probe.getsockopt(socket.SOL_SOCKET, _NAMESPACE_COOKIE, _COOKIE_BYTES)
    return f"boot {_BOOT_ID.read_text().strip()} namespace {cookie.hex()}"
