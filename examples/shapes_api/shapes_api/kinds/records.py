"""The ``Record`` kind, and the provider of the records API: a complete example of a kind's module.

The endpoint names a zone: ``http://HOST:PORT/zones/example.org``. The API has no idempotency keys,
so a record carries the key of the action that last wrote it, as a tag. When the API refuses a
write, the tag distinguishes an earlier attempt of the same action, whose response was lost, from
another client's write. The module does not report this tag as a label.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
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
)
from reconciler.errors import ConflictError, NotDoneError, NotFoundError
from reconciler.provider import Capabilities, Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind
from reconciler.provider.listing import Page, Unreadable, follow_pages
from reconciler.provider.named_objects import ExistingObject, NamedObjects
from reconciler.provider.secrets import Secrets

DEFAULT_TTL_SECONDS = 300
KEY_TAG = "reconciler/key"
MAX_PAGE_SIZE = 1000
MAX_WAIT_SECONDS = 30.0
MAX_WAIT_FRACTION = 0.5
"""Fraction of a call's timeout after which the API must report that nothing changed."""

_NAME = re.compile(
    r"@|[a-z0-9_*]([-a-z0-9_]{0,61}[a-z0-9_])?(\.[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?)*"
)
_MAX_NAME_CHARACTERS = 253


class RecordFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A DNS record of the example API."""

    type: Annotated[
        Literal["A", "AAAA", "CNAME", "MX", "TXT"], msgspec.Meta(description="Type of the record.")
    ]
    values: Annotated[
        list[str],
        msgspec.Meta(
            min_length=1, max_length=100, description="Values of the record, in any order."
        ),
    ]
    ttl: Annotated[int, msgspec.Meta(ge=1, le=604_800, description="Time to live, in seconds.")] = (
        DEFAULT_TTL_SECONDS
    )


class _Record(msgspec.Struct, frozen=True):
    """A record in the API's JSON."""

    name: str
    id: str
    etag: str
    type: str
    ttl: int
    values: list[str]
    tags: list[str]

    def as_object(self) -> ExternalObject:
        labels = _labels(self.tags)
        key = labels.pop(KEY_TAG, None)
        fields: Fields = {"type": self.type, "ttl": self.ttl, "values": self.values}
        return ExternalObject(
            name=self.name,
            fields=normalize(fields),
            uid=self.id,
            version=self.etag,
            labels=labels,
            written_by=key,
        )


class _Page(msgspec.Struct, frozen=True):
    records: list[_Record]
    next_cursor: str | None


class _Changes(msgspec.Struct, frozen=True):
    last: int


_changes_decoder = msgspec.json.Decoder(_Changes)
_record_decoder = msgspec.json.Decoder(_Record)
_page_decoder = msgspec.json.Decoder(_Page)
_encoder = msgspec.json.Encoder()


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a record's fields: sorted unique values, the default ttl."""
    values = sorted(set(fields.get("values", [])))
    return {"ttl": DEFAULT_TTL_SECONDS, **fields, "values": values}


def name_problem(name: str) -> str | None:
    """Describe why a record's name is invalid, or return None."""
    if len(name) <= _MAX_NAME_CHARACTERS and _NAME.fullmatch(name) is not None:
        return None
    return "use labels of the characters a-z 0-9 - _ joined by dots, or @ for the zone itself"


