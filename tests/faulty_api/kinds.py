"""Kinds with the peculiarities of real APIs, one kind for each option of the faulty API.

Each has a separate provider name, so a ``ProviderConfig`` and its listings have one kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from http import HTTPStatus

import msgspec
from msgspec.structs import replace

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from events.secret import SecretRef
from infra.providers.responses import build_refusal_error, decode_body
from reconciler.errors import ConflictError, NotFoundError, RefusedError
from reconciler.provider import Capabilities, Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import Secrets
from shapes_api.kinds.shapes import SHAPE, ShapesProvider, name_problem
from tests.faulty_api.options import EXPIRES, ID_MARK

_KEY_LABEL = "written-by"
_MAX_NAME_CHARACTERS = 50


class ShapeOutputs(msgspec.Struct, frozen=True):
    """The outputs of a shape."""

    color: str
    expires: datetime | None = None


class OptionProvider(ShapesProvider):
    """A client of the shapes API with an option; reports outputs and the last writer."""

    option = ""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        endpoint = f"{config.endpoint}/as/{self.option}"
        super().__init__(replace(config, endpoint=endpoint), secrets, permit)

    async def create(self, action: Action) -> Effect:
        return _effect_as_observed(await super().create(_with_key_label(action)))

    async def update(self, action: Action) -> Effect:
        return _effect_as_observed(await super().update(_with_key_label(action)))

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        existing = await super().read(external_name, uid)
        return None if existing is None else _as_observed(existing)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        async for page in super().pages(scope, page_size=page_size):
            yield [_as_observed(each) for each in page]


class FixedProvider(OptionProvider):
    """Provider of shapes whose type cannot be changed."""

    option = "fixed"


class ExpiringProvider(OptionProvider):
    """Provider of shapes that expire unless they are written again."""

    option = "expires"


class UnlistedProvider(OptionProvider):
    """Provider for an API without listings, which reads each object individually."""

    option = "unlisted"

    async def _confirm_absence(self, external_name: str) -> None:
        """Check that the API responds, because any gateway can return 404."""
        response = await self._api.call("GET", "/healthz")
        if response.status_code != HTTPStatus.OK:
            raise build_refusal_error(response)


class WhiteProvider(OptionProvider):
    """Provider of shapes that are created White and painted by a second request.

    The first request carries the key of the action and stores it in the object. The key of the
    second is derived from it, and the second relies on the stored key.
    """

    option = "white"

    async def create(self, action: Action) -> Effect:
        effect = await super().create(replace(action, fields={**action.fields, "color": "White"}))
        assert effect.object is not None
        if action.fields["color"] == "White":
            return effect
        paint = replace(
            action,
            operation="Update",
            idempotency_key=f"{action.idempotency_key}/2",
            uid=effect.object.uid,
            version=effect.object.version,
        )
        try:
            painted = await self.update(paint)
        except RefusedError as error:  # the object exists anyway
            unpainted = effect.object
            raise RefusedError(error.message, status=error.status, obstacle=unpainted) from error
        except ConflictError as error:
            if error.obstacle is not None and error.obstacle.uid == effect.object.uid:
                raise
            raise NotFoundError(f"the created object is missing: {error.message}") from error
        return replace(painted, replayed=effect.replayed and painted.replayed)


class _Numbered(msgspec.Struct, frozen=True):
    name: str
    type: str
    color: str
    labels: dict[str, str]
    uid: str
    version: int


_numbered_decoder = msgspec.json.Decoder(_Numbered)


class _NumberedShapes(OptionProvider):
    """Provider of shapes under their full names, including ids."""

    option = "ids"

    async def create_numbered(self, action: Action) -> Effect:
        """Create an object, whose full name the API assigns."""
        marked = _with_key_label(action)
        response = await self._api.call(
            "POST",
            "/shapes",
            headers={"Idempotency-Key": action.idempotency_key, "Content-Type": "application/json"},
            body=msgspec.json.encode(
                {"name": marked.external_name, "labels": marked.labels, **marked.fields}
            ),
        )
        if response.status_code not in {HTTPStatus.CREATED, HTTPStatus.OK}:
            raise await self._refused(response, action)
        numbered = decode_body(response, _numbered_decoder)
        fields: Fields = {"type": numbered.type, "color": numbered.color}
        created_object = ExternalObject(
            numbered.name, fields, numbered.uid, str(numbered.version), numbered.labels
        )
        return Effect(
            _as_observed(created_object), replayed="idempotent-replayed" in response.headers
        )


class NumberedProvider:
    """Provider for an API that assigns ids, which distinguish objects of the same name."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._shapes = _NumberedShapes(config, secrets, permit)

    async def create(self, action: Action) -> Effect:
        if (problem := _numbered_name_problem(action.external_name)) is not None:
            raise RefusedError(f"invalid name {action.external_name!r}: {problem}")
        return _effect_by_id(await self._shapes.create_numbered(action))

    async def update(self, action: Action) -> Effect:
        full_name = await self._full_name(action)
        if full_name is None:
            raise NotFoundError(f"no shape is named {action.external_name!r}")
        try:
            return _effect_by_id(
                await self._shapes.update(replace(action, external_name=full_name, uid=None))
            )
        except ConflictError as conflict:
            obstacle = None if conflict.obstacle is None else _by_id(conflict.obstacle)
            raise ConflictError(
                conflict.message,
                status=conflict.status,
                obstacle=obstacle,
                replayed=conflict.replayed,
            ) from conflict

    async def delete(self, action: Action) -> Effect:
        full_name = await self._full_name(action)
        if full_name is None:
            return Effect(None, absent=True)
        return await self._shapes.delete(replace(action, external_name=full_name, uid=None))

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        if uid is None:
            return await self._first(external_name)
        existing = await self._shapes.read(f"{external_name}{ID_MARK}{uid}")
        return None if existing is None else _by_id(existing)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        async for page in self._shapes.pages(scope, page_size=page_size):
            yield [_by_id(each) for each in page if ID_MARK in each.name]

    async def close(self) -> None:
        await self._shapes.close()

    async def _full_name(self, action: Action) -> str | None:
        if (problem := _numbered_name_problem(action.external_name)) is not None:
            raise RefusedError(f"invalid name {action.external_name!r}: {problem}")
        uid = action.uid
        if uid is None:
            existing = await self._first(action.external_name)
            uid = None if existing is None else existing.uid
        return None if uid is None else f"{action.external_name}{ID_MARK}{uid}"

    async def _first(self, external_name: str) -> ExternalObject | None:
        async for page in self.pages(Scope(prefix=external_name), page_size=100):
            for each in page:
                if each.name == external_name:
                    return each
        return None


