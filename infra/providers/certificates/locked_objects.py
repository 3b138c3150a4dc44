"""Base class of the issuer and certificate providers: an action locks its object's folder."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from events.log import Action
from events.provider_config import Scope
from infra.providers.certificates.folder import CertificateFolder
from infra.providers.certificates.spec import name_problem
from infra.providers.certificates.store import Record, Store
from reconciler.provider import Effect
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import NamedObjects, Native

_N = TypeVar("_N", bound=Native)
_R = TypeVar("_R", bound=Record)


class LockedObjects(NamedObjects[_N], Generic[_N, _R]):
    """Provider of objects in a store. A write locks the object before reading it."""

    def __init__(self, folder: CertificateFolder, store: Store[_R]) -> None:
        self._folder = folder
        self._store = store

    @abstractmethod
    def _read(self, name: str) -> _N | None:
        """Read an object; None if its creation is unfinished. Runs in a thread."""

    def _remove(self, name: str) -> None:
        """Remove the folder of an object. Runs in a thread."""
        self._store.remove(name)

    def name_problem(self, external_name: str) -> str | None:
        """Describe why an object cannot have this name."""
        return name_problem(external_name)

    async def find(self, external_name: str) -> _N | None:
        """Read an object without a call to its CA."""
        return await self._folder.read_step(lambda: self._read(external_name))

    async def create(self, action: Action) -> Effect:
        """Create the object under its lock."""
        async with self._lock(action, self._store.lock):
            return await super().create(action)

    async def update(self, action: Action) -> Effect:
        """Update the object under its lock."""
        async with self._lock(action, self._store.lock_existing) as has_folder:
            if not has_folder:
                raise self.missing_error(action)
            return await super().update(action)

    async def delete(self, action: Action) -> Effect:
        """Delete the object under its lock."""
        async with self._lock(action, self._store.lock_existing) as has_folder:
            if not has_folder:
                return Effect(None, absent=True)
            effect = await super().delete(action)
            if effect.absent:  # an unfinished object counts as absent
                await self._folder.step(lambda: self._remove(action.external_name))
            return effect

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_N]]:
        """List the objects whose names have the scope's prefix."""
        del unreadable
        names = await self._folder.read_step(self._store.names)
        in_scope = [name for name in names if name.startswith(scope.prefix or "")]
        for start in range(0, len(in_scope), page_size):
            page = in_scope[start : start + page_size]
            objects = await self._folder.read_step(
                lambda page=page: [self._read(name) for name in page]
            )
            yield [each for each in objects if each is not None]

    async def close(self) -> None:
        """Stop the threads."""
        self._folder.close()

    @asynccontextmanager
    async def _lock(
        self, action: Action, lock: Callable[[str], int | None]
    ) -> AsyncGenerator[bool]:
        """Lock the folder of an object if it has one, and yield whether it does.

        Raises ``NotDoneError`` if another call has the lock.
        """
        self.check_name(action.external_name)
        lock_file = await self._folder.step(lambda: lock(action.external_name))
        try:
            yield lock_file is not None
        finally:
            if lock_file is not None:
                os.close(lock_file)