class RecordsProvider(NamedObjects[_Record]):
    """A client for one zone of the records API."""

    noun = "record"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._api = HttpApi(config, permit, secret=secrets.credential, secrecy=secrets.secrecy)
        # Separate connections: a request that waits for changes must not block other requests.
        self._feed = HttpApi(config, permit, secret=secrets.credential, secrecy=secrets.secrecy)
        timeout_seconds = config.limits.request_timeout_seconds
        self._wait_seconds = min(timeout_seconds * MAX_WAIT_FRACTION, MAX_WAIT_SECONDS)

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a record cannot have this name."""
        return name_problem(external_name)

    async def find(self, external_name: str) -> _Record | None:
        """Read a record."""
        response = await self._api.find(_path(external_name), confirm=self._confirm_zone)
        return None if response is None else _decode_record(response, external_name)

    async def create_object(self, action: Action) -> _Record:
        """Create a record unless the name exists."""
        return await self._put(action, {"If-None-Match": "*"})

    async def update(self, action: Action) -> Effect:
        """Replace the record at the action's version, without a read: etags are never reused."""
        if action.version is None:
            return await super().update(action)
        try:
            return Effect((await self._replace(action, action.version)).as_object())
        except ConflictError as conflict:
            return await self.explain_refused_update(action, conflict)

    async def update_object(self, action: Action, existing: ExistingObject[_Record]) -> _Record:
        """Replace the record unless it changed after it was found."""
        return await self._replace(action, existing.native.etag)

    async def delete_object(self, action: Action, existing: ExistingObject[_Record]) -> None:
        """Delete the record unless it changed after it was found."""
        response = await self._api.call(
            "DELETE", _path(action.external_name), headers={"If-Match": f'"{existing.native.etag}"'}
        )
        if response.status_code == HTTPStatus.NOT_FOUND:
            with keep_unknown_result(response):
                await self._confirm_zone()
            raise NotFoundError(f"record {action.external_name!r} does not exist")
        if response.status_code == HTTPStatus.PRECONDITION_FAILED:
            raise NotDoneError(f"record {action.external_name!r} was changed during the deletion")
        if response.status_code != HTTPStatus.NO_CONTENT:
            raise build_refusal_error(response)

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_Record]]:
        """List all records with the scope's labels. The API cannot filter by prefix."""
        del unreadable
        query = [("tag", f"{key}={value}") for key, value in sorted(scope.labels.items())]
        query.append(("per_page", str(min(page_size, MAX_PAGE_SIZE))))
        async for records in follow_pages(partial(self._page, query)):
            yield records

    async def changes(self, after: str | None) -> str:
        """Wait for the zone's next change, and return its number."""
        query = [] if after is None else [("after", after), ("wait", f"{self._wait_seconds:g}")]
        response = await self._feed.call("GET", "/changes", query=query)
        if response.status_code != HTTPStatus.OK:
            raise build_refusal_error(response)
        return str(decode_body(response, _changes_decoder).last)

    async def close(self) -> None:
        """Close connections."""
        await self._api.close()
        await self._feed.close()

    async def _replace(self, action: Action, etag: str) -> _Record:
        return await self._put(action, {"If-Match": f'"{etag}"'})

    async def _put(self, action: Action, condition: dict[str, str]) -> _Record:
        tags = [f"{key}={value}" for key, value in sorted(action.labels.items())]
        content = {**action.fields, "tags": [*tags, f"{KEY_TAG}={action.idempotency_key}"]}
        response = await self._api.call(
            "PUT",
            _path(action.external_name),
            headers={"Content-Type": "application/json", **condition},
            body=_encoder.encode(content),
        )
        if response.status_code == HTTPStatus.PRECONDITION_FAILED:
            raise ConflictError(
                f"record {action.external_name!r}: {describe_problem(response)}",
                status=response.status_code,
            )
        if response.status_code not in (HTTPStatus.CREATED, HTTPStatus.OK):
            raise build_refusal_error(response)
        return _decode_record(response, action.external_name)

    async def _confirm_zone(self) -> None:
        """Read a page of the zone before a 404 counts as absence; any gateway can return 404."""
        await self._page([("per_page", "1")], "")

    async def _page(self, query: list[tuple[str, str]], cursor: str) -> Page[_Record]:
        full = [*query, ("cursor", cursor)] if cursor else query
        response = await self._api.call("GET", "/records", query=full)
        if response.status_code != HTTPStatus.OK:
            raise build_refusal_error(response)
        page = decode_body(response, _page_decoder)
        return Page(page.records, page.next_cursor)


def _path(external_name: str) -> str:
    return f"/records/{path_segment(external_name, name_problem)}"


def _decode_record(response: Response, external_name: str) -> _Record:
    return decode_object(external_name, response, _record_decoder)


def _labels(tags: Sequence[str]) -> dict[str, str]:
    parts = (tag.partition("=") for tag in tags)
    return {key: value for key, _, value in parts}


RECORD = Kind(
    name="Record",
    api_version="records/v1",
    provider="records",
    schema=RecordFields,
    capabilities=Capabilities(
        idempotency_keys=False,
        deterministic_names=True,
        labels=True,
        conditional_writes=True,
        watch=True,
    ),
    connect=RecordsProvider,
    normalize=normalize,
    name_problem=name_problem,
)
"""The ``Record`` kind."""
