"""UDP flows to services: translations that the kernel keeps from before a change of the rules.

Only the first packet of a flow passes the rules. A client that continues to send from one port
therefore stays on its backend after the service has lost it, as long as the kernel keeps the flow.
TCP connections have an end, so they may finish on their backend.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from typing import Final

from infra.providers.nftables.nft import SEARCH_PATH, Nft
from infra.providers.nftables.spec import Backend, Front
from reconciler.errors import ConfigurationError, NotDoneError

_PROTOCOL: Final = "udp"
_FLOW: Final = re.compile(
    rb" src=\S+ dst=([0-9.]+) sport=\d+ dport=(\d+) .*?src=([0-9.]+) dst=\S+ sport=(\d+) "
)
"""The destination of a flow's packets, and the source of the responses: its backend."""

_NO_FLOWS: Final = b"0 flow entries have been deleted"

Flows = Mapping[Front, Collection[Backend]]
"""The backends of the existing flows to each front.

A flow that began before its service has the front itself as its backend.
"""


def conntrack_problem() -> str | None:
    """Describe why the flows cannot be read on this machine; None if they can."""
    if shutil.which("conntrack", path=SEARCH_PATH) is None:
        return (
            "the conntrack program is not installed, which a service with protocol: udp requires; "
            "install the conntrack package"
        )
    return None


def check_program(front: Front) -> None:
    """Raise ``ConfigurationError`` if the flows to a front could not be ended."""
    if front.protocol == _PROTOCOL and (problem := conntrack_problem()) is not None:
        raise ConfigurationError(problem)


async def read_flows(nft: Nft, fronts: Collection[Front]) -> Flows:
    """Return the flows to some fronts. Without the conntrack program, none are known."""
    wanted = {each for each in fronts if each.protocol == _PROTOCOL}
    if not wanted or conntrack_problem() is not None:
        return {}
    arguments = ["-L", "-p", _PROTOCOL]
    if len(wanted) == 1:
        (front,) = wanted
        arguments += _match(front)
    flows: dict[Front, set[Backend]] = {}

    def collect(line: bytes) -> bool:
        match = _FLOW.search(line)
        if match is not None:
            address, port, backend, backend_port = (each.decode() for each in match.groups())
            front = Front(address, _PROTOCOL, int(port))
            if front in wanted:
                flows.setdefault(front, set()).add(Backend(backend, int(backend_port)))
        return False  # the output of a busy machine is long

    result = await nft.execute("conntrack", arguments, keeps_line=collect)
    if result.code != 0:
        raise NotDoneError(f"cannot read the UDP flows: {result.error_text}")
    return flows


async def end_flows(nft: Nft, front: Front, kept: Collection[Backend] = ()) -> None:
    """End the flows to a front, except those to the ``kept`` backends."""
    if front.protocol != _PROTOCOL:
        return
    check_program(front)
    if not kept:
        await _delete(nft, front)
        return
    backends = (await read_flows(nft, [front])).get(front, ())
    for each in sorted(set(backends) - set(kept), key=lambda each: (each.address, each.port)):
        await _delete(nft, front, "--reply-src", each.address, "--reply-port-src", str(each.port))


async def _delete(nft: Nft, front: Front, *conditions: str) -> None:
    arguments = ["-D", "-p", _PROTOCOL, *_match(front), *conditions]
    result = await nft.execute("conntrack", arguments, writes=True)
    if result.code != 0 and _NO_FLOWS not in result.errors:
        raise NotDoneError(f"cannot end the UDP flows to {front}: {result.error_text}")


def _match(front: Front) -> list[str]:
    return ["--orig-dst", front.address, "--orig-port-dst", str(front.port)]