def _with_key_label(action: Action) -> Action:
    """Store the action's key in the object; for several keys, the first."""
    key = action.idempotency_key.partition("/")[0]
    return replace(action, labels={**action.labels, _KEY_LABEL: key})


def _as_observed(existing: ExternalObject) -> ExternalObject:
    labels = dict(existing.labels)
    key, expires = labels.pop(_KEY_LABEL, None), labels.pop(EXPIRES, None)
    outputs: Fields = {"color": existing.fields["color"]}
    if expires is not None:
        outputs["expires"] = expires
    return replace(existing, labels=labels, written_by=key, outputs=outputs)


def _effect_as_observed(effect: Effect) -> Effect:
    return effect if effect.object is None else replace(effect, object=_as_observed(effect.object))


def _by_id(existing: ExternalObject) -> ExternalObject:
    name, _, number = existing.name.partition(ID_MARK)
    return replace(existing, name=name, uid=number)


def _effect_by_id(effect: Effect) -> Effect:
    return effect if effect.object is None else replace(effect, object=_by_id(effect.object))


def _numbered_name_problem(name: str) -> str | None:
    if len(name) > _MAX_NAME_CHARACTERS or ID_MARK in name:
        return f"use at most {_MAX_NAME_CHARACTERS} characters, and no {ID_MARK}"
    return name_problem(name)


class SealedFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a shape whose color is a secret."""

    type: str
    color: SecretRef


class SealedProvider(FixedProvider):
    """Provider of shapes whose color is a secret, which is reported as its digest."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        super().__init__(config, secrets, permit)
        self._secrets = secrets

    async def create(self, action: Action) -> Effect:
        return self._effect_with_digest(await super().create(await self._resolve_color(action)))

    async def update(self, action: Action) -> Effect:
        return self._effect_with_digest(await super().update(await self._resolve_color(action)))

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        existing = await super().read(external_name, uid)
        return None if existing is None else self._with_digest(existing)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        async for page in super().pages(scope, page_size=page_size):
            yield [self._with_digest(each) for each in page]

    async def _resolve_color(self, action: Action) -> Action:
        reference = msgspec.convert(action.fields["color"], SecretRef)
        color = await self._secrets.value(reference, action.namespace)
        return replace(action, fields={**action.fields, "color": color})

    def _with_digest(self, existing: ExternalObject) -> ExternalObject:
        digest = self._secrets.digest(existing.fields["color"])
        return replace(
            existing, fields={**existing.fields, "color": {"secret": digest}}, outputs={}
        )

    def _effect_with_digest(self, effect: Effect) -> Effect:
        created_object = effect.object
        return (
            effect
            if created_object is None
            else replace(effect, object=self._with_digest(created_object))
        )


def _by_digest(fields: Fields) -> Fields:
    color = fields["color"]
    return {**fields, "color": {"secret": color["digest"]}} if "digest" in color else fields


def _renewal_time(_fields: Fields, observed_object: ExternalObject) -> datetime | None:
    return datetime.fromisoformat(observed_object.outputs["expires"])


FIXED = dataclasses.replace(
    SHAPE,
    name="FixedShape",
    provider="fixed",
    connect=FixedProvider,
    outputs=ShapeOutputs,
    immutable=frozenset({"type"}),
)
"""A replacement has the same name, so the old object is deleted first."""

TWIN = dataclasses.replace(FIXED, name="TwinShape", provider="twin", has_second_name=True)
"""A replacement is created under a second name, before the old object is deleted."""

EXPIRING = dataclasses.replace(
    SHAPE,
    name="ExpiringShape",
    provider="expiring",
    connect=ExpiringProvider,
    outputs=ShapeOutputs,
    renewal_time=_renewal_time,
)

UNLISTED = dataclasses.replace(
    SHAPE,
    name="UnlistedShape",
    provider="unlisted",
    connect=UnlistedProvider,
    outputs=ShapeOutputs,
    capabilities=Capabilities(
        idempotency_keys=True,
        deterministic_names=True,
        labels=True,
        conditional_writes=True,
        listing=False,
    ),
)

WHITE = dataclasses.replace(
    SHAPE, name="WhiteShape", provider="white", connect=WhiteProvider, outputs=ShapeOutputs
)
"""An object takes two calls to create."""

NUMBERED = dataclasses.replace(
    SHAPE,
    name="NumberedShape",
    provider="numbered",
    connect=NumberedProvider,
    outputs=ShapeOutputs,
    capabilities=Capabilities(
        idempotency_keys=True, deterministic_names=False, labels=True, conditional_writes=True
    ),
    name_problem=_numbered_name_problem,
)
"""The API assigns the ids."""

SEALED = dataclasses.replace(
    FIXED,
    name="SealedShape",
    provider="sealed",
    schema=SealedFields,
    connect=SealedProvider,
    comparable=_by_digest,
    outputs=None,
)
"""The color is a secret."""

OPTION_KINDS: tuple[Kind, ...] = (FIXED, TWIN, EXPIRING, UNLISTED, WHITE, NUMBERED)
