"""The provider of ``Container``: creates, changes and deletes containers of a Docker Engine.

A creation makes several calls: create, connect to further networks, start. The first one stores the
action's key in a label, and each can be repeated, so a repeat of the action continues.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec

from events.allow import ROOT
from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from events.secret import SecretRef
from infra.providers.answers import Answer, decoded
from infra.providers.connections import UnusableAnswerError
from infra.providers.docker.engine import (
    EngineApi,
    begun,
    checked_name,
    engine_refusal,
    filters,
    gathered,
    label_filter,
    labels_to_write,
    partly_done,
    said,
    taken,
    without_headers,
)
from infra.providers.docker.events import EngineEvents
from infra.providers.docker.inspection import (
    Inspection,
    as_object,
    configuration,
    endpoint_of,
    excess,
    excess_of_bytes,
    inspection_of,
    limits_to_write,
    name_in,
    wanted_networks,
)
from infra.providers.docker.names import name_problem
from infra.providers.docker.spec import (
    MUTABLE,
    comparable,
)
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider import Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.listing import Unreadable, apart
from reconciler.provider.named_objects import Found, NamedObjects
from reconciler.provider.secrets import Secrets

DEFAULT_STOP_SECONDS: Final = 10
STOPPING_SHARE: Final = 0.5
"""Share of a call's time in which a container may stop before it is killed."""

EVENTS: Final = [
    *("create", "start", "die", "stop", "kill", "destroy", "rename", "update", "pause", "unpause"),
    *("health_status", "connect", "disconnect"),
]
"""Without the events of a health check (``exec_…``), which would report a change at each check."""

_ALONE: Final = frozenset({"host", "none"})
"""Networks that an existing container cannot join or leave."""

LISTED_AT_ONCE: Final = 25
"""A listing contains the command and the labels of a container, which are as large as a
declaration. A response has room for this many, so that no tenant prevents the listing of other
containers."""

