"""The ``Route`` provider: the routes of a Caddy server, and their certificates.

Each change names a path in the configuration and the ETag of its content. If another change has
moved or rewritten the route, Caddy responds with 412, and nothing is done.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from events.allow import Allow
from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.caddy.admin import (
    SERVERS,
    TLS,
    AdminApi,
    Part,
    build_caddy_error,
    build_missing_error,
    build_partial_failure,
    is_id_in_use,
)
from infra.providers.caddy.capacity import MAX_CONFIG_BYTES, find_growth, has_room, measure_entries
from infra.providers.caddy.certificate import Files, compare_certificate, read_checked_pair
from infra.providers.caddy.configuration import (
    CaddyRoute,
    CaddyServer,
    Pair,
    as_object,
    build_route,
    certificate_id,
    certificate_tag,
    is_own_certificate,
    name_of,
    name_problem,
    new_uid,
    owner_namespace,
    reach,
    read_marks,
)
from infra.providers.caddy.order import (
    Position,
    Reach,
    find_index,
    find_position,
    positions,
    rearrange,
)
from infra.providers.caddy.spec import normalize
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider import Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import ExistingObject, NamedObjects
from reconciler.provider.secrets import Secrets

APPS: Final = "/config/apps"
CERTIFICATES: Final = f"{TLS}/certificates"
PAIRS: Final = f"{CERTIFICATES}/load_pem"

_ROUTE: Final = re.compile(rf"{re.escape(SERVERS)}/([^/]+)/routes/([0-9]+)")
_Servers = Mapping[str, CaddyServer]
_T = TypeVar("_T")


class _Certificates(msgspec.Struct, frozen=True):
    load_pem: list[Pair] | None = None


class _Tls(msgspec.Struct, frozen=True):
    certificates: _Certificates | None = None


class _Http(msgspec.Struct, frozen=True):
    servers: dict[str, CaddyServer] | None = None


class _Apps(msgspec.Struct, frozen=True):
    http: _Http | None = None
    tls: _Tls | None = None

    @property
    def servers(self) -> _Servers:
        return (self.http.servers if self.http is not None else None) or {}

    @property
    def pairs(self) -> Sequence[Pair]:
        certificates = self.tls.certificates if self.tls is not None else None
        return (certificates.load_pem if certificates is not None else None) or ()


class _NamedRoute(NamedTuple):
    """The object with a name: a route with its path, and its certificate."""

    servers: _Servers
    part: Part | None = None
    server_name: str = ""
    certificate: Part | None = None
    observed: ExternalObject | None = None

    @property
    def name(self) -> str:
        """The external name."""
        return self.as_object().name

    def as_object(self) -> ExternalObject:
        assert self.observed is not None
        return self.observed

    @property
    def route(self) -> CaddyRoute:
        assert self.part is not None
        return self.part.content


@dataclass(eq=False, slots=True)
class _Creation:
    """A route that waits to be created. One change creates all waiting routes.

    Caddy loads all routes on each change, so a thousand separate changes would load a million.
    ``servers``: their state with this route; None if its id was in use.
    """

    name: str
    fields: Fields
    route: CaddyRoute
    certificate: Fields | None
    is_settled: bool = False
    servers: _Servers | None = None
    error: ProviderError | None = None

    def settle(self, servers: _Servers | None = None, error: ProviderError | None = None) -> None:
        self.is_settled, self.servers, self.error = True, servers, error


class RoutesProvider(NamedObjects[_NamedRoute]):
    """Writes routes to a Caddy server, one change at a time, and reads them."""

    noun = "route"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._permit = permit
        self._api = AdminApi(config, secrets, permit)
        self._secrecy = secrets.secrecy
        self._allow = config.allow
        # Caddy makes one change at a time. A call that waits for the lock does not use up its time
        # limit, and then reads the current path of its route.
        self._change_lock = asyncio.Lock()
        self._creations: list[_Creation] = []

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a route cannot have this name."""
        return name_problem(external_name)

    async def find(self, external_name: str) -> _NamedRoute | None:
        """Read a route."""
        native = await self._read_route(external_name)
        return None if native.observed is None else native

    async def create(self, action: Action) -> Effect:
        """Create a route. Its name is an id, which another object in Caddy may have."""
        try:
            return await super().create(action)
        except ConflictError as conflict:
            if conflict.obstacle is not None:
                raise
            raise NotDoneError(
                f"the id {action.external_name!r} belongs, or recently belonged, to another object "
                "in Caddy's configuration; give the route another name (annotation "
                "reconciler/external-name)",
                status=HTTPStatus.CONFLICT,
            ) from None

    async def create_object(self, action: Action) -> _NamedRoute:
        """Insert a route among the others by its rank, then load its certificate."""
        name, fields = action.external_name, normalize(action.fields)
        files = await self._files(fields)
        uid = new_uid(action)
        entry = _build_certificate(name, uid, files)
        creation = _Creation(name, fields, build_route(action, uid), entry)
        self._creations.append(creation)
        try:
            async with self._change_lock:
                if not creation.is_settled:
                    with self._permit.exclude_writes():  # most of them belong to other actions
                        await self._create_all()
                if creation.error is not None:
                    raise creation.error
                if creation.servers is None:
                    raise ConflictError(f"route {name!r} already exists")
                with _mark_partial_failure(f"route {name!r} was created, but a later step failed"):
                    certificate = await self._api.find(certificate_id(name))
                    await self._write_certificate(action, certificate, uid, files)
                    return await self._read_written(name, files, creation.servers)
        finally:
            if creation in self._creations:  # canceled while waiting
                self._creations.remove(creation)

    async def complete_object(
        self, action: Action, existing: ExistingObject[_NamedRoute]
    ) -> _NamedRoute:
        """Load the certificate of a route that an earlier attempt wrote."""
        if action.operation == "Update":
            return await self.update_object(action, existing)
        files = await self._files(normalize(action.fields))
        async with self._change_lock:
            with _mark_partial_failure(
                f"route {action.external_name!r} was created, but a later step failed"
            ):
                uid = existing.object.uid or ""
                await self._write_certificate(action, existing.native.certificate, uid, files)
                return await self._read_written(action.external_name, files)

    async def update(self, action: Action) -> Effect:
        """Update a route. Waits for other changes before the read, not after it."""
        async with self._change_lock:
            return await super().update(action)

    async def update_object(
        self, action: Action, existing: ExistingObject[_NamedRoute]
    ) -> _NamedRoute:
        """Write a route, then its certificate."""
        name, fields, native = action.external_name, normalize(action.fields), existing.native
        if fields["server"] != native.server_name:
            raise RefusedError(
                f"route {name!r} is in server {native.server_name!r} and cannot be moved; "
                "keep spec.server, or use another name"
            )
        _find_usable_server(native.servers, fields)
        uid = existing.object.uid or ""
        files = await self._files_or_loaded(native, fields, uid)
        route = build_route(action, uid)
        await self._check_growth(native, route, _build_certificate(name, uid, files))
        servers = native.servers
        # The route contains its marks, so this also compares them.
        if native.route != route or existing.object.fields["differences"]:
            routes = await self._write(name, native, route)
            servers = _replace_routes(servers, fields, routes)
        with _mark_partial_failure(f"route {name!r} was written, but a later step failed"):
            await self._write_certificate(action, native.certificate, uid, files)
            return await self._read_written(name, files, servers)

    async def check_replacement(self, action: Action) -> None:
        """Check that Caddy has the new server, and that the certificate is readable."""
        fields = normalize(action.fields)
        _find_usable_server(await self._servers(), fields)
        await self._files(fields)

    async def delete(self, action: Action) -> Effect:
        """Delete a route, or the certificate that a deleted route left behind."""
        async with self._change_lock:
            effect = await super().delete(action)
            if effect.absent and action.uid is not None:
                certificate = await self._api.find(certificate_id(action.external_name))
                await self._delete_certificate(action.uid, certificate)
            return effect

    async def delete_object(self, action: Action, existing: ExistingObject[_NamedRoute]) -> None:
        """Delete the certificate of a route, then the route."""
        del action
        native = existing.native
        assert native.part is not None
        await self._delete_certificate(existing.object.uid or "", native.certificate)
        with _mark_partial_failure(
            f"the certificate of route {native.name!r} was deleted, but a later step failed"
        ):
            await self._change("DELETE", native.part)

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_NamedRoute]]:
        """List all routes: Caddy returns its whole configuration in one response."""
        del scope, page_size
        apps, _ = await self._apps()
        objects, keys = await asyncio.to_thread(_objects, apps, self._allow, unreadable)
        for key in keys:
            self._secrecy.add(key)
        yield [_NamedRoute(apps.servers, observed=each) for each in objects]

    async def changes(self, after: str | None) -> str:
        """Return the ETag of all servers and routes. Caddy has no call that waits for a change."""
        del after
        return await self._api.etag(SERVERS)

    async def uptime_seconds(self) -> float | None:
        """Return the age of Caddy's process. Without ``--resume``, a restart ends all routes."""
        return await self._api.uptime_seconds()

    async def system_id(self) -> str | None:
        """Return an id of Caddy's process, which may load a configuration without routes."""
        return await self._api.process_id()

    async def readings(self, external_name: str) -> Fields | None:
        """Read Caddy's counters for a route's backends: active requests and failures."""
        observed = await self.read(external_name)
        if observed is None:
            return None
        counters = {each.get("address"): each for each in await self._api.upstreams()}
        return {
            "backends": {
                each: {
                    "requests": counters[each].get("num_requests", 0),
                    "fails": counters[each].get("fails", 0),
                }
                for each in observed.fields["backends"]
                if each in counters
            }
        }

    async def close(self) -> None:
        """Close connections."""
        await self._api.close()

    # --- reading

    async def _apps(self) -> tuple[_Apps, int]:
        """Return the configuration and its size."""
        part = await self._api.get(APPS)
        return _convert(_Apps, part.content or {}), part.size

    async def _servers(self) -> _Servers:
        return _convert(_Http, {"servers": (await self._api.get(SERVERS)).content}).servers or {}

    async def _read_route(
        self, name: str, servers: _Servers | None = None, written: Files | None = None
    ) -> _NamedRoute:
        """Read the object with this name. Reads the ``servers`` only if they are not passed.

        ``written``: files that were just written. If they have changed again since, the next
        listing compares them. Otherwise, the result would indicate that Caddy kept the old ones.
        """
        if servers is None:
            servers = await self._servers()
        certificate = await self._api.find(certificate_id(name))
        part = await self._api.find(name)
        match = None if part is None else _ROUTE.fullmatch(part.path)
        if part is None or match is None:  # the id of an object that is not a route
            return _NamedRoute(servers, certificate=certificate)
        server = servers.get(match[1])
        if server is None:
            raise NotDoneError(f"route {name!r} was moved during the read")
        route, pair = part.content, None if certificate is None else certificate.content
        position = await asyncio.to_thread(_position_of, name, server.routes or ())
        marks = read_marks(route)
        stored_pair = None if pair is None else _convert(Pair, pair)
        certificate_state = await asyncio.to_thread(
            compare_certificate, marks, stored_pair, self._allow
        )
        self._secrecy.add(certificate_state.key)
        if stored_pair is not None and (stored_pair.certificate, stored_pair.key) == written:
            certificate_state = certificate_state._replace(is_current=True)
        observed = as_object(name, route, match[1], server, position, certificate_state)
        return _NamedRoute(servers, part, match[1], certificate, observed)

    async def _read_written(
        self, name: str, files: Files | None, servers: _Servers | None = None
    ) -> _NamedRoute:
        native = await self._read_route(name, servers, files)
        if native.observed is None:
            raise NotDoneError(f"route {name!r} has since been deleted")
        return native

    async def _files(self, fields: Fields) -> Files | None:
        """Read the files of a certificate. From then on, the key is redacted in messages."""
        tls: Fields | None = fields["tls"]
        if tls is None:
            return None
        files = await asyncio.to_thread(read_checked_pair, tls, self._allow)
        self._secrecy.add(files.key)
        return files

    async def _files_or_loaded(self, native: _NamedRoute, fields: Fields, uid: str) -> Files | None:
        """Return the files of a certificate, or those in Caddy if the files cannot be used."""
        try:
            return await self._files(fields)
        except NotDoneError:
            marks = read_marks(native.route)
            is_same = marks is not None and marks.tls == fields["tls"]
            if native.certificate is None or not is_same:
                raise
            if not _is_certificate_of(uid, native.certificate):
                raise
            pair = _convert(Pair, native.certificate.content)
            return Files(pair.certificate, pair.key)

    # --- changes

    async def _create_all(self) -> None:
        """Create every waiting route, with one change per server, and report each result."""
        creations, self._creations = self._creations, []
        try:
            apps, size = await self._apps()
            servers = _require_servers(apps)
            await asyncio.to_thread(_refuse_excess, apps, size, creations)
            groups: dict[str, list[_Creation]] = {}
            for creation in (each for each in creations if not each.is_settled):
                groups.setdefault(creation.fields["server"], []).append(creation)
            for group in groups.values():
                await self._create_group(servers, group)
        except ProviderError as error:
            for each in creations:
                if not each.is_settled:
                    each.settle(error=error)
        except BaseException:
            interruption = UnknownResultError(
                "the call that created several routes was interrupted"
            )
            for each in creations:
                if not each.is_settled:
                    each.settle(error=interruption)
            raise

    async def _create_group(self, servers: _Servers, group: Sequence[_Creation]) -> None:
        if len(group) > 1:
            try:
                if await self._create_together(servers, group):
                    return
            except (RefusedError, NotDoneError) as error:
                if error.status is None:  # nothing was sent to Caddy
                    raise
                # One of them caused the refusal, but the others must still be created.
        for creation in group:
            try:
                creation.settle(await self._create_alone(servers, creation))
            except ProviderError as error:
                creation.settle(error=error)
            else:
                servers = creation.servers or servers

    async def _create_together(self, servers: _Servers, group: Sequence[_Creation]) -> bool:
        """Insert all routes of a group; False if nothing was done because an id is in use."""
        fields = group[0].fields
        for each in group:
            _find_usable_server(servers, each.fields)
        listing = await self._api.get(f"{SERVERS}/{fields['server']}/routes")
        routes: list[CaddyRoute] = list(listing.content or ())
        if not routes:
            return False
        routes = await asyncio.to_thread(_insert_all, routes, group)
        response = await self._api.change("PATCH", listing.path, routes, if_match=listing.etag)
        if response.status_code != HTTPStatus.OK:
            return False
        for each in group:
            each.settle(_replace_routes(servers, fields, routes))
        return True

    async def _create_alone(self, servers: _Servers, creation: _Creation) -> _Servers | None:
        """Insert a route; None if its id is in use."""
        fields, route = creation.fields, creation.route
        server = _find_usable_server(servers, fields)
        routes = server.routes or ()
        index = await asyncio.to_thread(_index, creation.name, route, routes)
        path = f"{SERVERS}/{fields['server']}/routes"
        if server.routes is None:  # Caddy would mistake a single route for the list
            response = await self._api.change("PUT", path, [route])
        elif index == len(routes):
            response = await self._api.change("POST", path, route)
        else:
            response = await self._api.change("PUT", f"{path}/{index}", route)
        if is_id_in_use(response):
            return None
        if response.status_code != HTTPStatus.OK:
            raise build_caddy_error(response)
        return _replace_routes(servers, fields, _insert(routes, index, route))

    async def _write(self, name: str, native: _NamedRoute, route: CaddyRoute) -> list[CaddyRoute]:
        """Write a route in its current or its new position, and return all routes."""
        assert native.part is not None
        routes = native.servers[native.server_name].routes or ()
        new = [route if name_of(each) == name else each for each in routes]
        if await asyncio.to_thread(_rearrange, name, new) == new:
            await self._change("PATCH", native.part, route)
            return new
        listing = await self._api.get(f"{SERVERS}/{native.server_name}/routes")
        old_routes: list[CaddyRoute] = listing.content or []
        if old_routes.count(native.route) != 1:
            raise NotDoneError(f"route {name!r} was changed during the write")
        replaced = [route if each == native.route else each for each in old_routes]
        new_routes = await asyncio.to_thread(_rearrange, name, replaced)
        await self._change("PATCH", listing, new_routes)
        return new_routes

    async def _write_certificate(
        self, action: Action, part: Part | None, uid: str, files: Files | None
    ) -> None:
        """Load a route's certificate into Caddy, or remove it."""
        pair = None if part is None else _convert(Pair, part.content)
        if part is not None and pair is not None and not is_own_certificate(pair):
            if files is None:
                return
            raise NotDoneError(
                f"another client uses the id {certificate_id(action.external_name)!r}; remove "
                "that object",
                status=HTTPStatus.CONFLICT,
            )
        entry = _build_certificate(action.external_name, uid, files)
        if entry is None:
            if part is not None:
                await self._change("DELETE", part)
        elif part is None:
            await self._add_certificate(entry)
        elif part.content != entry:
            await self._change("PATCH", part, entry)

    async def _check_growth(
        self, native: _NamedRoute, route: CaddyRoute, certificate: Fields | None
    ) -> None:
        """Raise ``NotDoneError`` if an update enlarges a route and the configuration is full."""
        old = None if native.certificate is None else native.certificate.content
        growth = find_growth([native.route, old], [route, certificate])
        if not growth:
            return
        apps, size = await self._apps()
        if has_room(size + growth, size + growth):  # even if one namespace used all of it
            return
        used = await asyncio.to_thread(_measure_namespaces, apps)
        if not has_room(size + growth, used[_namespace(route)] + growth):
            raise _build_full_error(native.name, size)

    async def _add_certificate(self, entry: Fields) -> None:
        configuration = (await self._api.get(TLS)).content
        tls = _convert(_Tls, configuration or {})
        if configuration is None:
            method, path, content = "PUT", TLS, {"certificates": {"load_pem": [entry]}}
        elif tls.certificates is None:
            method, path, content = "PUT", CERTIFICATES, {"load_pem": [entry]}
        elif tls.certificates.load_pem is None:
            method, path, content = "PUT", PAIRS, [entry]
        else:
            method, path, content = "POST", PAIRS, entry
        response = await self._api.change(method, path, content)
        if response.status_code != HTTPStatus.OK:
            raise build_caddy_error(response)

    async def _delete_certificate(self, uid: str, part: Part | None) -> None:
        if part is not None and _is_certificate_of(uid, part):
            await self._change("DELETE", part)

    async def _change(self, method: str, part: Part, content: object = None) -> None:
        """Change a part if it has not changed since it was read."""
        response = await self._api.change(method, part.path, content, if_match=part.etag)
        if response.status_code == HTTPStatus.PRECONDITION_FAILED:
            raise NotDoneError(f"{part.path} was changed during the write")
        if response.status_code != HTTPStatus.OK:
            raise build_caddy_error(response)


