"""Kinds with the peculiarities of real APIs, one kind for each option of the faulty API.

Each has a provider name of its own, so that a ``ProviderConfig`` and its listings are about one.
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
    """What a shape gives to others."""

    color: str
    expires: datetime | None = None


class OptionProvider(ShapesProvider):
    """A client of the shapes API with an option: shows outputs, and whose write was the last."""

    option = ""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        endpoint = f"{config.endpoint}/as/{self.option}"
        super().__init__(replace(config, endpoint=endpoint), secrets, permit)

    async def create(self, action: Action) -> Effect:
        return _effect_as_observed(await super().create(_marked(action)))

    async def update(self, action: Action) -> Effect:
        return _effect_as_observed(await super().update(_marked(action)))

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        existing = await super().read(external_name, uid)
        return None if existing is None else _as_observed(existing)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        async for page in super().pages(scope, page_size=page_size):
            yield [_as_observed(each) for each in page]


class FixedProvider(OptionProvider):
    """Of shapes whose type cannot be changed."""

    option = "fixed"


class ExpiringProvider(OptionProvider):
    """Of shapes that end, unless they are written again."""

    option = "expires"


class UnlistedProvider(OptionProvider):
    """Of an API that cannot list: each object is read by itself."""

    option = "unlisted"

    async def _confirm_absence(self, external_name: str) -> None:
        """Have the API answer for itself: any gateway can answer 404."""
        answer = await self._api.call("GET", "/healthz")
        if answer.status_code != HTTPStatus.OK:
            raise build_refusal_error(answer)


class WhiteProvider(OptionProvider):
    """Of shapes that are made White, and painted by a second request: an effect of several calls.

    The first request carries the key of the action, and leaves it in the object. The second has a
    key made of that one, and relies on what the first has left.
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
        except RefusedError as error:  # it is there all the same
            half = effect.object
            raise RefusedError(error.message, status=error.status, obstacle=half) from error
        except ConflictError as error:
            if error.obstacle is not None and error.obstacle.uid == effect.object.uid:
                raise
            raise NotFoundError(f"what was made is gone: {error.message}") from error
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
    """Of shapes under their whole names, ids included."""

    option = "ids"

    async def make(self, action: Action) -> Effect:
        """Create an object, whatever the API calls it."""
        marked = _marked(action)
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
    """Of an API that makes the ids: a name may be had by many, and the id tells them apart."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._shapes = _NumberedShapes(config, secrets, permit)

    async def create(self, action: Action) -> Effect:
        if (problem := _numbered_name_problem(action.external_name)) is not None:
            raise RefusedError(f"invalid name {action.external_name!r}: {problem}")
        return _effect_by_id(await self._shapes.make(action))

    async def update(self, action: Action) -> Effect:
        whole = await self._whole_name(action)
        if whole is None:
            raise NotFoundError(f"no shape is named {action.external_name!r}")
        try:
            return _effect_by_id(
                await self._shapes.update(replace(action, external_name=whole, uid=None))
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
        whole = await self._whole_name(action)
        if whole is None:
            return Effect(None, absent=True)
        return await self._shapes.delete(replace(action, external_name=whole, uid=None))

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

    async def _whole_name(self, action: Action) -> str | None:
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


def _marked(action: Action) -> Action:
    """Leave the action's key in the object; of an action with several keys, the first."""
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
    """The fields of a shape whose colour is a secret."""

    type: str
    color: SecretRef


class SealedProvider(FixedProvider):
    """Of shapes whose colour is a secret: it is written as it is, and shown as its digest."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        super().__init__(config, secrets, permit)
        self._secrets = secrets

    async def create(self, action: Action) -> Effect:
        return self._sealed_effect(await super().create(await self._opened(action)))

    async def update(self, action: Action) -> Effect:
        return self._sealed_effect(await super().update(await self._opened(action)))

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        existing = await super().read(external_name, uid)
        return None if existing is None else self._sealed(existing)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        async for page in super().pages(scope, page_size=page_size):
            yield [self._sealed(each) for each in page]

    async def _opened(self, action: Action) -> Action:
        reference = msgspec.convert(action.fields["color"], SecretRef)
        color = await self._secrets.value(reference, action.namespace)
        return replace(action, fields={**action.fields, "color": color})

    def _sealed(self, existing: ExternalObject) -> ExternalObject:
        digest = self._secrets.digest(existing.fields["color"])
        return replace(
            existing, fields={**existing.fields, "color": {"secret": digest}}, outputs={}
        )

    def _sealed_effect(self, effect: Effect) -> Effect:
        created_object = effect.object
        return (
            effect
            if created_object is None
            else replace(effect, object=self._sealed(created_object))
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
"""Whose replacement has its name: the old one goes first."""

TWIN = dataclasses.replace(FIXED, name="TwinShape", provider="twin", has_second_name=True)
"""Whose replacement stands beside it, under a second name."""

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
"""Which is made by two calls."""

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
"""Whose ids the API makes."""

SEALED = dataclasses.replace(
    FIXED,
    name="SealedShape",
    provider="sealed",
    schema=SealedFields,
    connect=SealedProvider,
    comparable=_by_digest,
    outputs=None,
)
"""Whose colour is a secret."""

OPTION_KINDS: tuple[Kind, ...] = (FIXED, TWIN, EXPIRING, UNLISTED, WHITE, NUMBERED)