_SMALLER: Final = 5
_LISTING_ATTEMPTS: Final = 3
_CALLS_AT_ONCE: Final = 8
_PAGE_BYTES: Final = 4096
_DONE: Final = frozenset({HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class _Listed(msgspec.Struct, frozen=True, rename="pascal"):
    id: str
    names: list[str] | None = None
    labels: dict[str, str] | None = None


class _Made(msgspec.Struct, frozen=True, rename="pascal"):
    id: str


class _NetworkFound(msgspec.Struct, frozen=True, rename="pascal"):
    name: str


class _Info(msgspec.Struct, frozen=True, rename="pascal"):
    mem_total: int


_listed_decoder = msgspec.json.Decoder(list[_Listed])
_made_decoder = msgspec.json.Decoder(_Made)
_network_decoder = msgspec.json.Decoder(_NetworkFound)
_info_decoder = msgspec.json.Decoder(_Info)
_anything_decoder = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class _Container:
    """A container as the Engine shows it, and in converted form. A thread converts large ones."""

    inspection: Inspection
    object: ExternalObject

    @property
    def name(self) -> str:
        """The external name."""
        return self.object.name

    def as_object(self) -> ExternalObject:
        return self.object


class ContainersProvider(NamedObjects[_Container]):
    """Creates, changes and deletes containers of an Engine."""

    noun = "container"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._api = EngineApi(config, secrets, permit)
        self._secrets = secrets
        self._may_be_root = config.allow.permits("users", ROOT)
        self._events = EngineEvents(self._api, ["container", "network"], EVENTS)

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a container cannot have this name."""
        return name_problem(external_name)

    async def find(self, external_name: str) -> _Container | None:
        """Read the container of a name."""
        found = await self._inspected(external_name)
        return None if found is None else await self._container(found)

    async def create_object(self, action: Action) -> _Container:
        """Create and start a container."""
        content = await self._configuration(action)
        if not self._may_be_root:  # otherwise a program of the image could become root
            content["HostConfig"]["SecurityOpt"] = ["no-new-privileges"]
        await self._check_what_it_needs(action.fields)
        query = [("name", checked_name(action.external_name))]
        response = await self._api.call("POST", "/containers/create", query=query, body=content)
        if response.status_code == HTTPStatus.CONFLICT:
            raise taken(action, None)
        if response.status_code == HTTPStatus.NOT_FOUND:
            raise _unmet_requirement(response, action.fields)
        if response.status_code != HTTPStatus.CREATED:
            raise engine_refusal(response)
        with begun("the container was created, but a later step failed"):
            created = await self._by_id(decoded(response, _made_decoder).id)
        return await self._finished(created, action)

    async def complete_object(self, action: Action, found: Found[_Container]) -> _Container:
        """Connect and start a container that an earlier attempt has created."""
        return await self._finished(found.native.inspection, action)

    async def update_object(self, action: Action, found: Found[_Container]) -> _Container:
        """Change limits, restart policy, networks and whether it runs.

        Other fields are immutable.
        """
        fixed = _fixed_differences(found.object, action)
        if fixed:
            what = ", ".join(fixed)
            raise RefusedError(
                f"{what}: the Engine cannot change this in an existing container; declare a "
                "container with another name"
            )
        await self._check_networks(action.fields)
        return await self._completed(found.native.inspection, action.fields)

    async def delete(self, action: Action) -> Effect:
        """Delete a container by its id, even if it was renamed or cannot be converted."""
        found = await self._inspected(action.uid or action.external_name, is_id=bool(action.uid))
        if found is None:
            return await super().delete(action)  # another container may have the name
        return Effect(None, absent=not await self._delete(found))

    async def delete_object(self, action: Action, found: Found[_Container]) -> None:
        """Delete a container. Its volumes stay, also those without a name."""
        del action
        await self._delete(found.native.inspection)

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_Container]]:
        """List the containers of a scope in parts, and read each container by its id."""
        listed = [each for each in await self._listed(scope) if _may_be_in(scope, each)]
        for start in range(0, len(listed), page_size):
            calls = [self._read(each, unreadable) for each in listed[start : start + page_size]]
            found = await gathered(calls, _CALLS_AT_ONCE)
            yield [each for each in found if each is not None]

    async def changes(self, after: str | None) -> str:
        """Wait for the Engine's next event about a container."""
        return await self._events.changes(after)

    async def logs(
        self, uid: str, *, follow: bool = False, tail: int | None = None
    ) -> AsyncGenerator[bytes]:
        """Read the output and the errors that a container has written."""
        found = await self._inspected(uid, is_id=True)
        if found is None:
            raise NotFoundError(f"container {uid} does not exist")
        query = [("stdout", "true"), ("stderr", "true"), ("follow", str(follow).lower())]
        query.append(("tail", "all" if tail is None else str(tail)))
        async with self._api.stream(f"/containers/{found.id}/logs", query) as pieces:
            async for piece in pieces if found.config.tty else without_headers(pieces):
                yield piece

    async def readings(self, external_name: str) -> Fields | None:
        """Return when it started, how it ended before, and how often the Engine restarted it."""
        found = await self._inspected(external_name)
        return None if found is None else found.readings

    async def close(self) -> None:
        """Close connections."""
        await self._api.close()

    # --- creation and repair

    async def _configuration(self, action: Action) -> dict[str, Any]:
        fields, env = action.fields, dict[str, str]()
        for name, value in fields.get("env", {}).items():
            is_text = isinstance(value, str)
            env[name] = value if is_text else await self._secret(value, action.namespace)
        return configuration(fields, env, labels_to_write(action))

    async def _secret(self, value: Fields, namespace: str) -> str:
        if "$secret" not in value:
            raise RefusedError("env: a variable must be a string or {$secret: NAME}")
        found = await self._secrets.value(msgspec.convert(value, SecretRef), namespace)
        if "\0" in found:
            raise RefusedError(
                f"secret {value['$secret']!r} contains NUL, which an environment variable cannot "
                "have"
            )
        return found

    async def _check_what_it_needs(self, fields: Fields) -> None:
        """Refuse a container that would be incomplete, or use an undeclared volume by a typo."""
        volumes = {each["source"] for each in fields.get("mounts", []) if each["type"] == "volume"}
        for volume in sorted(volumes):
            if await self._api.find(f"/volumes/{checked_name(volume)}", _anything_decoder) is None:
                raise NotDoneError(
                    f"volume {volume!r} does not exist; declare or create it",
                    status=HTTPStatus.NOT_FOUND,
                )
        await self._check_networks(fields)

    async def _check_networks(self, fields: Fields) -> None:
        for network in sorted(wanted_networks(fields).keys() if "networks" in fields else ()):
            found = await self._api.ask(f"/networks/{network}", _network_decoder)
            if found.name != network:  # the Engine accepts an id as a name, and then shows the name
                raise RefusedError(
                    f"network {network!r} does not exist; that is the id of the network "
                    f"{found.name!r}, so use its name"
                )

    async def _finished(self, found: Inspection, action: Action) -> _Container:
        """Bring a created container to its declared state. It stays after a failure."""
        try:
            with begun("the container was created, but a later step failed"):
                return await self._completed(found, action.fields)
        except UnknownResultError as error:
            if isinstance(error.__cause__, RefusedError):  # for example a missing command
                with begun("the container was created, but reading it failed"):
                    half = await self._container(await self._by_id(found.id))
                raise RefusedError(
                    error.message, status=error.status, obstacle=half.object
                ) from error
            raise

    async def _completed(self, found: Inspection, fields: Fields) -> _Container:
        """Bring a container to its declared state, by calls that can each be repeated."""
        place, is_begun = f"/containers/{found.id}", False
        try:
            if limits := limits_to_write(fields, found):
                await self._do(f"{place}/update", await self._within_the_host(limits))
                is_begun = True
            for path, body in _network_changes(fields, found):
                await self._do(path, body)
                is_begun = True
            is_wanted, state = fields.get("running", True), found.state
            if is_wanted and state.paused:
                await self._do(f"{place}/unpause")
            elif is_wanted and not state.running:
                await self._do(f"{place}/start")
            elif state.running and not is_wanted:
                await self._stop(found)
            is_begun = True
            return await self._container(await self._by_id(found.id))
        except ProviderError as error:
            if not is_begun or isinstance(error, UnknownResultError):
                raise
            raise partly_done("the container was partly changed", error) from error

    async def _do(self, path: str, body: object = None) -> None:
        answer = await self._api.call("POST", path, body=body)
        if answer.status_code not in _DONE:
            raise _not_done(answer)

    async def _within_the_host(self, limits: dict[str, Any]) -> dict[str, Any]:
        """Set the host's memory as the limit if none is declared: the Engine cannot remove one."""
        if "Memory" not in limits or limits["Memory"] is not None:
            return limits
        total = (await self._api.ask("/info", _info_decoder)).mem_total
        memory = total - total % _PAGE_BYTES
        return {**limits, "Memory": memory, "MemorySwap": 2 * memory}

    async def _delete(self, found: Inspection) -> bool:
        """Stop a container and remove it. Return whether it still existed."""
        if not found.state.is_up:
            return await self._remove(found)
        await self._stop(found)
        with begun("the container was stopped, but its removal failed"):
            await self._remove(found)
        return True

    async def _remove(self, found: Inspection) -> bool:
        path = f"/containers/{found.id}"
        response = await self._api.call("DELETE", path, query=[("force", "true")])
        if response.status_code not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND):
            raise engine_refusal(response)
        return response.status_code == HTTPStatus.NO_CONTENT

    async def _stop(self, found: Inspection) -> None:
        wanted = found.config.stop_timeout
        most = int(self._api.timeout_seconds * STOPPING_SHARE)
        seconds = min(DEFAULT_STOP_SECONDS if wanted is None else wanted, most)
        path = f"/containers/{found.id}/stop"
        answer = await self._api.call("POST", path, query=[("t", str(seconds))])
        if answer.status_code not in {*_DONE, HTTPStatus.NOT_FOUND}:
            raise engine_refusal(answer)

    # --- reading

    async def _listed(self, scope: Scope) -> list[_Listed]:
        """List the containers. Start again if the last one of a part was deleted."""
        for _ in range(_LISTING_ATTEMPTS - 1):
            try:
                return await self._listed_in_parts(scope)
            except NotDoneError as error:
                if "no such container" not in error.message.lower():
                    raise
        return await self._listed_in_parts(scope)

    async def _listed_in_parts(self, scope: Scope) -> list[_Listed]:
        """List the newest containers, and then those older than the last one.

        In smaller parts if a response is too large: an image may have labels of any size.
        """
        found: list[_Listed] = []
        most = LISTED_AT_ONCE
        while True:
            before = [found[-1].id] if found else []
            query = [
                ("all", "true"),
                ("limit", str(most)),
                filters(label=label_filter(scope.labels), before=before),
            ]
            try:
                part = await self._api.ask("/containers/json", _listed_decoder, query)
            except NotDoneError as error:
                if most == 1 or not isinstance(error.__cause__, UnusableAnswerError):
                    raise
                most //= _SMALLER
                continue
            found += part
            if len(part) < most:
                return found

    async def _inspected(self, external_name: str, *, is_id: bool = False) -> Inspection | None:
        """Read the container of a name.

        The Engine also accepts the beginning of an id as a name.
        """
        checked = checked_name(external_name)
        found = await self._inspection(checked)
        if found is None or external_name == (found.id if is_id else found.external_name):
            return found
        return None

    async def _inspection(self, id_or_name: str) -> Inspection | None:
        answer = await self._api.find_answer(f"/containers/{id_or_name}/json")
        return None if answer is None else inspection_of(answer)

    async def _read(self, listed: _Listed, unreadable: Unreadable) -> _Container | None:
        """Read a listed container; None if it was deleted, or cannot be converted."""
        answer = await self._api.find_answer(f"/containers/{listed.id}/json")
        if answer is None:
            return None
        if size := excess_of_bytes(len(answer.content)):  # the decoding takes long, too
            unreadable.add(name_in(answer), listed.id, size)
            return None
        return await apart(
            lambda: unreadable.converted(
                lambda: self._converted(inspection_of(answer)),
                lambda: (name_in(answer), listed.id),
            ),
            len(answer.content),
        )

    async def _by_id(self, id_: str) -> Inspection:
        found = await self._inspection(id_)
        if found is None:
            raise NotDoneError(f"container {id_} was deleted in the meantime")
        return found

    async def _container(self, inspected: Inspection) -> _Container:
        return await apart(lambda: self._converted(inspected), inspected.size_bytes)

    def _converted(self, inspected: Inspection) -> _Container:
        """Convert a container. Raises ``RefusedError`` for one that cannot be converted."""
        try:
            if not (reason := excess(inspected)):
                return _Container(inspected, as_object(inspected, self._secrets.digest))
        except Exception as error:  # noqa: BLE001 - other clients choose all that it contains
            reason = f"cannot be converted: {type(error).__name__}: {error}"
        raise RefusedError(
            f"container {inspected.external_name!r}: {reason}; a resource cannot manage it"
        )


def _may_be_in(scope: Scope, listed: _Listed) -> bool:
    names = [each.removeprefix("/") for each in listed.names or ()]
    return not names or any(name.startswith(scope.prefix or "") for name in names)


def _fixed_differences(shown: ExternalObject, action: Action) -> list[str]:
    """Name the fields that an update cannot change; labels only if nothing else differs."""
    wanted, seen = comparable(action.fields), comparable(shown.fields)
    names = sorted(wanted.keys() | seen.keys())
    differing = [name for name in names if wanted.get(name) != seen.get(name)]
    if not differing and action.labels != shown.labels:
        return ["labels"]
    before, after = (
        {each["name"] for each in fields.get("networks", ())} for fields in (wanted, seen)
    )
    is_fixed = bool(_ALONE & (before ^ after))
    return [name for name in differing if name not in MUTABLE or (name == "networks" and is_fixed)]


def _network_changes(fields: Fields, found: Inspection) -> list[tuple[str, object]]:
    """Return the calls that connect a container to the declared networks, and no others.

    A container with another address in a network leaves it first, as an address cannot be changed.
    """
    wanted, seen = wanted_networks(fields), found.networks
    leaving = [name for name, each in seen.items() if wanted.get(name) != each]
    joining = [name for name, each in wanted.items() if seen.get(name) != each]
    return [
        *(
            (f"/networks/{name}/disconnect", {"Container": found.id, "Force": True})
            for name in leaving
        ),
        *(
            (
                f"/networks/{name}/connect",
                {"Container": found.id, "EndpointConfig": endpoint_of(wanted[name])},
            )
            for name in joining
        ),
    ]


def _unmet_requirement(answer: Answer, fields: Fields) -> ProviderError:
    """Describe a creation with a missing requirement. The Engine reports a missing image as 404."""
    words = said(answer)
    if words.lower().startswith("no such image"):
        return NotDoneError(
            f"image {fields['image']!r} does not exist on this Engine, and Reconciler does "
            "not pull images; pull, load or build it there",
            status=HTTPStatus.NOT_FOUND,
        )
    return engine_refusal(answer)


def _not_done(answer: Answer) -> ProviderError:
    """Describe a failed change. A deleted container is a conflict."""
    if answer.status_code == HTTPStatus.NOT_FOUND and "no such container" in said(answer).lower():
        return ConflictError(
            "the container has been deleted since it was read", status=answer.status_code
        )
    return engine_refusal(answer)
