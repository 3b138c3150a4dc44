"""A base class for providers of APIs with unique names and a mark of the last writer (ADR 0073).

You write how to find, create, update, delete and list objects in the types of your API. The base
class compares uids, versions and keys, and turns each outcome into the result that `Provider`
defines.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar

from events.external import ExternalObject
from events.log import Action
from events.provider_config import Scope
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
)
from reconciler.provider import Effect, Provider
from reconciler.provider.data_check import check_data
from reconciler.provider.listing import Turns, Unreadable, convert_by_size


class Native(Protocol):
    """An object in the type of your API, such as a decoded response or a row."""

    @property
    def name(self) -> str:
        """The external name."""
        ...

    def as_object(self) -> ExternalObject:
        """Convert the object, with its uid, version, labels and the key of its last writer."""
        ...


_N = TypeVar("_N", bound=Native)


@dataclass(frozen=True, slots=True)
class ExistingObject(Generic[_N]):
    """An existing object, in the type of the API and in Reconciler's form.

    ``read_at``: ``time.monotonic()`` before the read. Pass it on to the requests that write.
    """

    native: _N
    object: ExternalObject
    read_at: float


class NamedObjects(ABC, Generic[_N]):
    """Provider of one kind whose API has unique names, and shows the key of the last writer.

    ``_N`` is your type for an object. Errors from the five methods keep their meaning, with two
    additions. A `ConflictError` without an obstacle reports that the name exists, or that the
    object changed after it was found. A `NotFoundError` reports that it was deleted. The base
    class then reads the object, and reports what exists now.
    """

    noun: ClassVar[str]
    """Noun for an object in messages, such as ``"volume"``."""

    # --- written by the author of the kind

    @abstractmethod
    def name_problem(self, external_name: str) -> str | None:
        """Describe why the API cannot have an object with this name; None if it can."""

    @abstractmethod
    async def find(self, external_name: str) -> _N | None:
        """Read the object with a name. None proves that it does not exist."""

    @abstractmethod
    async def create_object(self, action: Action) -> _N:
        """Create ``action.external_name`` with the key as its mark, and return the object.

        Never overwrite: if the API does not refuse an existing name, read the object first. If the
        API returns the existing object instead, no check is needed: the base class compares the
        key.
        """

    @abstractmethod
    async def update_object(self, action: Action, existing: ExistingObject[_N]) -> _N:
        """Write the fields, the labels and the key to the object that was found, and return it.

        The object has the action's uid and version. Bind the write to them if the API can. A kind
        with ``describe_data_loss`` has compared its data, so write immediately.
        """

    @abstractmethod
    async def delete_object(self, action: Action, existing: ExistingObject[_N]) -> None:
        """Delete the object that was found, which has the uid of the action."""

    @abstractmethod
    def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_N]]:
        """List all objects page by page. The listing is complete if no exception ends it.

        The base class filters by ``scope``, and the API may do so, too. Add objects that cannot be
        read to ``unreadable``, so that they do not hide the others.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close connections."""

    async def complete_object(self, action: Action, existing: ExistingObject[_N]) -> _N:
        """Complete what an earlier attempt at the same creation or update began.

        Override this if one of them needs several requests, and an early one writes the key. The
        base class calls this if a repeated action finds its own key.
        """
        del action
        return existing.native

    async def check_replacement(self, action: Action) -> None:
        """Raise an error if an object with the fields of the action cannot be created now.

        ``delete`` calls this before it deletes an object to create another one in its place.
        Override this to check what a creation needs, such as an image or a role.
        """

    def size_bytes(self, native: _N) -> int:
        """Return the size of an object. The base class converts large ones in a thread."""
        del native
        return 0

    # --- `Provider`

    async def create(self, action: Action) -> Effect:
        """Create the object. If an earlier attempt at the action created it, return that object."""
        self.check_name(action.external_name)
        try:
            created = await self.__convert(await self.create_object(action))
        except ConflictError as conflict:
            if conflict.obstacle is not None:
                raise
            existing = await self.__find(action.external_name)
            if existing is None:
                raise
            return await self.__own_or_conflict(action, existing, conflict)
        if created.written_by != action.idempotency_key:
            raise self.__build_exists_error(created)
        return Effect(created)

    async def update(self, action: Action) -> Effect:
        """Replace fields and labels of the object that still has the action's uid and version."""
        self.check_name(action.external_name)
        existing = await self.__find(action.external_name)
        if existing is None:
            raise self.missing_error(action)
        check_uid(existing.object, action)
        if existing.object.written_by == action.idempotency_key:
            return await self.__complete(action, existing)
        if action.version not in (None, existing.object.version):
            raise self.__build_changed_error(existing.object)
        check_data(existing.object)
        try:
            return Effect(await self.__convert(await self.update_object(action, existing)))
        except (ConflictError, NotFoundError) as error:
            return await self.explain_refused_update(action, error)

    async def delete(self, action: Action) -> Effect:
        """Delete the object that still has the action's uid, whatever its version."""
        self.check_name(action.external_name)
        existing = await self.__find(action.external_name)
        if existing is None:
            return Effect(None, absent=True)
        check_uid(existing.object, action)
        await self.check_before_deletion(action)
        check_data(existing.object)
        try:
            await self.delete_object(action, existing)
        except NotFoundError:
            return Effect(None, absent=True)
        except ConflictError as conflict:
            if conflict.obstacle is not None:
                raise
            remaining = await self.__find(action.external_name)
            if remaining is None:
                return Effect(None, absent=True)
            check_uid(remaining.object, action)
            raise NotDoneError(
                f"{self.__describe(action.external_name)} was changed during the deletion",
                status=conflict.status,
            ) from conflict
        return Effect(None)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read one object. The name is enough, because names are unique."""
        del uid
        self.check_name(external_name)
        existing = await self.__find(external_name)
        return None if existing is None else existing.object

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List a scope. Filter objects even if the API does, because an API may ignore a filter.

        In an exclusive scope, Reconciler deletes listed objects that are not declared.
        """
        unreadable = Unreadable()
        async for natives in self.list_objects(scope, page_size, unreadable):
            objects = [
                each
                for each in await self.__convert_all(natives, unreadable)
                if scope.has(each.name, each.labels)
            ]
            for start in range(0, len(objects), page_size):
                yield objects[start : start + page_size]
        unreadable.check()

    # --- helpers; the mangled names cannot collide with those of a provider

    def check_name(self, external_name: str) -> None:
        """Raise ``RefusedError`` for a name that the API cannot have."""
        problem = self.name_problem(external_name)
        if problem is not None:
            raise RefusedError(f"invalid name {external_name!r}: {problem}")

    async def check_before_deletion(self, action: Action) -> None:
        """Check what the new object needs, if the deletion is the first step of a replacement.

        If you override ``delete``, call this after you have found the object.
        """
        if action.purpose == "Replace" and action.fields:  # older releases recorded no fields
            await self.check_replacement(action)

    async def __find(self, external_name: str) -> ExistingObject[_N] | None:
        read_at = time.monotonic()
        native = await self.find(external_name)
        return (
            None
            if native is None
            else ExistingObject(native, await self.__convert(native), read_at)
        )

    async def __convert(self, native: _N) -> ExternalObject:
        return await convert_by_size(native.as_object, self.size_bytes(native))

    async def __convert_all(
        self, natives: Sequence[_N], unreadable: Unreadable
    ) -> list[ExternalObject]:
        objects: list[ExternalObject] = []
        turns = Turns()
        for native in natives:
            convert = partial(
                unreadable.convert_or_record, native.as_object, partial(_identify, native)
            )
            converted = await convert_by_size(convert, self.size_bytes(native))
            if converted is not None:
                objects.append(converted)
            await turns.pause()
        return objects

    async def explain_refused_update(
        self, action: Action, error: ConflictError | NotFoundError
    ) -> Effect:
        """Read what a refused update found: our own earlier attempt, an obstacle, or nothing."""
        if error.obstacle is not None:
            raise error
        existing = await self.__find(action.external_name)
        if existing is None:
            raise self.missing_error(action, error.status) from error
        return await self.__own_or_conflict(action, existing, error)

    async def __own_or_conflict(
        self, action: Action, existing: ExistingObject[_N], error: ConflictError | NotFoundError
    ) -> Effect:
        """Complete our own earlier attempt; raise ``ConflictError`` with any other obstacle."""
        if existing.object.written_by == action.idempotency_key:
            return await self.__complete(action, existing)
        raise ConflictError(
            error.message, status=error.status, obstacle=existing.object, replayed=error.replayed
        ) from error

    async def __complete(self, action: Action, existing: ExistingObject[_N]) -> Effect:
        return Effect(
            await self.__convert(await self.complete_object(action, existing)), replayed=True
        )

    def __build_exists_error(self, existing: ExternalObject) -> ConflictError:
        return ConflictError(f"{self.__describe(existing.name)} already exists", obstacle=existing)

    def __build_changed_error(self, existing: ExternalObject) -> ConflictError:
        return ConflictError(
            f"{self.__describe(existing.name)} has changed since it was read", obstacle=existing
        )

    def missing_error(self, action: Action, status: int | None = None) -> NotFoundError:
        """Return the error for an update whose object does not exist."""
        return NotFoundError(
            f"{self.__describe(action.external_name)} does not exist", status=status
        )

    def __describe(self, external_name: str) -> str:
        return f"{self.noun} {external_name!r}"


def _identify(native: Native) -> tuple[str, None]:
    return native.name, None


def check_uid(existing: ExternalObject, action: Action) -> None:
    """Raise ``ConflictError`` if another object has the name of the action's object."""
    if action.uid is not None and existing.uid != action.uid:
        raise ConflictError(
            f"{action.external_name!r} was replaced by another object: its uid is "
            f"{existing.uid}, not {action.uid}",
            obstacle=existing,
        )


async def with_obstacle(provider: Provider, action: Action, absent: ProviderError) -> ProviderError:
    """Read the obstacle of a refused action; ``absent`` is the error if there is none."""
    obstacle = await provider.read(action.external_name)
    if obstacle is None:
        return absent
    return ConflictError(
        absent.message, status=absent.status, obstacle=obstacle, replayed=absent.replayed
    )
