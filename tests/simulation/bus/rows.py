"""Rows of the read models: written with a compare-and-set on the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from projections.read_models import CHECKPOINT
from reconciler.ports import RowsConflictError
from tests.simulation.network import Network


class Rows:
    """What the server has of them."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.writes = 0
        self.checkpoint_write = 0

    def save(self, changes: Mapping[str, bytes | None], expected: int) -> int:
        """Write all or nothing; raises ``RowsConflictError``."""
        if expected != self.checkpoint_write:
            raise RowsConflictError(f"wrong last sequence: {self.checkpoint_write}")
        for name, payload in changes.items():
            if payload is None:
                self.content.pop(name, None)
            else:
                self.content[name] = payload
        self.writes += 1
        self.checkpoint_write = self.writes
        return self.writes

    def clear(self) -> None:
        """Remove all."""
        self.content.clear()
        self.checkpoint_write = 0


class SimulatedRows:
    """Implements ``reconciler.ports.RowStore`` for one process."""

    def __init__(self, rows: Rows, network: Network) -> None:
        self._rows = rows
        self._network = network
        self._expected = 0

    async def load(self) -> Mapping[str, bytes]:
        content, self._expected = await self._network.ask("rows", self._read)
        return content

    def _read(self) -> tuple[dict[str, bytes], int]:
        found = dict(self._rows.content)
        return found, self._rows.checkpoint_write if CHECKPOINT in found else 0

    async def get(self, names: Sequence[str]) -> Mapping[str, bytes]:
        def read() -> dict[str, bytes]:
            content = self._rows.content
            return {name: content[name] for name in names if name in content}

        return await self._network.ask("rows", read)

    async def matching(self, pattern: str) -> Mapping[str, bytes]:
        prefix = pattern.removesuffix(">")

        def read() -> dict[str, bytes]:
            content = self._rows.content
            return {name: row for name, row in content.items() if name.startswith(prefix)}

        return await self._network.ask("rows", read)

    async def save(self, changes: Mapping[str, bytes | None]) -> None:
        expected = self._expected
        self._expected = await self._network.ask("rows", lambda: self._rows.save(changes, expected))

    async def clear(self) -> None:
        await self._network.ask("rows", self._rows.clear)
        self._expected = 0
