"""A minimal API in memory: it assigns the ids, and has no labels, versions or keys."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from reconciler.errors import NotFoundError
from reconciler.provider import Capabilities, Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import Secrets


@dataclass
class PlainApi:
    """Notes by id; titles are not unique."""

    notes: dict[str, tuple[str, Fields]] = field(default_factory=dict[str, tuple[str, Fields]])
    ids: itertools.count[int] = field(default_factory=itertools.count)

    def add(self, title: str, fields: Fields) -> str:
        number = f"n{next(self.ids)}"
        self.notes[number] = (title, fields)
        return number


class NoteFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a ``Note``'s spec."""

    text: str
    pinned: bool = False


class NotesProvider:
    """Finds a note by its id if that is known, and otherwise by its title."""

    def __init__(self, api: PlainApi) -> None:
        self._api = api

    async def create(self, action: Action) -> Effect:
        await CallPermit().before_request()
        return Effect(self._object_of(self._api.add(action.external_name, action.fields)))

    async def update(self, action: Action) -> Effect:
        await CallPermit().before_request()
        number = action.uid or self._find(action.external_name)
        if number is None or number not in self._api.notes:
            raise NotFoundError(f"no note {number or action.external_name!r}")
        self._api.notes[number] = (action.external_name, action.fields)
        return Effect(self._object_of(number))

    async def delete(self, action: Action) -> Effect:
        await CallPermit().before_request()
        number = action.uid or self._find(action.external_name)
        absent = number is None or self._api.notes.pop(number, None) is None
        return Effect(None, absent=absent)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        await CallPermit().before_request()
        number = self._find(external_name) if uid is None else uid
        return None if number not in self._api.notes else self._object_of(number)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        del page_size  # all at once
        await CallPermit().before_request()
        objects = [self._object_of(number) for number in self._api.notes]
        yield [existing for existing in objects if scope.has(existing.name, {})]

    async def close(self) -> None:
        pass

    def _find(self, title: str) -> str | None:
        return next(
            (number for number, (name, _) in self._api.notes.items() if name == title), None
        )

    def _object_of(self, number: str) -> ExternalObject:
        title, fields = self._api.notes[number]
        return ExternalObject(title, fields, number, None, {})


_API = PlainApi()


def _connect(config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> NotesProvider:
    del config, secrets
    return NotesProvider(_API)


NOTE = Kind(
    name="Note",
    api_version="notes/v1",
    provider="notes",
    schema=NoteFields,
    capabilities=Capabilities(
        idempotency_keys=False, deterministic_names=False, labels=False, conditional_writes=False
    ),
    connect=_connect,
)
