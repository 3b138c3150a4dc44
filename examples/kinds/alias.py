"""A complete kind in one module: an alias (CNAME record) of the records API.

Put it in a package of your own, which registers it under `reconciler.kinds`;
docs/how-to/add-a-kind.md explains it.
"""

import re
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Annotated

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
    keep_unknown_result,
)
from reconciler.errors import ConflictError, NotFoundError
from reconciler.provider import Capabilities
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import ExistingObject, NamedObjects
from reconciler.provider.secrets import Secrets

KEY_TAG = "reconciler/key"
MAX_NAME_CHARACTERS = 63


class AliasFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An alias of a DNS name."""

    target: Annotated[str, msgspec.Meta(min_length=1, description="Name that the alias is for.")]
    ttl: Annotated[int, msgspec.Meta(ge=1, description="Time to live, in seconds.")] = 300


class Record(msgspec.Struct, frozen=True):
    """A record as the API returns it."""

    name: str
    id: str
    etag: str
    type: str
    ttl: int
    values: list[str]
    tags: list[str]

    def as_object(self) -> ExternalObject:
        labels = dict(tag.split("=", 1) for tag in self.tags if "=" in tag)
        key = labels.pop(KEY_TAG, None)
        return ExternalObject(
            name=self.name,
            fields={"target": " ".join(self.values), "ttl": self.ttl},
            uid=self.id,
            version=self.etag,
            labels=labels,
            written_by=key,
        )


class Page(msgspec.Struct, frozen=True):
    """A page of a listing."""

    records: list[Record]
    next_cursor: str | None


RECORD = msgspec.json.Decoder(Record)
PAGE = msgspec.json.Decoder(Page)


def name_problem(name: str) -> str | None:
    """Describe why this name is invalid for a record, or return None."""
    if re.fullmatch(r"[a-z0-9]+([-.][a-z0-9]+)*", name) and len(name) <= MAX_NAME_CHARACTERS:
        return None
    return "use at most 63 letters a-z and digits, joined by single - or ."


class AliasProvider(NamedObjects[Record]):
    """Creates, updates and deletes aliases in one zone."""

    noun = "alias"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self.api = HttpApi(config, permit, secret=secrets.credential, secrecy=secrets.secrecy)

    def name_problem(self, external_name: str) -> str | None:
        return name_problem(external_name)

    async def find(self, external_name: str) -> Record | None:
        response = await self.api.find(path_of(external_name), confirm=self.confirm_zone)
        return None if response is None else decode_object(external_name, response, RECORD)

    async def create_object(self, action: Action) -> Record:
        return await self.put(action, {"If-None-Match": "*"})

    async def update_object(self, action: Action, existing: ExistingObject[Record]) -> Record:
        return await self.put(action, {"If-Match": f'"{existing.native.etag}"'})

    async def delete_object(self, action: Action, existing: ExistingObject[Record]) -> None:
        condition = {"If-Match": f'"{existing.native.etag}"'}
        response = await self.api.call("DELETE", path_of(action.external_name), headers=condition)
        if response.status_code == HTTPStatus.NOT_FOUND:
            with keep_unknown_result(response):  # a gateway may have sent it
                await self.confirm_zone()
            raise NotFoundError(f"{action.external_name!r} does not exist")
        if response.status_code == HTTPStatus.PRECONDITION_FAILED:
            raise ConflictError(f"{action.external_name!r} was changed")
        if response.status_code != HTTPStatus.NO_CONTENT:
            raise build_refusal_error(response)

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[Record]]:
        del scope, unreadable  # the base class filters, and every record is readable
        cursor: str | None = ""
        while cursor is not None:
            page = await self.page(page_size, cursor)
            # Records of other types are not aliases: an exclusive scope must not delete them.
            yield [record for record in page.records if record.type == "CNAME"]
            cursor = page.next_cursor

    async def close(self) -> None:
        await self.api.close()

    async def put(self, action: Action, condition: dict[str, str]) -> Record:
        labels = {**action.labels, KEY_TAG: action.idempotency_key}
        content = {
            "type": "CNAME",
            "ttl": action.fields["ttl"],
            "values": [action.fields["target"]],
            "tags": [f"{name}={value}" for name, value in labels.items()],
        }
        response: Response = await self.api.call(
            "PUT",
            path_of(action.external_name),
            headers={"Content-Type": "application/json", **condition},
            body=msgspec.json.encode(content),
        )
        if response.status_code == HTTPStatus.PRECONDITION_FAILED:
            raise ConflictError(f"{action.external_name!r} exists in another version")
        if response.status_code not in (HTTPStatus.OK, HTTPStatus.CREATED):
            raise build_refusal_error(response)
        return decode_object(action.external_name, response, RECORD)

    async def confirm_zone(self) -> None:
        """List the zone: a 404 proves the absence of a record only if the zone exists."""
        await self.page(1, "")

    async def page(self, size: int, cursor: str) -> Page:
        query = [("per_page", str(min(size, 1000))), *([("cursor", cursor)] if cursor else [])]
        response = await self.api.call("GET", "/records", query=query)
        if response.status_code != HTTPStatus.OK:
            raise build_refusal_error(response)
        return decode_body(response, PAGE)


def path_of(external_name: str) -> str:
    return f"/records/{path_segment(external_name, name_problem)}"


ALIAS = Kind(
    name="Alias",
    api_version="aliases/v1",
    provider="aliases",
    schema=AliasFields,
    capabilities=Capabilities(
        idempotency_keys=False, deterministic_names=True, labels=True, conditional_writes=True
    ),
    connect=AliasProvider,
    name_problem=name_problem,
)
