"""Snapshots that other observers publish, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from events.envelope import InvalidMessageError, decode_snapshot_part
from events.intake import SnapshotPart
from reconciler.ports import SnapshotDelivery
from tests.simulation.bus.reading import Pushed
from tests.simulation.clock import date_of
from tests.simulation.network import Network


class Snapshots:
    """What the server has of them."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self.parts: list[SnapshotDelivery] = []
        self.after_store: list[Callable[[], None]] = []

    def store(self, subject: str, payload: bytes) -> None:
        """Store a part."""
        part: SnapshotPart | None
        try:
            part = decode_snapshot_part(payload)
        except InvalidMessageError:
            part = None
        stored_at = date_of(self._time())
        self.parts.append(SnapshotDelivery(len(self.parts) + 1, subject, stored_at, payload, part))
        for hook in self.after_store:
            hook()


class SimulatedSnapshotReader:
    """Implements ``reconciler.ports.SnapshotReader`` for one process: it reads from now on."""

    def __init__(self, snapshots: Snapshots, network: Network) -> None:
        self._snapshots = snapshots
        self._network = network
        self._pushed: Pushed[SnapshotDelivery] | None = None

    async def next_batch(self) -> Sequence[SnapshotDelivery]:
        if self._pushed is None:
            parts = self._snapshots.parts
            self._pushed = Pushed(parts, self._network, len(parts), "feed")
            self._snapshots.after_store.append(self._pushed.send)
        return await self._pushed.next()

    async def close(self) -> None: ...
