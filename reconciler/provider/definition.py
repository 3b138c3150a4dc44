"""Definitions: makes a kind of a ``KindDefinition``, over an installed one (ADR 0033)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec

from events.kind_definition import (
    DefinedField,
    DefinitionRef,
    FieldType,
    KindDefinitionSpec,
    mapped,
    normalized,
)
from events.manifest import Fields, InvalidManifestError
from reconciler.provider.kind import Kind

_TYPES: Final[Mapping[FieldType, Any]] = {
    "String": str,
    "Integer": int,
    "Number": float,
    "Boolean": bool,
    "Strings": list[str],
}
_API_VERSION: Final = re.compile(r"[a-z0-9.-]{1,63}/v[a-z0-9]{1,15}")
_RESERVED: Final = ("providerConfigRef", "policy")


def kind_of(name: str, spec: KindDefinitionSpec, generation: int, over: Kind) -> Kind:
    """Return the kind that a definition describes; raises ``InvalidManifestError``.

    It has the objects, the capabilities and the provider of the kind beneath; only what people
    declare, and what the objects are called, is its own.
    """
    if _API_VERSION.fullmatch(spec.api_version) is None:
        raise InvalidManifestError(
            f"spec.apiVersion: {spec.api_version!r} is not GROUP/VERSION, such as badges/v1"
        )
    _check_fields(spec, over)

    def object_fields(fields: Fields) -> Fields:
        return over.checked_fields(mapped(spec, fields))

    return replace(
        over,
        name=name,
        api_version=spec.api_version,
        provider=spec.provider,
        schema=_schema(name, spec),
        maps=object_fields,
        name_prefix=spec.name_prefix,
        definition=DefinitionRef(generation, spec.digest),
    )


def _schema(name: str, spec: KindDefinitionSpec) -> type[msgspec.Struct]:
    fields = [
        (each, _type(each, field), *(() if field.default is None else (field.default,)))
        for each, field in spec.fields.items()
    ]
    required_first = sorted(fields, key=len)
    return msgspec.defstruct(name, required_first, frozen=True, forbid_unknown_fields=True)


def _type(name: str, field: DefinedField) -> Any:
    """Return a field's type, with words for people about what becomes of it."""
    allowed = ", ".join(map(str, field.values))
    words = [f"Becomes {field.to}." if field.to not in (None, name) else ""]
    words += [f"One of {allowed}." if allowed else ""]
    words += [f"Normalized: {', '.join(field.normalize)}." if field.normalize else ""]
    about = " ".join(each for each in words if each)
    return Annotated[_TYPES[field.type], msgspec.Meta(description=about)]


def _check_fields(spec: KindDefinitionSpec, over: Kind) -> None:
    beneath = {each.encode_name: each for each in msgspec.structs.fields(over.schema)}
    written = dict.fromkeys(spec.constants, "spec.constants")
    for name, field in spec.fields.items():
        where, to = f"spec.fields.{name}", field.to or name
        if name in _RESERVED:
            raise InvalidManifestError(f"{where}: the name is the reconciler's own: use another")
        if to in written:
            raise InvalidManifestError(f"{where}: {to!r} is written by {written[to]} already")
        written[to] = where
        _check_default(where, field)
    for to, where in written.items():
        if to not in beneath:
            known = ", ".join(beneath)
            raise InvalidManifestError(f"{where}: {over.name} has no field {to!r}, only {known}")
    for to, each in beneath.items():
        if each.required and to not in written:
            raise InvalidManifestError(
                f"spec.fields: {over.name} needs {to!r}: map a field to it, or give a constant"
            )
    for to, value in spec.constants.items():
        try:
            msgspec.convert(value, beneath[to].type)
        except msgspec.ValidationError as error:
            raise InvalidManifestError(f"spec.constants.{to}: {error}") from None


def _check_default(where: str, field: DefinedField) -> None:
    if field.default is None:
        return
    try:
        default = msgspec.convert(field.default, _TYPES[field.type])
    except msgspec.ValidationError as error:
        raise InvalidManifestError(f"{where}.default: {error}") from None
    if field.values and normalized(default, field.normalize) not in field.values:
        raise InvalidManifestError(f"{where}.default: {default!r} is not one of its values")
