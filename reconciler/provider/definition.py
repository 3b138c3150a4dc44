"""Build the kind of a ``KindDefinition`` from its underlying kind (ADR 0033, ADR 0049)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from events.field_hints import field_error
from events.kind_definition import (
    MAX_DEPTH,
    MAX_FIELDS,
    DefinedField,
    DefinitionRef,
    FieldType,
    KindDefinitionSpec,
    Normalization,
    is_allowed,
    map_fields,
    normalize_fields,
    normalize_value,
)
from events.manifest import Fields, InvalidManifestError
from events.reference import has_reference_or_secret
from reconciler.provider.kind import DefinedKind, Kind

_TYPES: Final[Mapping[FieldType, Any]] = {
    "String": str,
    "Integer": int,
    "Number": float,
    "Boolean": bool,
    "Strings": list[str],
}
_FORMS: Final[Mapping[Normalization, str]] = {
    "Trim": "trimmed",
    "Lower": "converted to lower case",
    "Upper": "converted to upper case",
    "Title": "converted to title case",
    "Sort": "sorted",
}
_NESTED: Final = ("Object", "List", "Map")
_API_VERSION: Final = re.compile(r"[a-z0-9.-]{1,63}/v[a-z0-9]{1,15}")
_RESERVED: Final = ("providerConfigRef", "policy")


def build_kind(
    name: str, spec: KindDefinitionSpec, generation: int, underlying: Kind
) -> DefinedKind:
    """Return the kind that a definition describes. Raises ``InvalidManifestError``.

    It has the objects, the capabilities and the provider of the underlying kind. Only the declared
    fields and the object names differ.
    """
    if _API_VERSION.fullmatch(spec.api_version) is None:
        raise InvalidManifestError(
            f"spec.apiVersion: {spec.api_version!r} must have the form GROUP/VERSION, such as "
            "badges/v1"
        )
    if spec.over is not None:
        _check_fields(spec, underlying)

    def over_fields(fields: Fields) -> Fields:
        return underlying.check_fields(map_fields(spec, fields))

    def document(fields: Fields) -> Fields:
        return underlying.object_fields(normalize_fields(spec.fields, fields))

    values: dict[str, Any] = {
        **{each.name: getattr(underlying, each.name) for each in dataclasses.fields(Kind)},
        "name": name,
        "api_version": spec.api_version,
        "provider": spec.provider,
        "schema": _struct(name, spec.fields),
    }
    return DefinedKind(
        **values,
        underlying=underlying,
        source=DefinitionRef(generation, spec.digest),
        map_fields=document if spec.over is None else over_fields,
        name_prefix=spec.name_prefix,
    )


def _struct(name: str, fields: Mapping[str, DefinedField]) -> type[msgspec.Struct]:
    """Build a struct of the fields. Names such as ``__init__`` do not become its attributes."""
    names = {f"field{number}": field_name for number, field_name in enumerate(fields)}
    members: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for attribute, field_name in names.items():
        field = fields[field_name]
        field_type = _type(f"{name}.{field_name}", field_name, field)
        if field.default is not None:
            members.append((attribute, field_type, _with_default(field.default, field_type)))
        elif field.optional:
            members.append((attribute, field_type | msgspec.UnsetType, msgspec.UNSET))
        else:
            members.append((attribute, field_type))
    return msgspec.defstruct(
        name,
        sorted(members, key=len),  # fields without a default come first
        rename=names,
        frozen=True,
        forbid_unknown_fields=True,
    )


def _with_default(value: Any, field_type: Any) -> Any:
    if not isinstance(value, list | dict):
        return value
    # Each object has its own copy, with the defaults of its fields.
    return msgspec.field(default_factory=lambda: msgspec.convert(value, field_type))


def _type(path: str, name: str, field: DefinedField) -> Any:
    """Return the type of a field, with a description of how its value is used."""
    allowed = ", ".join(map(str, field.values))
    sentences = [field.about, f"Written to {field.to}." if field.to not in (None, name) else ""]
    sentences += [f"Allowed values: {allowed}." if allowed else ""]
    sentences += [_describe_normalization(field.normalize)] if field.normalize else []
    about = " ".join(each for each in sentences if each)
    return Annotated[_plain_type(path, name, field), _bounds(field, about)]


def _describe_normalization(steps: tuple[Normalization, ...]) -> str:
    """Return the sentence that describes how a value is normalized."""
    return f"{', '.join(_FORMS[step] for step in steps)}.".capitalize()


def _plain_type(path: str, name: str, field: DefinedField) -> Any:
    match field.type:
        case "Object":
            return _struct(path, field.fields)
        case "List" | "Map":
            assert field.items is not None
            item = _type(f"{path}.items", name, field.items)
            return list[item] if field.type == "List" else dict[str, item]
        case _:
            return _TYPES[field.type]


def _bounds(field: DefinedField, about: str) -> msgspec.Meta:
    low, high = field.minimum, field.maximum
    if field.type in ("Integer", "Number"):
        is_integer = field.type == "Integer"
        return msgspec.Meta(
            description=about,
            ge=int(low) if is_integer and low is not None else low,
            le=int(high) if is_integer and high is not None else high,
        )
    return msgspec.Meta(
        description=about,
        min_length=None if low is None else int(low),
        max_length=None if high is None else int(high),
    )


def check_declarable(spec: KindDefinitionSpec) -> None:
    """Check the fields as far as possible without the underlying kind.

    Raises ``InvalidManifestError``. This check comes first, so that the later checks process few
    fields.
    """
    all_fields = _iterate_fields(spec.fields, "spec.fields", 1)
    for number, (location, depth, name, field) in enumerate(all_fields):
        if number >= MAX_FIELDS or depth > MAX_DEPTH:
            raise InvalidManifestError(
                f"{location}: a definition can have at most {MAX_FIELDS} fields and "
                f"{MAX_DEPTH} levels"
            )
        if depth == 1 and name in _RESERVED:
            raise InvalidManifestError(f"{location}: the name is reserved; use another name")
        if depth > 1 and field.to is not None:
            raise InvalidManifestError(
                f"{location}.to: allowed only for a top-level field of the spec; remove it"
            )
        _check_shape(location, field)
        _check_values(location, field)


def _iterate_fields(
    fields: Mapping[str, DefinedField], location: str, depth: int
) -> Iterator[tuple[str, int, str, DefinedField]]:
    for name, field in fields.items():
        path = f"{location}.{name}"
        yield path, depth, name, field
        if depth > MAX_DEPTH:
            return
        yield from _iterate_fields(field.fields, f"{path}.fields", depth + 1)
        if field.items is not None:
            yield from _iterate_fields({"items": field.items}, path, depth + 1)


def _check_shape(location: str, field: DefinedField) -> None:
    if (field.type == "Object") != bool(field.fields):
        raise InvalidManifestError(
            f"{location}.fields: required for the type Object, and not allowed for other types"
        )
    if (field.type in ("List", "Map")) != (field.items is not None):
        raise InvalidManifestError(
            f"{location}.items: required for the types List and Map, and not allowed for other "
            "types"
        )
    if field.type in _NESTED and (field.values or field.normalize):
        raise InvalidManifestError(
            f"{location}: values and normalize are not allowed for a {field.type}; set them on "
            "its fields or items"
        )
    if field.optional and field.default is not None:
        raise InvalidManifestError(
            f"{location}.optional: not allowed together with default; remove one of them"
        )
    bounds = [each for each in (field.minimum, field.maximum) if each is not None]
    if bounds and field.type in ("Boolean", "Object"):
        raise InvalidManifestError(
            f"{location}: minimum and maximum are not allowed for the type {field.type}; "
            "remove them"
        )
    if len(bounds) == len((0, 1)) and bounds[0] > bounds[1]:
        raise InvalidManifestError(f"{location}.minimum: must not be greater than maximum")
    is_counted = field.type != "Number"
    if is_counted and not all(each.is_integer() for each in bounds):
        raise InvalidManifestError(f"{location}: minimum and maximum must be whole numbers")
    if field.type not in ("Integer", "Number") and any(each < 0 for each in bounds):
        raise InvalidManifestError(
            f"{location}: minimum and maximum are lengths and must not be negative"
        )


def _check_fields(spec: KindDefinitionSpec, base: Kind) -> None:
    underlying = {each.encode_name: each for each in msgspec.structs.fields(base.schema)}
    writers = dict.fromkeys(spec.constants, "spec.constants")
    for name, field in spec.fields.items():
        location, target = f"spec.fields.{name}", field.to or name
        if target in writers:
            raise InvalidManifestError(
                f"{location}: {writers[target]} already writes {target!r}; remove one of them"
            )
        writers[target] = location
    for target, location in writers.items():
        if target not in underlying:
            names = ", ".join(underlying)
            raise InvalidManifestError(
                f"{location}: {base.name} has no field {target!r}; use one of {names}"
            )
    for target, target_field in underlying.items():
        if target_field.required and target not in writers:
            raise InvalidManifestError(
                f"spec.fields: {base.name} requires {target!r}; map a field to it, or set it in "
                "spec.constants"
            )
    for target, value in spec.constants.items():
        if has_reference_or_secret({target: value}):
            raise InvalidManifestError(
                f"spec.constants.{target}: must not contain a reference or a secret"
            )
        _check_type(f"spec.constants.{target}", value, underlying[target].type)


def _check_values(location: str, field: DefinedField) -> None:
    """Check that the allowed values and the default are valid declarations."""
    for value in field.values:
        _check_type(
            f"{location}.values", [value] if field.type == "Strings" else value, _TYPES[field.type]
        )
        normalized = normalize_value(value, field.normalize)
        if normalized != value:
            raise InvalidManifestError(
                f"{location}.values: {value!r} can never occur, because values are normalized; "
                f"use {normalized!r}"
            )
    if field.default is None:
        return
    _check_type(f"{location}.default", field.default, _type("Default", "", field))
    if not is_allowed(field, normalize_value(field.default, field.normalize)):
        raise InvalidManifestError(
            f"{location}.default: {field.default!r} is not in values; use one of them"
        )


def _check_type(location: str, value: Any, value_type: Any) -> None:
    try:
        msgspec.convert(value, value_type)
    except msgspec.ValidationError as error:
        raise InvalidManifestError(field_error(error, value_type, location)) from None
