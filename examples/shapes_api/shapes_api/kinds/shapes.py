"""The ``Shape`` kind, and the provider of the shapes API, whose contract is an OpenAPI file.

Gaps in the API's guarantees, and how the provider handles them:

- The version of a new shape starts at one, so ``If-Match`` alone could replace another client's
  shape. An update therefore reads the shape first and compares the uid. A shape that is created
  with the name between these two calls, and has the same version, is replaced.
- ``DELETE`` has no ``If-Match``: a deletion reads the shape first and compares the uid. A shape
  that is created between these two calls is deleted; only the API could prevent that. The calls are
  at most seconds apart, even if the process waits in between (``CallPermit.before_request``).
- Status 409 means either that the name exists or that a request with the key is still running. The
  text or ``Retry-After`` identifies the second case.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.endpoint import path_segment
from infra.providers.http import HttpApi
from infra.providers.responses import (
    Response,
    build_refusal_error,
    decode_body,
    decode_object,
    describe_problem,
    keep_unknown_result,
    retry_after_seconds,
)
from reconciler.errors import (
    ConflictError,
    ListingExpiredError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    UnknownResultError,
)
from reconciler.provider import Capabilities, Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind
from reconciler.provider.listing import Page, all_pages, convert_in_turns
from reconciler.provider.named_objects import check_uid, with_obstacle
from reconciler.provider.secrets import Secrets

MAX_PAGE_SIZE = 5000

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_STILL_RUNNING = re.compile(r"still running|in progress|outstanding|being processed", re.IGNORECASE)
_REPLAY_HEADERS = ("Idempotency-Replayed", "Idempotent-Replayed")


class ShapeFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shape of the example API."""

    type: Annotated[
        Literal["Square", "Circle", "Triangle", "Hexagon"],
        msgspec.Meta(description="Type of the shape."),
    ]
    color: Annotated[
        Literal["Red", "Green", "Blue", "Purple", "Yellow", "Black", "White"],
        msgspec.Meta(description="Color of the shape."),
    ]


class _Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """A shape in the API's JSON, which may have field values that a manifest cannot declare."""

    name: str
    type: str
    color: str
    labels: dict[str, str] = {}
    uid: str | None = None
    version: int | None = None

    def as_object(self) -> ExternalObject:
        return ExternalObject(
            name=self.name,
            fields={"type": self.type, "color": self.color},
            uid=self.uid,
            version=None if self.version is None else str(self.version),
            labels=self.labels,
        )


class _Page(msgspec.Struct, frozen=True, rename={"next": "continue"}):
    items: list[_Shape]
    next: str | None = None


_shape_decoder = msgspec.json.Decoder(_Shape)
_page_decoder = msgspec.json.Decoder(_Page)
_encoder = msgspec.json.Encoder()


def name_problem(name: str) -> str | None:
    """Describe why a shape's name is invalid, or return None."""
    if _NAME.fullmatch(name) is not None:
        return None
    return "use 1 to 63 of the characters a-z 0-9 -, and start and end with a letter or digit"


