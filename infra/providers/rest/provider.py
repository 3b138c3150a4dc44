"""Provider for kinds that are defined by an HTTP API, which the protocol describes.

Guarantees that an API may lack, and their substitutes:

- If objects can only be created unconditionally, the object is read first. If no condition protects
  a write, the uid is compared first. An object that appears between the two calls is overwritten or
  deleted. Only the API could prevent that. The calls are at most a few seconds apart
  (``CallPermit.before_request``).
- Without idempotency keys, the metadata in the object identifies an earlier attempt.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

import msgspec

from events.excerpt import quote
from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.endpoint import changes_path
from infra.providers.http import HttpApi
from infra.providers.responses import (
    UNDECODABLE,
    Response,
    build_refusal_error,
    build_undecodable_error,
    build_unusable_error,
    decode_body,
    describe_problem,
    is_read,
    keep_unknown_result,
    retry_after_seconds,
)
from infra.providers.rest.document import remove_null_members
from infra.providers.rest.expressions import ExpressionError
from infra.providers.rest.items import SplitError, UndecodableItem, check_structure, split
from infra.providers.rest.json_paths import MISSING, WHOLE_DOCUMENT, Finder, put_at
from infra.providers.rest.marks import build_uid
from infra.providers.rest.paging import PageContent, Pages
from infra.providers.rest.protocol import Protocol, Request, UnusableObjectError
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UnknownResultError,
    UnreadableObjectsError,
)
from reconciler.provider import Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.listing import LISTING_CHANGED, Unreadable, all_pages, convert_in_turns
from reconciler.provider.named_objects import check_uid
from reconciler.provider.secrets import Secrets

_ETAG: Final = "ETag"

MAX_MARK_CHARACTERS: Final = 64 * 1024
"""Limit on a change cursor, which is stored and compared on each poll."""

_decoder = msgspec.json.Decoder(Any)
_encoder = msgspec.json.Encoder(order="deterministic")


class _ReadObject(msgspec.Struct, frozen=True):
    """An observed object, its ETag, and the time of the read (``time.monotonic``)."""

    object: ExternalObject
    etag: str | None
    read_at: float


class RestProvider:
    """A client of a JSON API over HTTP, using a definition's protocol."""

    def __init__(
        self, protocol: Protocol, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> None:
        self._protocol = protocol
        self._api = HttpApi(
            config,
            permit,
            secret=secrets.credential,
            secrecy=secrets.secrecy,
            secret_header=protocol.rest.credential_header,
        )

    async def create(self, action: Action) -> Effect:
        """Create an object, or return the one that an earlier attempt of this action created."""
        protocol, read_at = self._protocol, None
        name = self._check_name(action.external_name)
        if not (protocol.rejects_duplicates or protocol.has_server_ids):
            existing = await self._find(name)
            if existing is not None:
                return self._match_attempt(existing.object, action, f"{name!r} already exists")
            read_at = time.monotonic()
        uid = None if protocol.uid_at is not None else build_uid(action.idempotency_key)
        response = await self._write(protocol.create, action, uid=uid, read_at=read_at)
        if response.status_code in protocol.create.success:
            return await self._read_effect(response, action, "create", None)
        meaning = self._meaning(response, protocol.rest.create.conflict)
        if not meaning and response.status_code == HTTPStatus.NOT_FOUND:
            # If a read works, the API itself returned the 404: something that the creation requires
            # is missing.
            with keep_unknown_result(response):
                existing = await self._find(name)
            if existing is None:
                raise NotDoneError(
                    build_refusal_error(response).message, status=response.status_code
                )
        if meaning != "Conflict":
            raise self._classify(response, meaning)
        text = f"{name!r}: {describe_problem(response)}"
        existing = None if protocol.has_server_ids else await self._find(name)
        if existing is not None:
            return self._match_attempt(existing.object, action, text, status=response.status_code)
        # A conflict without an obstacle: the API may have stored this response with the key.
        raise ConflictError(text, status=response.status_code, replayed=self._is_replay(response))

    async def update(self, action: Action) -> Effect:
        """Replace the object if it still has the action's uid and version."""
        protocol = self._protocol
        name = self._check_name(action.external_name)
        if protocol.update is None:
            raise RefusedError(
                f"{name!r}: the API has no update call; declare an object with another name"
            )
        existing = await self._find(name, action.uid)
        if existing is None:
            raise NotFoundError(f"{name!r} does not exist")
        check_uid(existing.object, action)
        if existing.object.written_by == action.idempotency_key:
            return Effect(existing.object, replayed=True)
        response = await self._write(
            protocol.update,
            action,
            uid=existing.object.uid,
            existing=existing,
            read_at=existing.read_at,
        )
        if response.status_code in protocol.update.success:
            return await self._read_effect(response, action, "update", existing.object.uid)
        call = protocol.rest.update
        assert call is not None
        meaning = self._meaning(response, call.conflict or (409, 412), call.absent)
        if meaning not in ("Conflict", "Absent"):
            raise self._classify(response, meaning)
        text = f"{name!r}: {describe_problem(response)}"
        with keep_unknown_result(response):
            current = await self._find(name, existing.object.uid)
        if current is None:
            raise NotFoundError(text, status=response.status_code)
        if meaning == "Absent":
            raise UnknownResultError(
                f"{text}, but a read still finds it", status=response.status_code
            )
        return self._match_attempt(current.object, action, text, status=response.status_code)

    async def delete(self, action: Action) -> Effect:
        """Delete the object if it still has the action's uid."""
        protocol, call = self._protocol, self._protocol.rest.delete
        name = self._check_name(action.external_name)
        existing = await self._find(name, action.uid)
        if existing is None:
            return Effect(None, absent=True)
        check_uid(existing.object, action)
        response = await self._write(
            protocol.delete,
            msgspec.structs.replace(action, version=None),  # a deletion ignores the version
            uid=existing.object.uid,
            existing=existing,
            read_at=existing.read_at,
        )
        if response.status_code in protocol.delete.success:
            await self._check_body(response)
            return Effect(None, replayed=self._is_replay(response))
        meaning = self._meaning(response, call.conflict or (412,), call.absent)
        if meaning == "Conflict":
            raise NotDoneError(f"{name!r} was changed during the deletion")
        if meaning == "Absent":
            with keep_unknown_result(response):
                current = await self._find(name, existing.object.uid)
            if current is None:
                return Effect(None, absent=True)
            raise UnknownResultError(
                f"{name!r}: the API returned {response.status_code}, but a read still finds it"
            )
        raise self._classify(response, meaning)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read one object, by its uid if the API assigns the ids."""
        existing = await self._find(self._check_name(external_name), uid)
        return None if existing is None else existing.object

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List all objects of this kind, and filter them by scope."""
        unreadable = Unreadable()
        pages = self._pages(page_size, unreadable)
        uids: dict[tuple[str, str | None], str | None] = {}
        async for objects in all_pages(scope, pages.fetch):
            yield [each for each in objects if self._is_first(each, uids, unreadable)]
        unreadable.check()

    def _is_first(
        self,
        candidate: ExternalObject,
        uids: dict[tuple[str, str | None], str | None],
        unreadable: Unreadable,
    ) -> bool:
        """Return whether an object is the first one in a listing with its name or id."""
        identity = candidate.name, candidate.uid if self._protocol.has_server_ids else None
        if identity not in uids:
            uids[identity] = candidate.uid
            return True
        # it moved to a later page, so another one may have moved to an earlier page
        if uids[identity] == candidate.uid:
            unreadable.add(None, None, f"{quote(candidate.name)} is listed twice")
        else:
            unreadable.add(candidate.name, None, "several objects have this name")
        return False

    async def probe(self) -> bool:
        """Read an object that does not exist, because a tenant can make a listing slow or large.

        Return False if the API has no such read, or refuses it for another reason.
        """
        protocol, name = self._protocol, f"probe-{uuid.uuid4().hex[:12]}"
        request = protocol.read
        if not request.placeholders or protocol.has_server_ids or protocol.name_problem(name):
            return False
        values = self._values(name, None)
        response = await self._send_read(request, values, self._variables(values))
        is_success = response.status_code in request.success
        return is_success or self._meaning(response, absent=protocol.rest.read.absent) == "Absent"

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    # --- reading

    async def _find(self, name: str, uid: str | None = None) -> _ReadObject | None:
        protocol = self._protocol
        if protocol.has_server_ids and uid is None:
            return await self._find_by_name(name)
        request, values = protocol.read, self._values(name, uid)
        response = await self._send_read(request, values, self._variables(values))
        read_at = time.monotonic()
        if response.status_code not in request.success:
            meaning = self._meaning(response, absent=protocol.rest.read.absent)
            if meaning != "Absent":
                raise self._classify(response, meaning)
            await self._confirm_absence(name, uid, response)
            return None
        observed = (
            self._convert_single(response, decode_body(response, _decoder), name)
            if protocol.read_items_at is None
            else await self._select_item(response, protocol.read_items_at, name)
        )
        if observed is None:
            return None
        if protocol.has_server_ids and observed.uid != uid:
            raise build_unusable_error(response, f"it describes {quote(observed.uid)}, not {uid!r}")
        return _ReadObject(observed, response.headers.get(_ETAG), read_at)

    def _convert_single(self, response: Response, content: Any, name: str) -> ExternalObject | None:
        item = _find_at(self._protocol.read_at, response, content)
        if item is None and self._protocol.read_at.text != WHOLE_DOCUMENT:
            return None  # no object at the path; a null document is not a valid response
        if item is None or item is MISSING:
            raise build_unusable_error(
                response, f"it has no object at {self._protocol.read_at.text}"
            )
        return self._convert_named(response, item, name)

    async def _select_item(
        self, response: Response, items_at: Finder, name: str
    ) -> ExternalObject | None:
        """Select an object by name. Raises if the API returned other objects for the name."""
        unreadable = Unreadable()
        _, items = await self._items_of(response, items_at)
        objects = await self._convert_items(items, unreadable)
        if unreadable.may_have(name):
            unreadable.check()
        matches = [each for each in objects if each.name == name]
        if len(matches) > 1:
            raise build_unusable_error(response, f"{len(matches)} objects have the name {name!r}")
        if matches:
            return matches[0]
        if objects and self._protocol.read.placeholders:
            raise build_unusable_error(
                response, f"it describes {quote(objects[0].name)}, not {name!r}"
            )
        return None

    async def _find_by_name(self, name: str) -> _ReadObject | None:
        scope = Scope(prefix=name)
        try:
            async for page in self.pages(scope, page_size=1000):
                for each in page:
                    if each.name == name:
                        return _ReadObject(each, None, time.monotonic())
        except UnreadableObjectsError as error:
            if error.may_have(name):
                raise
        return None

    def _convert_named(self, response: Response, item: Any, name: str) -> ExternalObject:
        try:
            observed = self._protocol.convert(item)
        except UnusableObjectError as error:
            raise build_unusable_error(response, str(error)) from None
        except Exception as error:
            raise build_unusable_error(response, f"{type(error).__name__}: {error}") from error
        if observed.name != name:
            raise build_unusable_error(
                response, f"it describes {quote(observed.name)}, not {name!r}"
            )
        return observed

    def _pages(self, page_size: int, unreadable: Unreadable) -> Pages:
        convert_items = partial(self._convert_items, unreadable=unreadable)
        report_change = partial(unreadable.add, None, None, LISTING_CHANGED)
        return Pages(self._protocol, self._fetch_page, convert_items, page_size, report_change)

    async def _convert_items(
        self, items: Sequence[Any], unreadable: Unreadable
    ) -> list[ExternalObject]:
        protocol = self._protocol

        def convert(item: Any) -> ExternalObject | None:
            if isinstance(item, UndecodableItem):
                raise UnusableObjectError(item.reason)
            return protocol.convert(item) if protocol.is_of_kind(item) else None

        return await convert_in_turns(
            items,
            lambda item: unreadable.convert_or_record(
                lambda: convert(item), lambda: protocol.identify_item(item)
            ),
        )

    async def _confirm_absence(self, name: str, uid: str | None, response: Response) -> None:
        """Confirm a 404 with a read of the collection, because any gateway can send one."""
        protocol = self._protocol
        confirm = protocol.rest.read.confirm
        if confirm is not None:
            collection = await self._api.call("GET", confirm, headers=protocol.rest.headers)
            if collection.status_code != HTTPStatus.OK:
                raise build_refusal_error(collection)
            await self._check_json(collection)
            return
        page = await self._pages(1, Unreadable()).fetch("")
        for candidate in page.objects:
            if candidate.name == name and uid in (None, candidate.uid):
                raise NotDoneError(
                    f"{name!r} is listed, but reading it returned {response.status_code}"
                )

    async def _fetch_page(self, path: str | None, query: Sequence[tuple[str, str]]) -> PageContent:
        """Fetch a page."""
        request = self._protocol.list
        assert request is not None
        response = await self._send_read(
            request, {}, self._variables({}), path=path, extra_query=query
        )
        if response.status_code not in request.success:
            raise self._classify(response, self._meaning(response))
        content, items = await self._items_of(response, self._protocol.items_at)
        return PageContent(response, content, items)

    async def _items_of(self, response: Response, items_at: Finder) -> tuple[Any, list[Any]]:
        """Decode a document and a list in it, item by item if any item cannot be decoded."""
        try:
            content = _decoder.decode(response.content)
        except UNDECODABLE as error:
            steps = items_at.steps
            if steps is None or self._protocol.has_token_within(steps):
                raise build_undecodable_error(response, error) from error
            try:
                return await split(response.content, steps)
            except SplitError:
                raise build_undecodable_error(response, error) from error
        return content, _as_list(response, _find_at(items_at, response, content))

    async def _send_read(
        self,
        request: Request,
        values: Mapping[str, str],
        variables: Mapping[str, Any],
        *,
        path: str | None = None,
        extra_query: Sequence[tuple[str, str]] = (),
    ) -> Response:
        """Send a request that only reads, whatever its method, so its result is never unknown."""
        response = await self._api.call(
            request.method,
            request.path(values) if path is None else path,
            query=[*request.query(values), *extra_query] if path is None else (),
            headers=request.headers,
            body=self._build_body(request, variables),
            writes=False,
        )
        # errors classify the response by its method
        return (
            response
            if is_read(response.method)
            else msgspec.structs.replace(response, method="GET")
        )

    # --- writing

    async def _write(
        self,
        request: Request,
        action: Action,
        *,
        uid: str | None,
        existing: _ReadObject | None = None,
        read_at: float | None = None,
    ) -> Response:
        rest = self._protocol.rest
        values = self._values(action.external_name, uid)
        headers = dict(request.headers)
        version = action.version or (None if existing is None else existing.object.version)
        match rest.condition:
            case "Version" if version is not None:
                is_quoted = version.startswith(('"', 'W/"'))
                headers["If-Match"] = version if is_quoted else f'"{version}"'
            case "ETag" if existing is not None and existing.etag is not None:
                headers["If-Match"] = existing.etag
            case _:
                pass
        if rest.idempotency is not None:
            headers[rest.idempotency.header] = action.idempotency_key
        variables = self._variables(values, action, uid=uid, version=version)
        body = self._build_body(request, variables)
        if body is None and action.operation != "Delete":
            body = self._build_default_body(request, variables)
        return await self._api.call(
            request.method,
            request.path(values),
            query=request.query(values),
            headers=headers,
            body=body,
            read_at=read_at,
        )

    def _variables(
        self,
        values: Mapping[str, str],
        action: Action | None = None,
        *,
        uid: str | None = None,
        version: str | None = None,
    ) -> dict[str, Any]:
        """Return the variables of a body."""
        variables: dict[str, Any] = {
            "name": values.get("name"),
            "uid": uid or values.get("uid"),
            "version": version,
            "key": None,
            "object": {},
            "patch": {},
            "metadata": "",
        }
        if action is None:
            return variables
        variables["key"] = action.idempotency_key
        variables["object"] = remove_null_members(action.fields)
        variables["patch"] = action.fields
        marking = self._protocol.marking
        if marking is not None:
            stored_uid = None if self._protocol.uid_at is not None else uid
            mark_values = (action.labels, action.idempotency_key, stored_uid)
            variables["metadata"] = marking.value(*mark_values)
        return variables

    def _build_body(self, request: Request, variables: Mapping[str, Any]) -> bytes | None:
        if request.body is None:
            return None
        try:
            return _encoder.encode(request.body.build(variables))
        except ExpressionError as error:
            raise RefusedError(
                f"{request.method}: not sent, because its body is invalid: {error}"
            ) from None

    def _build_default_body(self, request: Request, variables: Mapping[str, Any]) -> bytes:
        """Return the default body: the document with the object's name and metadata.

        A PATCH is a JSON merge patch (RFC 7396), in which null removes a value.
        """
        protocol = self._protocol
        is_patch = request.method == "PATCH"
        body: Fields = msgspec.to_builtins(variables["patch" if is_patch else "object"])
        if protocol.name_at.steps:
            put_at(body, protocol.name_at.steps, variables["name"])
        marking = protocol.marking
        if marking is not None and marking.steps:
            put_at(body, marking.steps, variables["metadata"])
        at, version = protocol.version_at, variables["version"]
        if protocol.rest.condition == "Body" and at is not None and at.steps and version:
            put_at(body, at.steps, version)
        return _encoder.encode(body)

    async def _read_effect(
        self, response: Response, action: Action, operation: str, uid: str | None
    ) -> Effect:
        """Return the effect of a write, from its response or from a read."""
        is_replay, shown_at = self._is_replay(response), self._protocol.shown_at.get(operation)
        if shown_at is not None:
            content = decode_body(response, _decoder)
            item = _find_at(shown_at, response, content)
            observed = self._convert_named(
                response, None if item is MISSING else item, action.external_name
            )
            if uid is not None and observed.uid != uid:
                raise build_unusable_error(
                    response, f"it describes {quote(observed.uid)}, not {uid!r}"
                )
            return Effect(observed, replayed=is_replay)
        await self._check_body(response)
        try:
            existing = await self._find(action.external_name, uid)
        except ProviderError as error:  # the write was executed, so `NotDoneError` would be wrong
            raise UnknownResultError(
                f"{action.external_name!r} was written, but it could not be read: {error.message}",
                status=error.status,
                retry_after_seconds=error.retry_after_seconds,
            ) from error
        if existing is None:
            raise UnknownResultError(f"{action.external_name!r} was written, but does not exist")
        if existing.object.written_by not in (None, action.idempotency_key):
            raise UnknownResultError(
                f"{action.external_name!r} was written, but another client has since written it"
            )
        return Effect(existing.object, replayed=is_replay)

    def _match_attempt(
        self, existing: ExternalObject, action: Action, message: str, *, status: int | None = None
    ) -> Effect:
        """Return the effect of an earlier attempt, or raise ``ConflictError`` for an obstacle."""
        if existing.written_by == action.idempotency_key:
            return Effect(existing, replayed=True)
        raise ConflictError(message, status=status, obstacle=existing)

    async def _check_body(self, response: Response) -> None:
        """Accept a success only if its body is empty or JSON, unlike a login page."""
        if response.content.strip():
            await self._check_json(response)

    async def _check_json(self, response: Response) -> None:
        """Raise for text that is not JSON.

        JSON with unusual values, which any client may store, is valid.
        """
        try:
            _decoder.decode(response.content)
        except UNDECODABLE as error:
            try:
                await check_structure(response.content)
            except SplitError:
                raise build_undecodable_error(response, error) from error

    # --- the meaning of responses

    def _meaning(
        self, response: Response, conflict: Sequence[int] = (), absent: Sequence[int] = ()
    ) -> str:
        """Return the meaning of a refusal; empty if no rule applies."""
        rule = self._protocol.rule_for(response.status_code, response.content)
        if rule is not None:
            return rule.means
        if response.status_code in conflict:
            # With Retry-After, another request with this key is still running and may succeed.
            return "Unknown" if "Retry-After" in response.headers else "Conflict"
        return "Absent" if response.status_code in absent else ""

    def _classify(self, response: Response, meaning: str) -> ProviderError:
        error = build_refusal_error(response)
        status, wait = response.status_code, retry_after_seconds(response)
        match meaning:
            case "NotDone":
                return NotDoneError(error.message, status=status, retry_after_seconds=wait)
            case "Throttled":
                return ThrottledError(error.message, status=status, retry_after_seconds=wait)
            case "Refused":
                return RefusedError(error.message, status=status)
            case "Unknown" if not is_read(response.method):
                return UnknownResultError(error.message, status=status, retry_after_seconds=wait)
            case _:
                return error

    def _is_replay(self, response: Response) -> bool:
        idempotency = self._protocol.rest.idempotency
        if idempotency is None or idempotency.replayed is None:
            return False
        return response.headers.get(idempotency.replayed, "").lower() == "true"

    def _check_name(self, external_name: str) -> str:
        problem = self._protocol.name_problem(external_name)
        if problem is not None:
            raise RefusedError(f"invalid name {external_name!r}: {problem}")
        return external_name

    def _values(self, external_name: str, uid: str | None) -> dict[str, str]:
        """Return the values of placeholders. Raises ``RefusedError`` for an id such as ``..``."""
        values = {"name": self._protocol.api_name(external_name)}
        if uid is not None:
            if changes_path(uid):
                raise RefusedError(f"{external_name!r}: {uid!r} is not a valid id")
            values["uid"] = uid
        return values


class WatchingRestProvider(RestProvider):
    """A client of an API with a cursor that changes with its objects."""

    async def changes(self, after: str | None) -> str:
        """Return the current cursor without waiting, because the API has no blocking call."""
        del after
        changes, mark_at = self._protocol.rest.changes, self._protocol.mark_at
        assert changes is not None
        response = await self._api.call(
            "GET",
            changes.path,
            query=[*changes.query.items()],
            headers=self._protocol.rest.headers,
        )
        if response.status_code != HTTPStatus.OK:
            raise build_refusal_error(response)
        if mark_at is None:
            mark = response.headers.get(_ETAG)
        else:
            mark = _find_at(mark_at, response, decode_body(response, _decoder))
        if mark is None or mark is MISSING:
            raise build_unusable_error(response, "it has no change cursor")
        text = mark if isinstance(mark, str) else _encoder.encode(mark).decode()
        if len(text) > MAX_MARK_CHARACTERS:
            raise build_unusable_error(
                response,
                f"its change cursor has {len(text)} characters, but at most "
                f"{MAX_MARK_CHARACTERS} are allowed",
            )
        return text


def _find_at(finder: Finder, response: Response, content: Any) -> Any:
    try:
        return finder.find(content)
    except ExpressionError as error:
        raise build_unusable_error(response, str(error)) from None


def _as_list(response: Response, items: Any) -> list[Any]:
    if not isinstance(items, list):
        raise build_unusable_error(
            response, "it has no list of objects at the path that the definition names"
        )
    return cast("list[Any]", items)
