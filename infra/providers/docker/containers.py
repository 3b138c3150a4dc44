"""The provider of ``Container``: creates, updates and deletes containers on a Docker Engine.

Creating a container takes several calls: create it, connect it to its other networks, start it. The
first stores the action's key in a label, and each can be repeated, so a retried action resumes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec

from events.allow import ROOT
from events.excerpt import list_first
from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from events.secret import SecretRef
from infra.providers.connections import InvalidResponseError
from infra.providers.docker.engine import (
    EngineApi,
    build_engine_error,
    build_name_conflict,
    build_partial_failure,
    checked_name,
    filters,
    gather_limited,
    is_port_in_use,
    label_filter,
    labels_to_write,
    mark_partial_failure,
    read_error_message,
    strip_headers,
)
from infra.providers.docker.events import EngineEvents
from infra.providers.docker.inspection import (
    Inspection,
    as_object,
    build_configuration,
    build_endpoint,
    decode_inspection,
    describe_excess,
    describe_excess_bytes,
    desired_networks,
    limits_to_write,
    read_name,
)
from infra.providers.docker.names import name_problem
from infra.providers.docker.spec import (
    ANONYMOUS_VOLUMES,
    INHERITED_VOLUMES,
    MUTABLE,
    comparable,
    has_finished,
)
from infra.providers.responses import Response, decode_body
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
from reconciler.provider.data_check import check_data
from reconciler.provider.listing import Unreadable, convert_by_size
from reconciler.provider.named_objects import ExistingObject, NamedObjects
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import (
    OWNER_LABEL,
    belongs_to_other_namespace,
    namespace_of,
)

DEFAULT_STOP_SECONDS: Final = 10
STOP_TIMEOUT_FRACTION: Final = 0.5
"""Fraction of the request timeout that a container has to stop before the Engine kills it."""

EVENTS: Final = [
    *("create", "start", "die", "stop", "kill", "destroy", "rename", "update", "pause", "unpause"),
    *("health_status", "connect", "disconnect"),
]
"""Excludes the ``exec_…`` events of health checks, which would report a change on every check."""

_EXCLUSIVE_NETWORKS: Final = frozenset({"host", "none"})
"""Networks that an existing container cannot join or leave."""

LISTING_PAGE_SIZE: Final = 25
"""A listing contains a container's command and labels, which can be as large as a declaration. A
response can hold 25 of them, so that no tenant can block the listing of other containers."""

_PAGE_SIZE_DIVISOR: Final = 5
_LISTING_ATTEMPTS: Final = 3
_MAX_CONCURRENT_CALLS: Final = 8
_PAGE_BYTES: Final = 4096
_DONE: Final = frozenset({HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


_PORT_REMEDY: Final = "stop it, or declare another port"


class _PublishedPort(msgspec.Struct, frozen=True, rename="pascal"):
    type: str
    public_port: int = 0
    address: str = msgspec.field(name="IP", default="")


class _ListedContainer(msgspec.Struct, frozen=True, rename="pascal"):
    id: str
    names: list[str] | None = None
    labels: dict[str, str] | None = None
    ports: list[_PublishedPort] | None = None


class _CreateResponse(msgspec.Struct, frozen=True, rename="pascal"):
    id: str


class _NetworkInfo(msgspec.Struct, frozen=True, rename="pascal"):
    name: str


class _Info(msgspec.Struct, frozen=True, rename="pascal"):
    mem_total: int


_listing_decoder = msgspec.json.Decoder(list[_ListedContainer])
_created_decoder = msgspec.json.Decoder(_CreateResponse)
_network_decoder = msgspec.json.Decoder(_NetworkInfo)
_info_decoder = msgspec.json.Decoder(_Info)
_anything_decoder = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class _Container:
    """A container as the Engine reports it, and as an object. A thread converts large ones."""

    inspection: Inspection
    object: ExternalObject

    @property
    def name(self) -> str:
        """The external name."""
        return self.object.name

    def as_object(self) -> ExternalObject:
        return self.object


class ContainersProvider(NamedObjects[_Container]):
    """Creates, updates and deletes an Engine's containers."""

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
        """Read the container with this name."""
        inspection = await self._find_inspection(external_name)
        return None if inspection is None else await self._container(inspection)

    async def create_object(self, action: Action) -> _Container:
        """Create and start a container."""
        content = await self._configuration(action)
        if not self._may_be_root:  # otherwise a program in the image could become root
            content["HostConfig"]["SecurityOpt"] = ["no-new-privileges"]
        await self._check_requirements(action.fields)
        await self._check_ports(action)
        query = [("name", checked_name(action.external_name))]
        response = await self._api.call("POST", "/containers/create", query=query, body=content)
        if response.status_code == HTTPStatus.CONFLICT:
            raise build_name_conflict(action, None)
        if response.status_code == HTTPStatus.NOT_FOUND:
            raise _build_creation_error(response, action.fields)
        if response.status_code != HTTPStatus.CREATED:
            raise build_engine_error(response)
        with mark_partial_failure("the container was created, but a later step failed"):
            created = await self._by_id(decode_body(response, _created_decoder).id)
        try:
            return await self._finish(created, action)
        except UnknownResultError as error:
            if not is_port_in_use(error.message):
                raise
            raise await self._undo_creation(created, error) from error

    async def complete_object(
        self, action: Action, existing: ExistingObject[_Container]
    ) -> _Container:
        """Connect and start a container that an earlier attempt created."""
        inspection = existing.native.inspection
        if has_finished(action.fields, existing.object.outputs):
            action = msgspec.structs.replace(action, fields=_without_running(action.fields))
        return await self._finish(inspection, action)

    async def update_object(
        self, action: Action, existing: ExistingObject[_Container]
    ) -> _Container:
        """Change a container's limits, restart policy, networks and running state."""
        immutable = _immutable_differences(existing.object, action)
        if immutable:
            names = ", ".join(immutable)
            raise RefusedError(
                f"{names}: the Engine cannot change this in an existing container; declare a "
                "container with another name"
            )
        await self._check_networks(action.fields)
        return await self._complete(existing.native.inspection, action.fields)

    async def delete(self, action: Action) -> Effect:
        """Delete a container by its id, even if it was renamed or cannot be converted."""
        inspection = await self._find_inspection(
            action.uid or action.external_name, is_id=bool(action.uid)
        )
        if inspection is None:
            return await super().delete(action)  # another container may have the name
        await self.check_before_deletion(action)
        await self._check_data(inspection)
        return Effect(None, absent=not await self._delete(inspection))

    async def _check_data(self, inspection: Inspection) -> None:
        """Compare the anonymous volumes with the decision, even if the rest cannot be converted."""
        try:
            existing = (await self._container(inspection)).as_object()
        except RefusedError:
            existing = ExternalObject(
                inspection.external_name,
                {},
                inspection.id,
                labels=dict(inspection.labels),
                outputs={ANONYMOUS_VOLUMES: inspection.anonymous_volumes},
            )
        check_data(existing)

    async def check_replacement(self, action: Action) -> None:
        """Check that the image, secrets, volumes and networks of a new container exist."""
        await self._configuration(action)
        image = action.fields["image"]
        response = await self._api.call("GET", f"/images/{quote(image, safe='/:@')}/json")
        if response.status_code == HTTPStatus.NOT_FOUND:
            raise _build_creation_error(response, action.fields)
        # A proxy of the Engine may forbid access to images. Only the creation then shows an error.
        if response.status_code not in (HTTPStatus.OK, HTTPStatus.FORBIDDEN):
            raise build_engine_error(response)
        await self._check_requirements(action.fields)

    async def delete_object(self, action: Action, existing: ExistingObject[_Container]) -> None:
        """Delete a container. Its volumes are kept, including anonymous ones."""
        del action
        await self._delete(existing.native.inspection)

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_Container]]:
        """List the containers in a scope page by page, and read each container by its id."""
        containers = [each for each in await self._list(scope) if _may_be_in(scope, each)]
        for start in range(0, len(containers), page_size):
            calls = [self._read(each, unreadable) for each in containers[start : start + page_size]]
            results = await gather_limited(calls, _MAX_CONCURRENT_CALLS)
            yield [each for each in results if each is not None]

    async def changes(self, after: str | None) -> str:
        """Wait for the Engine's next event about a container."""
        return await self._events.changes(after)

    async def logs(
        self, uid: str, *, follow: bool = False, tail: int | None = None
    ) -> AsyncGenerator[bytes]:
        """Stream a container's stdout and stderr."""
        inspection = await self._find_inspection(uid, is_id=True)
        if inspection is None:
            raise NotFoundError(f"container {uid} does not exist")
        query = [("stdout", "true"), ("stderr", "true"), ("follow", str(follow).lower())]
        query.append(("tail", "all" if tail is None else str(tail)))
        async with self._api.stream(f"/containers/{inspection.id}/logs", query) as chunks:
            async for chunk in chunks if inspection.config.tty else strip_headers(chunks):
                yield chunk

    async def readings(self, external_name: str) -> Fields | None:
        """Return a container's start time, last exit code and number of restarts."""
        inspection = await self._find_inspection(external_name)
        return None if inspection is None else inspection.readings

    async def close(self) -> None:
        """Close connections."""
        await self._api.close()

    # --- creation and repair

    async def _configuration(self, action: Action) -> dict[str, Any]:
        fields, env = action.fields, dict[str, str]()
        for name, value in fields.get("env", {}).items():
            is_string = isinstance(value, str)
            env[name] = value if is_string else await self._secret(value, action.namespace)
        return build_configuration(fields, env, labels_to_write(action))

    async def _secret(self, value: Fields, namespace: str) -> str:
        if "$secret" not in value:
            raise RefusedError("env: a variable must be a string or {$secret: NAME}")
        secret = await self._secrets.value(msgspec.convert(value, SecretRef), namespace)
        if "\0" in secret:
            raise RefusedError(
                f"secret {value['$secret']!r} contains NUL, which is not allowed in an "
                "environment variable"
            )
        return secret

    async def _check_requirements(self, fields: Fields) -> None:
        """Check that volumes and networks exist: the Engine would create a misspelled volume."""
        volumes = {each["source"] for each in fields.get("mounts", []) if each["type"] == "volume"}
        for volume in sorted(volumes):
            if await self._api.find(f"/volumes/{checked_name(volume)}", _anything_decoder) is None:
                raise NotDoneError(
                    f"volume {volume!r} does not exist; declare or create it",
                    status=HTTPStatus.NOT_FOUND,
                )
        for path, volume in fields.get(INHERITED_VOLUMES, {}).items():
            if await self._api.find(f"/volumes/{checked_name(volume)}", _anything_decoder) is None:
                raise NotDoneError(
                    f"anonymous volume {volume} with the data of {path} does not exist; restore "
                    f"it, or run `docker volume create {volume}` to start with an empty one",
                    status=HTTPStatus.NOT_FOUND,
                )
        await self._check_networks(fields)

    async def _check_networks(self, fields: Fields) -> None:
        for network in sorted(desired_networks(fields).keys() if "networks" in fields else ()):
            existing = await self._api.get(f"/networks/{network}", _network_decoder)
            # The Engine also accepts a network's id, and returns its name.
            if existing.name != network:
                raise RefusedError(
                    f"network {network!r} does not exist; this is the id of network "
                    f"{existing.name!r}, so use its name"
                )

    async def _finish(self, inspection: Inspection, action: Action) -> _Container:
        """Bring a new container to its declared state, and keep it after a failure."""
        try:
            with mark_partial_failure("the container was created, but a later step failed"):
                return await self._complete(inspection, action.fields)
        except UnknownResultError as error:
            if isinstance(error.__cause__, RefusedError):  # for example, a missing command
                with mark_partial_failure("the container was created, but it could not be read"):
                    incomplete = await self._container(await self._by_id(inspection.id))
                raise RefusedError(
                    error.message, status=error.status, obstacle=incomplete.object
                ) from error
            raise

    async def _complete(self, inspection: Inspection, fields: Fields) -> _Container:
        """Bring a container to its declared state with calls that can each be repeated."""
        container_path, has_effect = f"/containers/{inspection.id}", False
        try:
            if limits := limits_to_write(fields, inspection):
                await self._post(
                    f"{container_path}/update", await self._limit_to_host_memory(limits)
                )
                has_effect = True
            for path, body in _network_changes(fields, inspection):
                await self._post(path, body)
                has_effect = True
            # A process that has finished has no value here, and stays as it is.
            should_run, state = fields.get("running"), inspection.state
            if should_run and state.paused:
                await self._post(f"{container_path}/unpause")
            elif should_run and not state.running:
                await self._start(inspection, fields)
            elif state.running and should_run is False:
                await self._stop(inspection)
            has_effect = True
            return await self._container(await self._by_id(inspection.id))
        except ProviderError as error:
            if not has_effect or isinstance(error, UnknownResultError):
                raise
            raise build_partial_failure("the container was partly changed", error) from error

    async def _start(self, inspection: Inspection, fields: Fields) -> None:
        try:
            await self._post(f"/containers/{inspection.id}/start")
        except NotDoneError as error:
            if not is_port_in_use(error.message):
                raise
            users = await self._find_port_users(fields, inspection.id, inspection.labels)
            who = list_first(users) if users else "a process outside of this Engine uses it"
            raise NotDoneError(
                f"{error.message}; {who}; {_PORT_REMEDY}", status=error.status
            ) from error

    async def _check_ports(self, action: Action) -> None:
        """Check that no other container uses a declared port: the Engine only does at the start."""
        if not action.fields.get("running", True):
            return
        users = await self._find_port_users(action.fields, "", action.labels)
        if users:
            raise NotDoneError(f"{list_first(users)}; {_PORT_REMEDY}", status=HTTPStatus.CONFLICT)

    async def _find_port_users(
        self, fields: Fields, own_id: str, labels: Mapping[str, str]
    ) -> list[str]:
        """Describe the other running containers that publish the declared ports.

        Does not name containers of other namespaces.

        ``labels``: the labels of the declared container. A container with the same owner was
        renamed, because its name is free.
        """
        users: list[str] = []
        for port in fields.get("ports", ()):
            if "host" not in port:
                continue
            published = f"{port['host']}/{port['protocol']}"
            query = [filters(publish=[published])]
            running = await self._api.get("/containers/json", _listing_decoder, query)
            for each in running:
                if each.id == own_id or not _publishes(each, port):
                    continue
                owner = labels.get(OWNER_LABEL)
                is_former = owner is not None and (each.labels or {}).get(OWNER_LABEL) == owner
                note = ", which another client renamed," if is_former else ""
                user = (
                    "a container in another namespace"
                    if belongs_to_other_namespace(each.labels, namespace_of(owner or ""))
                    else f"container {_name_of(each)!r}{note}"
                )
                users.append(f"{user} uses port {published}")
        return users

    async def _undo_creation(self, created: Inspection, error: UnknownResultError) -> ProviderError:
        """Remove a container that could not start, so that the creation is definitely not done.

        Its own anonymous volumes have never been used. The Engine keeps volumes with a name, and
        refuses to remove a container that another call has started.
        """
        query = [("v", "true")]
        try:
            response = await self._api.call("DELETE", f"/containers/{created.id}", query=query)
        except ProviderError:
            return error
        if response.status_code not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND):
            return error
        cause = error.__cause__
        message = cause.message if isinstance(cause, ProviderError) else error.message
        return NotDoneError(message, status=HTTPStatus.CONFLICT)

    async def _post(self, path: str, body: object = None) -> None:
        response = await self._api.call("POST", path, body=body)
        if response.status_code not in _DONE:
            raise _build_change_error(response)

    async def _limit_to_host_memory(self, limits: dict[str, Any]) -> dict[str, Any]:
        """Set the limit to the host's memory if none is declared: the Engine cannot remove it."""
        if "Memory" not in limits or limits["Memory"] is not None:
            return limits
        total = (await self._api.get("/info", _info_decoder)).mem_total
        memory = total - total % _PAGE_BYTES
        return {**limits, "Memory": memory, "MemorySwap": 2 * memory}

    async def _delete(self, inspection: Inspection) -> bool:
        """Stop a container and remove it. Return whether it still existed."""
        if not inspection.state.is_up:
            return await self._remove(inspection)
        await self._stop(inspection)
        with mark_partial_failure("the container was stopped, but could not be removed"):
            await self._remove(inspection)
        return True

    async def _remove(self, inspection: Inspection) -> bool:
        path = f"/containers/{inspection.id}"
        response = await self._api.call("DELETE", path, query=[("force", "true")])
        if response.status_code not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND):
            raise build_engine_error(response)
        return response.status_code == HTTPStatus.NO_CONTENT

    async def _stop(self, inspection: Inspection) -> None:
        configured = inspection.config.stop_timeout
        max_seconds = int(self._api.timeout_seconds * STOP_TIMEOUT_FRACTION)
        seconds = min(DEFAULT_STOP_SECONDS if configured is None else configured, max_seconds)
        path = f"/containers/{inspection.id}/stop"
        response = await self._api.call("POST", path, query=[("t", str(seconds))])
        if response.status_code not in {*_DONE, HTTPStatus.NOT_FOUND}:
            raise build_engine_error(response)

    # --- reading

    async def _list(self, scope: Scope) -> list[_ListedContainer]:
        """List the containers. Start over if the last container of a page was deleted."""
        for _ in range(_LISTING_ATTEMPTS - 1):
            try:
                return await self._list_in_pages(scope)
            except NotDoneError as error:
                if "no such container" not in error.message.lower():
                    raise
        return await self._list_in_pages(scope)

    async def _list_in_pages(self, scope: Scope) -> list[_ListedContainer]:
        """List the newest containers, then those older than the last one.

        Uses smaller pages if a response is too large, because image labels may have any size.
        """
        containers: list[_ListedContainer] = []
        limit = LISTING_PAGE_SIZE
        while True:
            last_ids = [containers[-1].id] if containers else []
            query = [
                ("all", "true"),
                ("limit", str(limit)),
                filters(label=label_filter(scope.labels), before=last_ids),
            ]
            try:
                page = await self._api.get("/containers/json", _listing_decoder, query)
            except NotDoneError as error:
                if limit == 1 or not isinstance(error.__cause__, InvalidResponseError):
                    raise
                limit //= _PAGE_SIZE_DIVISOR
                continue
            containers += page
            if len(page) < limit:
                return containers

    async def _find_inspection(
        self, external_name: str, *, is_id: bool = False
    ) -> Inspection | None:
        """Read the container with this name.

        The Engine also accepts a prefix of an id as a name.
        """
        checked = checked_name(external_name)
        inspection = await self._inspection(checked)
        if inspection is None or external_name == (
            inspection.id if is_id else inspection.external_name
        ):
            return inspection
        return None

    async def _inspection(self, id_or_name: str) -> Inspection | None:
        response = await self._api.find_response(f"/containers/{id_or_name}/json")
        return None if response is None else decode_inspection(response)

    async def _read(self, container: _ListedContainer, unreadable: Unreadable) -> _Container | None:
        """Read a listed container; None if it was deleted, or cannot be converted."""
        response = await self._api.find_response(f"/containers/{container.id}/json")
        if response is None:
            return None
        if size := describe_excess_bytes(len(response.content)):  # too long to decode
            unreadable.add(read_name(response), container.id, size)
            return None
        return await convert_by_size(
            lambda: unreadable.convert_or_record(
                lambda: self._convert(decode_inspection(response)),
                lambda: (read_name(response), container.id),
            ),
            len(response.content),
        )

    async def _by_id(self, id_: str) -> Inspection:
        inspection = await self._inspection(id_)
        if inspection is None:
            raise NotDoneError(f"container {id_} was deleted in the meantime")
        return inspection

    async def _container(self, inspection: Inspection) -> _Container:
        return await convert_by_size(lambda: self._convert(inspection), inspection.size_bytes)

    def _convert(self, inspection: Inspection) -> _Container:
        """Convert a container. Raises ``RefusedError`` for one that cannot be converted."""
        try:
            if not (reason := describe_excess(inspection)):
                return _Container(inspection, as_object(inspection, self._secrets.digest))
        except Exception as error:  # noqa: BLE001 - other clients control its contents
            reason = f"cannot be converted: {type(error).__name__}: {error}"
        raise RefusedError(
            f"container {inspection.external_name!r}: {reason}; a resource cannot manage it"
        )


