"""Rows of the read models: written with a compare-and-set on the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infra.jetstream.append import MAX_BATCH
from projections.read_models import CHECKPOINT
from reconciler.ports import RowsConflictError
from tests.memory_bus.network import Network


class Rows:
    """The rows as the server stores them."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.written: dict[str, int] = {}
        self.revision = 0

    def checkpoint(self) -> tuple[bytes, int]:
        """Return the checkpoint and its revision."""
        return self.content.get(CHECKPOINT, b""), self.written.get(CHECKPOINT, 0)

    def save(self, changes: Mapping[str, bytes | None], revision: int) -> int:
        """Write all or nothing; raises ``RowsConflictError``."""
        assert len(changes) <= MAX_BATCH
        if revision != self.checkpoint()[1]:
            raise RowsConflictError(f"wrong last sequence: {self.checkpoint()[1]}")
        for name, payload in sorted(changes.items(), key=lambda change: change[0] == CHECKPOINT):
            self.revision += 1
            if payload is None:
                self.content.pop(name, None)
            else:
                self.content[name] = payload
                self.written[name] = self.revision
        return self.revision

    def clear(self, before: int | None = None) -> None:
        """Remove all rows that were written before a revision."""
        for name in list(self.content):
            if before is None or self.written[name] < before:
                del self.content[name], self.written[name]


class MemoryRows:
    """Implements ``reconciler.ports.RowStore`` for one process."""

    def __init__(self, rows: Rows, network: Network, *, rows_per_save: int = 900) -> None:
        self._rows = rows
        self._network = network
        self.rows_per_save = rows_per_save

    async def load(self) -> Mapping[str, bytes]:
        return await self._network.ask("rows", lambda: dict(self._rows.content))

    async def checkpoint(self) -> tuple[bytes, int]:
        return await self._network.ask("rows", self._rows.checkpoint)

    async def get(self, names: Sequence[str]) -> Mapping[str, bytes]:
        def read() -> dict[str, bytes]:
            content = self._rows.content
            return {name: content[name] for name in names if name in content}

        return await self._network.ask("rows", read)

    async def read_matching(self, pattern: str) -> Mapping[str, bytes]:
        prefix = pattern.removesuffix(">")

        def read() -> dict[str, bytes]:
            content = self._rows.content
            return {name: row for name, row in content.items() if name.startswith(prefix)}

        return await self._network.ask("rows", read)

    async def save(self, changes: Mapping[str, bytes | None], revision: int) -> int:
        return await self._network.ask("rows", lambda: self._rows.save(changes, revision))

    async def clear(self, before: int) -> None:
        await self._network.ask("rows", lambda: self._rows.clear(before))
