"""Requests about the owners of names, which any observer that runs answers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from reconciler.ports import ExternalName, NameSearch
from tests.memory_bus.loop import Process, VirtualLoop


class NameOwnersService:
    """The observers that answer."""

    def __init__(self) -> None:
        self.searches: dict[str, tuple[Process, NameSearch]] = {}


class MemoryNameOwners:
    """Implements ``reconciler.ports.NameDirectory`` for one process."""

    def __init__(self, service: NameOwnersService, loop: VirtualLoop) -> None:
        self._service = service
        self._loop = loop

    async def find_owners(self, names: Sequence[ExternalName]) -> Sequence[str]:
        for process, search in self._service.searches.values():
            if not process.dead:
                return [search(each) for each in names]
        return [""] * len(names)

    async def answer(self, search: NameSearch) -> None:
        process = self._loop.current_process()
        self._service.searches[process.name.partition(".")[0]] = process, search
        await asyncio.Event().wait()