def _name_of(container: _ListedContainer) -> str:
    return (container.names or [container.id])[0].removeprefix("/")


def _publishes(container: _ListedContainer, port: Fields) -> bool:
    """Return whether a container publishes a declared port at an overlapping address."""
    return any(
        (each.public_port, each.type) == (port["host"], port["protocol"])
        and _overlaps(each.address, port.get("address", ""))
        for each in container.ports or ()
    )


def _overlaps(first: str, second: str) -> bool:
    """Return whether two addresses to listen on overlap. An empty one means all addresses."""
    if not first or not second:
        return True
    addresses = {ipaddress.ip_address(first), ipaddress.ip_address(second)}
    has_one_version = len({each.version for each in addresses}) == 1
    return has_one_version and (
        len(addresses) == 1 or any(each.is_unspecified for each in addresses)
    )


def _without_running(fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if name != "running"}


def _may_be_in(scope: Scope, container: _ListedContainer) -> bool:
    names = [each.removeprefix("/") for each in container.names or ()]
    return not names or any(name.startswith(scope.prefix or "") for name in names)


def _immutable_differences(observed: ExternalObject, action: Action) -> list[str]:
    """Return the differing fields that cannot be updated; labels only if nothing else differs."""
    desired, current = comparable(action.fields), comparable(observed.fields)
    names = sorted(desired.keys() | current.keys())
    differences = [name for name in names if desired.get(name) != current.get(name)]
    if not differences and action.labels != observed.labels:
        return ["labels"]
    new_networks, old_networks = (
        {each["name"] for each in fields.get("networks", ())} for fields in (desired, current)
    )
    is_fixed = bool(_EXCLUSIVE_NETWORKS & (old_networks ^ new_networks))
    return [
        name for name in differences if name not in MUTABLE or (name == "networks" and is_fixed)
    ]