def _build_certificate(name: str, uid: str, files: Files | None) -> Fields | None:
    """Return the certificate of a route as it is written to Caddy."""
    if files is None:
        return None
    return {
        "@id": certificate_id(name),
        "certificate": files.certificate,
        "key": files.key,
        "tags": [certificate_tag(uid)],
    }


def _namespace(route: CaddyRoute) -> str:
    return owner_namespace(read_marks(route))


def _measure_namespaces(apps: _Apps) -> Counter[str]:
    """Return the size of the routes and certificates of each namespace."""
    sizes, namespaces = Counter[str](), dict[str, str]()
    for server in apps.servers.values():
        for route in server.routes or ():
            namespace = _namespace(route)
            sizes[namespace] += measure_entries([route])
            if (name := name_of(route)) is not None:
                namespaces[certificate_id(name)] = namespace
    for pair in apps.pairs:
        sizes[namespaces.get(str(pair.id), "")] += measure_entries([pair])
    return sizes


def _refuse_excess(apps: _Apps, size: int, creations: Sequence[_Creation]) -> None:
    """Settle the creations for which the configuration has no room."""
    added = [measure_entries([each.route, each.certificate]) for each in creations]
    if has_room(size + sum(added), size + sum(added)):  # even if one namespace used all of it
        return
    used = _measure_namespaces(apps)
    names = {name_of(each) for server in apps.servers.values() for each in server.routes or ()}
    for creation, growth in zip(creations, added, strict=True):
        if creation.name in names:  # an earlier attempt may have created it
            continue
        namespace = _namespace(creation.route)
        if has_room(size + growth, used[namespace] + growth):
            size += growth
            used[namespace] += growth
        else:
            creation.settle(error=_build_full_error(creation.name, size))


