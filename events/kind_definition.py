"""Kinds defined at run time: the kind ``KindDefinition``, a mapping onto an installed kind."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from events.manifest import Fields, InvalidManifestError, ManifestStruct, Token

MAX_FIELDS: Final = 128

_encoder = msgspec.json.Encoder(order="deterministic")

FieldType = Literal["String", "Integer", "Number", "Boolean", "Strings"]
Normalization = Literal["Trim", "Lower", "Upper", "Title", "Sort"]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}(?!\n)$")]


class DefinedField(ManifestStruct, frozen=True):
    """One field of a defined kind.

    ``to`` is the field of the kind beneath, by default of the same name. Without ``default`` it
    must be declared. ``values`` are the only ones allowed, after ``normalize`` has made one form of
    several: in this order.
    """

    type: FieldType = "String"
    to: _Name | None = None
    values: tuple[str | int | float, ...] = ()
    default: Any = None
    normalize: tuple[Normalization, ...] = ()


class KindDefinitionSpec(ManifestStruct, frozen=True):
    """The spec of a ``KindDefinition``; its ``metadata.name`` is the kind's name.

    ``over`` is the installed kind that makes the calls. ``provider`` is what ``ProviderConfig``s of
    the defined kind name: one of its own, so that nobody else looks at its scopes. ``name_prefix``
    goes before each object's name, ``constants`` are fields of the kind beneath that nobody
    declares.
    """

    api_version: str
    provider: Token
    over: Token
    fields: Annotated[dict[_Name, DefinedField], msgspec.Meta(max_length=MAX_FIELDS)]
    name_prefix: str = ""
    constants: Fields = {}  # noqa: RUF012 - msgspec copies it

    @property
    def digest(self) -> str:
        """Equal for two definitions that say the same."""
        return hashlib.blake2b(_encoder.encode(self), digest_size=8).hexdigest()


class DefinitionRef(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The definition that a decision rests on: its generation and its digest.

    Of one that changed under a resource, ``affected`` of ``total`` resources were met by the change
    when that was noticed; zero for a resource that was declared under it.
    """

    generation: int
    digest: str
    affected: int = 0
    total: int = 0


def mapped(definition: KindDefinitionSpec, fields: Fields) -> Fields:
    """Return the fields of the kind beneath, for checked fields of the defined kind.

    Raises ``InvalidManifestError`` for a value that is not allowed.
    """
    result = dict(definition.constants)
    for name, each in definition.fields.items():
        value = fields.get(name)
        if value is None:
            continue
        value = normalized(value, each.normalize)
        if not is_allowed(each, value):
            allowed = ", ".join(map(str, each.values))
            raise InvalidManifestError(f"spec.{name}: {value!r} is not allowed: use {allowed}")
        result[each.to or name] = value
    return result


def is_allowed(field: DefinedField, value: Any) -> bool:
    """Return whether a normalized value, or each of a list, is one of those of its field."""
    found = cast("list[Any]", value) if isinstance(value, list) else [value]
    return not field.values or all(each in field.values for each in found)


def normalized(value: Any, steps: tuple[Normalization, ...]) -> Any:
    """Give a value, or each of a list, one form."""
    for step in steps:
        match step:
            case "Sort":
                value = sorted(set(cast("list[Any]", value))) if isinstance(value, list) else value
            case "Trim":
                value = _each(value, str.strip)
            case "Lower":
                value = _each(value, str.lower)
            case "Upper":
                value = _each(value, str.upper)
            case "Title":
                value = _each(value, str.capitalize)
    return value


def _each(value: Any, form: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_each(item, form) for item in cast("list[Any]", value)]
    return form(value) if isinstance(value, str) else value