class ShapesProvider:
    """A client for the shapes API."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._api = HttpApi(config, permit, secret=secrets.credential, secrecy=secrets.secrecy)

    async def create(self, action: Action) -> Effect:
        """Create a shape with the action's key; the API replays the first response."""
        _path(action.external_name)  # checks the name, which is only in the body here
        response = await self._api.call(
            "POST", "/shapes", headers=_headers(action), body=_body(action)
        )
        if response.status_code in {HTTPStatus.CREATED, HTTPStatus.OK}:
            return _effect(response, action)
        raise await self._refused(response, action)

    async def update(self, action: Action) -> Effect:
        """Replace a shape that is still the action's, at the action's version."""
        version, read_at = action.version, None
        if action.uid is not None or version is None:
            existing = await self.read(action.external_name)
            read_at = time.monotonic()
            if existing is None:
                raise NotFoundError(f"shape {action.external_name!r} does not exist")
            check_uid(existing, action)
            version = version or existing.version
        response = await self._api.call(
            "PUT",
            _path(action.external_name),
            headers=_headers(action, version=version),
            body=_body(action),
            read_at=read_at,
        )
        if response.status_code == HTTPStatus.OK:
            return _effect(response, action)
        raise await self._refused(response, action)

    async def delete(self, action: Action) -> Effect:
        """Delete a shape that is still the action's."""
        read_at = None
        if action.uid is not None:
            existing = await self.read(action.external_name)
            read_at = time.monotonic()
            if existing is None:
                return Effect(object=None, absent=True)
            check_uid(existing, action)
        response = await self._api.call(
            "DELETE", _path(action.external_name), headers=_headers(action), read_at=read_at
        )
        if response.status_code in {
            HTTPStatus.NO_CONTENT,
            HTTPStatus.OK,
            HTTPStatus.NOT_FOUND,
        }:
            absent = response.status_code == HTTPStatus.NOT_FOUND
            if absent:
                with keep_unknown_result(response):
                    await self._confirm_absence(action.external_name)
            return Effect(object=None, replayed=_is_replay(response), absent=absent)
        raise await self._refused(response, action)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read one shape."""
        del uid  # names are unique
        response = await self._api.find(
            _path(external_name), confirm=partial(self._confirm_absence, external_name)
        )
        return None if response is None else _decode_object(response, external_name)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List the shapes of a scope."""
        filters = [("label", f"{key}={value}") for key, value in sorted(scope.labels.items())]
        if scope.prefix:
            filters.append(("prefix", scope.prefix))
        filters.append(("limit", str(min(page_size, MAX_PAGE_SIZE))))
        async for objects in all_pages(scope, partial(self._page, filters)):
            yield objects

    async def close(self) -> None:
        """Close connections."""
        await self._api.close()

    async def _page(self, filters: list[tuple[str, str]], token: str) -> Page[ExternalObject]:
        query = [*filters, ("continue", token)] if token else filters
        response = await self._api.call("GET", "/shapes", query=query)
        if response.status_code == HTTPStatus.GONE:
            raise ListingExpiredError(describe_problem(response), status=response.status_code)
        if response.status_code != HTTPStatus.OK:
            raise build_refusal_error(response)
        page = decode_body(response, _page_decoder)
        return Page(await convert_in_turns(page.items, _Shape.as_object), page.next)

    async def _confirm_absence(self, external_name: str) -> None:
        """Check that the listing has no such shape either, because any gateway can return 404.

        Raises ``ProviderError`` if the listing has the shape.
        """
        page = await self._page([("prefix", external_name), ("limit", "1")], "")
        if any(existing.name == external_name for existing in page.objects):
            raise NotDoneError(f"shape {external_name!r} is listed, but reading it returned 404")

    async def _refused(self, response: Response, action: Action) -> ProviderError:
        """Return the error for a refused write, with the obstacle."""
        status = response.status_code
        text = f"shape {action.external_name!r}: {describe_problem(response)}"
        if status == HTTPStatus.CONFLICT:
            if _is_still_running(response):  # an earlier request of this action may succeed
                wait = retry_after_seconds(response)
                return UnknownResultError(text, status=status, retry_after_seconds=wait)
            # The conflict may outlast its cause, because the API may store this response with the
            # key. The aggregate ends the action, unless an earlier attempt may have been executed.
            conflict = ConflictError(text, status=status, replayed=_is_replay(response))
            with keep_unknown_result(response):
                return await with_obstacle(self, action, conflict)
        if status == HTTPStatus.PRECONDITION_FAILED:
            return await with_obstacle(self, action, NotFoundError(text, status=status))
        if status == HTTPStatus.NOT_FOUND and action.operation == "Update":
            with keep_unknown_result(response):
                await self._confirm_absence(action.external_name)
            return NotFoundError(text, status=status)
        return build_refusal_error(response)


def _path(external_name: str) -> str:
    return f"/shapes/{path_segment(external_name, name_problem)}"


def _headers(action: Action, *, version: str | None = None) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Idempotency-Key": action.idempotency_key}
    if version is not None:
        headers["If-Match"] = f'"{version}"'
    return headers


def _body(action: Action) -> bytes:
    return _encoder.encode({"name": action.external_name, "labels": action.labels, **action.fields})


def _effect(response: Response, action: Action) -> Effect:
    shape = _decode_object(response, action.external_name)
    return Effect(object=shape, replayed=_is_replay(response))


def _decode_object(response: Response, external_name: str) -> ExternalObject:
    return decode_object(external_name, response, _shape_decoder).as_object()


def _is_replay(response: Response) -> bool:
    """Whether the response is a replay. These headers are common, but not in the contract."""
    return any(response.headers.get(name, "").lower() == "true" for name in _REPLAY_HEADERS)


def _is_still_running(response: Response) -> bool:
    """Whether a 409 means that a request with the key is still running."""
    return "Retry-After" in response.headers or bool(
        _STILL_RUNNING.search(describe_problem(response))
    )


SHAPE = Kind(
    name="Shape",
    api_version="shapes/v1",
    provider="shapes",
    schema=ShapeFields,
    capabilities=Capabilities(
        idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=True
    ),
    connect=ShapesProvider,
    name_problem=name_problem,
)
"""The ``Shape`` kind: its fields have one spelling each, so there is nothing to normalize."""