def _build_full_error(name: str, size: int) -> NotDoneError:
    return NotDoneError(
        f"Caddy's configuration of {size // 1024} KiB has no room for route {name!r}: a namespace "
        f"may use half of what the others leave of {MAX_CONFIG_BYTES // 1024} KiB; delete routes, "
        "or use another Caddy server",
        status=HTTPStatus.CONFLICT,
    )


def _is_certificate_of(uid: str, part: Part) -> bool:
    return certificate_tag(uid) in (_convert(Pair, part.content).tags or ())


def _convert(struct: type[_T], content: Any) -> _T:
    """Convert part of the configuration. Raises ``NotDoneError`` for an unknown structure."""
    try:
        return msgspec.convert(content, struct)
    except msgspec.ValidationError as error:
        raise NotDoneError(f"Caddy's configuration has an unknown structure: {error}") from None


def _require_servers(apps: _Apps) -> _Servers:
    if apps.http is None:
        raise build_missing_error("apps/http/servers")
    return apps.servers


def _find_usable_server(servers: _Servers, fields: Fields) -> CaddyServer:
    """Return the server of a route. Raises ``NotDoneError`` if it cannot serve the route yet."""
    name: str = fields["server"]
    server = servers.get(name)
    if server is None:
        names = ", ".join(sorted(servers)) or "none"
        raise NotDoneError(
            f"Caddy has no server {name!r} (its servers: {names}); set spec.server",
            status=HTTPStatus.CONFLICT,
        )
    if server.requests_certificates:
        raise NotDoneError(
            f"Caddy itself would obtain certificates for the hosts of server {name!r}; set "
            "its automatic_https.disable_certificates",
            status=HTTPStatus.CONFLICT,
        )
    if fields["tls"] is not None and not server.has_tls:
        raise NotDoneError(
            f"server {name!r} does not use TLS; set its tls_connection_policies to [{{}}]",
            status=HTTPStatus.CONFLICT,
        )
    return server