def _network_changes(fields: Fields, inspection: Inspection) -> list[tuple[str, object]]:
    """Return the calls that connect a container to exactly the declared networks.

    To change its address in a network, a container leaves and rejoins it.
    """
    desired, current = desired_networks(fields), inspection.networks
    leaving = [name for name, each in current.items() if desired.get(name) != each]
    joining = [name for name, each in desired.items() if current.get(name) != each]
    return [
        *(
            (f"/networks/{name}/disconnect", {"Container": inspection.id, "Force": True})
            for name in leaving
        ),
        *(
            (
                f"/networks/{name}/connect",
                {"Container": inspection.id, "EndpointConfig": build_endpoint(desired[name])},
            )
            for name in joining
        ),
    ]


def _build_creation_error(response: Response, fields: Fields) -> ProviderError:
    """Return the error for a creation that failed with 404, such as for a missing image."""
    message = read_error_message(response)
    if message.lower().startswith("no such image"):
        return NotDoneError(
            f"image {fields['image']!r} does not exist on this Engine, and Reconciler does "
            "not pull images; pull, load or build it there",
            status=HTTPStatus.NOT_FOUND,
        )
    return build_engine_error(response)


def _build_change_error(response: Response) -> ProviderError:
    """Return the error for a failed change. A deleted container is a conflict."""
    if (
        response.status_code == HTTPStatus.NOT_FOUND
        and "no such container" in read_error_message(response).lower()
    ):
        return ConflictError(
            "the container has been deleted since it was read", status=response.status_code
        )
    return build_engine_error(response)
