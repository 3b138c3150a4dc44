"""The provider of ``Volume``: creates and deletes named volumes of a Docker Engine.

Volumes have no id, and writes to a volume change its creation time. So the uid of a volume that
Reconciler created is a digest of the creating action's key, which is stored in a label.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from events.excerpt import list_first
from events.external import ExternalObject
from events.log import Action
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.docker.engine import (
    WRITTEN_BY,
    EngineApi,
    build_engine_error,
    build_name_conflict,
    build_not_found_error,
    checked_name,
    filters,
    label_filter,
    labels_to_write,
    unreserved_labels,
)
from infra.providers.docker.events import EngineEvents
from infra.providers.docker.names import name_problem
from infra.providers.docker.volume_spec import DEFAULT_DRIVER, normalize
from infra.providers.responses import decode_body
from reconciler.errors import NotDoneError, RefusedError
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import ExistingObject, NamedObjects
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import belongs_to_other_namespace

EVENTS: Final = ["create", "destroy"]

_MAX_NAMED_USERS: Final = 5


class _Volume(msgspec.Struct, frozen=True, rename="pascal"):
    """A volume as the Engine reports it."""

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
            labels=unreserved_labels(self.labels),
            written_by=(self.labels or {}).get(WRITTEN_BY),
            outputs={"mountpoint": self.mountpoint},
        )

    @property
    def _uid(self) -> str:
        """Return a uid derived from the key, or from a foreign volume's immutable values."""
        identity = (self.labels or {}).get(WRITTEN_BY) or msgspec.json.encode(
            (self.name, self.driver, self.options or {}, self.labels or {}), order="deterministic"
        ).decode()
        return f"volume-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


class _Volumes(msgspec.Struct, frozen=True, rename="pascal"):
    volumes: list[_Volume] | None = None
    warnings: list[str] | None = None


class _UsingContainer(msgspec.Struct, frozen=True, rename="pascal"):
    id: str
    names: list[str] | None = None
    labels: dict[str, str] | None = None


_volume_decoder = msgspec.json.Decoder(_Volume)
_volumes_decoder = msgspec.json.Decoder(_Volumes)
_users_decoder = msgspec.json.Decoder(list[_UsingContainer])


class VolumesProvider(NamedObjects[_Volume]):
    """Creates and deletes an Engine's volumes. An existing volume cannot be changed."""

    noun = "volume"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._api = EngineApi(config, secrets, permit)
        self._events = EngineEvents(self._api, ["volume"], EVENTS)

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a volume cannot have this name."""
        return name_problem(external_name)

    async def find(self, external_name: str) -> _Volume | None:
        """Read a volume."""
        return await self._api.find(_path(external_name), _volume_decoder)

    async def create_object(self, action: Action) -> _Volume:
        """Create a volume. For an existing one, the Engine returns 201 and the existing labels."""
        content = {
            "Name": action.external_name,
            "Driver": action.fields["driver"],
            "DriverOpts": action.fields["options"],
            "Labels": labels_to_write(action),
        }
        response = await self._api.call("POST", "/volumes/create", body=content)
        if response.status_code == HTTPStatus.CONFLICT:
            raise build_name_conflict(action, None)
        if response.status_code not in (HTTPStatus.CREATED, HTTPStatus.OK):
            raise build_engine_error(response)
        return decode_body(response, _volume_decoder)

    async def update_object(self, action: Action, existing: ExistingObject[_Volume]) -> _Volume:
        """Refuse every change, because the Engine has no call to update a volume."""
        if (normalize(action.fields), action.labels) == (
            existing.object.fields,
            existing.object.labels,
        ):
            return existing.native
        raise RefusedError(
            "the Engine cannot change an existing volume; declare a volume with another name"
        )

    async def delete_object(self, action: Action, existing: ExistingObject[_Volume]) -> None:
        """Delete a volume with all its data."""
        del existing  # the Engine has no conditional deletion
        response = await self._api.call("DELETE", _path(action.external_name))
        if response.status_code == HTTPStatus.NOT_FOUND:
            raise build_not_found_error(action)
        if response.status_code == HTTPStatus.CONFLICT:
            raise await self._build_in_use_error(action)
        if response.status_code != HTTPStatus.NO_CONTENT:
            raise build_engine_error(response)

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_Volume]]:
        """List all volumes in one response. Its warnings name drivers that do not respond."""
        del page_size, unreadable
        query = [filters(label=label_filter(scope.labels))]
        listing = await self._api.get("/volumes", _volumes_decoder, query)
        if listing.warnings:
            raise NotDoneError(
                f"the listing of volumes is incomplete: {list_first(listing.warnings, '; ')}"
            )
        yield listing.volumes or ()

    async def changes(self, after: str | None) -> str:
        """Wait for the Engine's next event about a volume."""
        return await self._events.changes(after)

    async def close(self) -> None:
        """Close connections."""
        await self._api.close()

    async def _build_in_use_error(self, action: Action) -> NotDoneError:
        """Return an error that names the containers that use a volume.

        It does not name containers of other namespaces.
        """
        name = action.external_name
        query = [("all", "true"), filters(volume=[name])]
        users = await self._api.get("/containers/json", _users_decoder, query)
        names = sorted(
            "a container in another namespace"
            if belongs_to_other_namespace(each.labels, action.namespace)
            else (each.names or [each.id])[0].removeprefix("/")
            for each in users
        )
        user_list = ", ".join(names[:_MAX_NAMED_USERS]) or "another client"
        remainder = f" and {len(names) - _MAX_NAMED_USERS} more" if names[_MAX_NAMED_USERS:] else ""
        return NotDoneError(
            (
                f"volume {name!r} is in use by {user_list}{remainder}; Reconciler deletes it when "
                "it is no longer in use"
            ),
            status=HTTPStatus.CONFLICT,
        )


def _path(external_name: str) -> str:
    return f"/volumes/{checked_name(external_name)}"