def _insert(routes: Sequence[CaddyRoute], index: int, route: CaddyRoute) -> list[CaddyRoute]:
    return [*routes[:index], route, *routes[index:]]


def _index(name: str, route: CaddyRoute, other_routes: Sequence[CaddyRoute]) -> int:
    return find_index(reach(route, name), _compute_reaches(other_routes))


def _rearrange(name: str, routes: Sequence[CaddyRoute]) -> list[CaddyRoute]:
    """Return the routes in the order that is correct for one of them."""
    names = [name_of(each) for each in routes]
    if name not in names:  # it was moved to another server since the read
        return list(routes)
    return [routes[each] for each in rearrange(_compute_reaches(routes), names.index(name))]


def _insert_all(routes: Sequence[CaddyRoute], group: Sequence[_Creation]) -> list[CaddyRoute]:
    """Return the routes, with those of a group inserted by rank."""
    result, reaches = list(routes), _compute_reaches(routes)
    for creation in group:
        own = reach(creation.route, creation.name)
        index = find_index(own, reaches)
        result.insert(index, creation.route)
        reaches.insert(index, own)
    return result


def _replace_routes(servers: _Servers, fields: Fields, routes: list[CaddyRoute]) -> _Servers:
    """Return the servers, with current routes for one of them."""
    name: str = fields["server"]
    return {**servers, name: msgspec.structs.replace(servers[name], routes=routes)}


