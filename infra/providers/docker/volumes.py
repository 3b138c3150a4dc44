"""The provider of ``Volume``: makes and removes named volumes of a Docker Engine.

The Engine gives volumes no id, and the time at which one was made changes with what is written to
it. So a volume of ours is known by the key of the action that made it, which is in a label.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from events.excerpt import some
from events.external import ExternalObject
from events.log import Action
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.answers import decoded
from infra.providers.conflicts import check_uid
from infra.providers.docker.engine import (
    WRITTEN_BY,
    EngineApi,
    checked_name,
    engine_refusal,
    filters,
    label_filter,
    labels_to_write,
    not_there,
    shown_labels,
    taken,
)
from infra.providers.docker.events import EngineEvents
from infra.providers.docker.volume_spec import DEFAULT_DRIVER, normalize
from infra.providers.listing import Unreadable, in_turns
from reconciler.errors import NotDoneError, RefusedError
from reconciler.provider import Effect
from reconciler.provider.secrets import Secrets

EVENTS: Final = ["create", "destroy"]

_MAX_USERS_NAMED: Final = 5


class _Volume(msgspec.Struct, frozen=True, rename="pascal"):
    """A volume as the Engine shows it."""

    name: str
    driver: str = DEFAULT_DRIVER
    mountpoint: str = ""
    labels: dict[str, str] | None = None
    options: dict[str, str] | None = None

    def as_object(self) -> ExternalObject:
        return ExternalObject(
            name=self.name,
            fields={"driver": self.driver, "options": self.options or {}},
            uid=self._uid,
            labels=shown_labels(self.labels),
            written_by=(self.labels or {}).get(WRITTEN_BY),
            outputs={"mountpoint": self.mountpoint},
        )

    @property
    def _uid(self) -> str:
        """What tells it from another of its name: the key of ours, all that is fixed of others."""
        of = (self.labels or {}).get(WRITTEN_BY) or msgspec.json.encode(
            (self.name, self.driver, self.options or {}, self.labels or {}), order="deterministic"
        ).decode()
        return f"volume-{hashlib.sha256(of.encode()).hexdigest()[:32]}"


class _Volumes(msgspec.Struct, frozen=True, rename="pascal"):
    volumes: list[_Volume] | None = None
    warnings: list[str] | None = None


class _User(msgspec.Struct, frozen=True, rename="pascal"):
    id: str
    names: list[str] | None = None


_volume_decoder = msgspec.json.Decoder(_Volume)
_volumes_decoder = msgspec.json.Decoder(_Volumes)
_users_decoder = msgspec.json.Decoder(list[_User])


class VolumesProvider:
    """Makes and removes volumes of an Engine; nothing of one can be changed."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets) -> None:
        self._api = EngineApi(config, secrets)
        self._events = EngineEvents(self._api, ["volume"], EVENTS)

    async def create(self, action: Action) -> Effect:
        """Make a volume; of one that is there the Engine says so only by showing its labels."""
        checked_name(action.external_name)
        content = {
            "Name": action.external_name,
            "Driver": action.fields["driver"],
            "DriverOpts": action.fields["options"],
            "Labels": labels_to_write(action),
        }
        answer = await self._api.call("POST", "/volumes/create", body=content)
        if answer.status_code == HTTPStatus.CONFLICT:
            raise taken(action, await self.read(action.external_name))
        if answer.status_code not in (HTTPStatus.CREATED, HTTPStatus.OK):
            raise engine_refusal(answer)
        shown = decoded(answer, _volume_decoder).as_object()
        if shown.written_by != action.idempotency_key:
            raise taken(action, shown)
        return Effect(shown)

    async def update(self, action: Action) -> Effect:
        """Refuse any change: the Engine has no call for one."""
        found = await self.read(action.external_name)
        if found is None:
            raise not_there(action)
        check_uid(found, action)
        if (normalize(action.fields), action.labels) == (found.fields, found.labels):
            return Effect(found)
        raise RefusedError(
            "the Engine cannot change an existing volume; declare a volume with another name"
        )

    async def delete(self, action: Action) -> Effect:
        """Delete a volume that is still the action's, with all that is in it."""
        found = await self.read(action.external_name)
        if found is None:
            return Effect(None, absent=True)
        check_uid(found, action)
        answer = await self._api.call("DELETE", f"/volumes/{checked_name(action.external_name)}")
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return Effect(None, absent=True)
        if answer.status_code == HTTPStatus.CONFLICT:
            raise await self._in_use(action.external_name)
        if answer.status_code != HTTPStatus.NO_CONTENT:
            raise engine_refusal(answer)
        return Effect(None)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read one volume."""
        del uid  # names are unique
        found = await self._api.find(f"/volumes/{checked_name(external_name)}", _volume_decoder)
        return None if found is None else found.as_object()

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List a scope: the Engine lists all at once, and says which driver did not answer."""
        query = [filters(label=label_filter(scope.labels))]
        listed = await self._api.ask("/volumes", _volumes_decoder, query)
        if listed.warnings:
            raise NotDoneError(
                f"the listing of volumes is incomplete: {some(listed.warnings, '; ')}"
            )
        unreadable = Unreadable()
        objects = await in_turns(
            listed.volumes or (),
            lambda each: unreadable.converted(each.as_object, lambda: (each.name, None)),
        )
        wanted = [each for each in objects if scope.has(each.name, each.labels)]
        for start in range(0, len(wanted), page_size):
            yield wanted[start : start + page_size]
        unreadable.check()

    async def changes(self, after: str | None) -> str:
        """Wait for the Engine's next event about a volume."""
        return await self._events.changes(after)

    async def close(self) -> None:
        """Close connections."""
        await self._api.close()

    async def _in_use(self, name: str) -> NotDoneError:
        """Return who uses a volume: it goes when they are gone."""
        query = [("all", "true"), filters(volume=[name])]
        users = await self._api.ask("/containers/json", _users_decoder, query)
        names = sorted((each.names or [each.id])[0].removeprefix("/") for each in users)
        shown = ", ".join(names[:_MAX_USERS_NAMED]) or "another client"
        more = f" and {len(names) - _MAX_USERS_NAMED} more" if names[_MAX_USERS_NAMED:] else ""
        return NotDoneError(
            (
                f"volume {name!r} is in use by {shown}{more}; Reconciler deletes it after "
                "these containers are deleted"
            ),
            status=HTTPStatus.CONFLICT,
        )