def _compute_reaches(routes: Sequence[CaddyRoute]) -> list[Reach]:
    return [reach(each, name_of(each) or "a route without an id") for each in routes]


def _position_of(name: str, routes: Sequence[CaddyRoute]) -> Position:
    names = [name_of(each) for each in routes]
    if name not in names:
        return Position()
    return find_position(_compute_reaches(routes), names.index(name))


def _objects(
    apps: _Apps, allow: Allow, unreadable: Unreadable
) -> tuple[list[ExternalObject], set[str]]:
    """Return all named routes, ordered by name, and the private keys that were read."""
    pairs = {str(each.id): each for each in apps.pairs if each.id is not None}
    objects: list[ExternalObject] = []
    keys = set[str]()
    for server_name, server in apps.servers.items():
        routes = server.routes or ()
        for route, position in zip(routes, positions(_compute_reaches(routes)), strict=True):
            if (name := name_of(route)) is not None:
                certificate_state = compare_certificate(
                    read_marks(route), pairs.get(certificate_id(name)), allow
                )
                keys.add(certificate_state.key)
                converted = unreadable.convert_or_record(
                    partial(
                        as_object, name, route, server_name, server, position, certificate_state
                    ),
                    lambda name=name: (name, None),
                )
                objects += [] if converted is None else [converted]
    return sorted(objects, key=lambda each: each.name), keys


@contextmanager
def _mark_partial_failure(description: str) -> Generator[None]:
    """Mark a failure as partial: part of the action was done, and a retry resumes it."""
    try:
        yield
    except UnknownResultError:
        raise
    except ProviderError as error:
        raise build_partial_failure(description, error) from error
