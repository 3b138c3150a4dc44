"""Kinds defined at run time: the ``KindDefinition`` kind.

A definition is based on an installed kind, on an HTTP API, or on other resources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from events.composition_definition import CompositionSpec
from events.field_types import description
from events.manifest import Fields, InvalidManifestError, ManifestStruct, Token
from events.rest_definition import RestSpec

MAX_FIELDS: Final = 128
MAX_DEPTH: Final = 6

_encoder = msgspec.json.Encoder(order="deterministic")

FieldType = Literal["String", "Integer", "Number", "Boolean", "Strings", "Object", "List", "Map"]
Normalization = Literal["Trim", "Lower", "Upper", "Title", "Sort"]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}(?!\n)$")]


class DefinedField(ManifestStruct, frozen=True):
    """One field of a defined kind.

    ``to`` is the field of the underlying kind, or the path in the API's object. It defaults to the
    same name. Without ``default`` the field is required, unless it is ``optional``. ``values`` are
    the allowed values, compared after ``normalize``. An ``Object`` has ``fields``. The ``items``
    of a ``List`` or ``Map`` are fields too. ``minimum`` and ``maximum`` limit a number, or the
    length of another value.
    """

    type: Annotated[FieldType, msgspec.Meta(description="Type of the value.")] = "String"
    to: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None,
        msgspec.Meta(
            description="Field of the underlying kind, or path in the API's object. Default:"
            " the same name."
        ),
    ] = None
    values: Annotated[
        tuple[str | int | float, ...],
        msgspec.Meta(
            description="Allowed values, in canonical form. For Strings, the allowed "
            "values of each item. Default: all."
        ),
    ] = ()
    default: Annotated[
        Any,
        msgspec.Meta(
            description="Default value. A field without one is required, unless it is optional."
        ),
    ] = None
    normalize: Annotated[
        tuple[Normalization, ...],
        msgspec.Meta(description="Steps that give the value its canonical form, in order."),
    ] = ()
    optional: Annotated[
        bool,
        msgspec.Meta(
            description="Whether the field may be left out although it has no default. Reconciler"
            " does not manage a field that is left out."
        ),
    ] = False
    fields: Annotated[
        dict[_Name, DefinedField],
        msgspec.Meta(
            max_length=MAX_FIELDS, description="Fields of an Object, each defined like this one."
        ),
    ] = {}  # noqa: RUF012
    items: Annotated[
        DefinedField | None, msgspec.Meta(description="Definition of each item of a List or Map.")
    ] = None
    minimum: Annotated[
        float | None,
        msgspec.Meta(description="Minimum of a number, or of the length of any other value."),
    ] = None
    maximum: Annotated[
        float | None,
        msgspec.Meta(description="Maximum of a number, or of the length of any other value."),
    ] = None
    about: Annotated[
        str,
        msgspec.Meta(max_length=300, description="Description, as `reconciler explain` shows it."),
    ] = ""


class KindDefinitionSpec(ManifestStruct, frozen=True, kw_only=True):
    """A kind that you define without code.

    Its metadata.name is the name of the kind. Declare one of over, rest and composition. A path
    is either dotted, such as metadata.uid, or = followed by a CEL expression. In a template, a
    string that begins with = is a CEL expression.
    """

    api_version: Annotated[
        str, msgspec.Meta(description="apiVersion of the manifests of this kind, as GROUP/VERSION.")
    ]
    provider: Annotated[
        Token,
        msgspec.Meta(
            description="Provider that the ProviderConfigs of this kind name. Each definition"
            " needs its own."
        ),
    ]
    over: Annotated[
        Token | None, msgspec.Meta(description="Installed kind that makes the calls.")
    ] = None  # keep this order: digests of released definitions depend on it
    fields: Annotated[
        dict[_Name, DefinedField],
        msgspec.Meta(max_length=MAX_FIELDS, description="Fields of the spec."),
    ]
    name_prefix: Annotated[
        str, msgspec.Meta(description="Prefix of the external name of each object.")
    ] = ""
    constants: Annotated[
        Fields,
        msgspec.Meta(
            description="Fields of the underlying kind, or paths in the API's object, with "
            "fixed values."
        ),
    ] = {}  # noqa: RUF012 - msgspec copies it
    rest: Annotated[RestSpec | None, msgspec.Meta(description="Calls to a JSON API over HTTP.")] = (
        None
    )
    composition: Annotated[
        CompositionSpec | None,
        msgspec.Meta(description="Resources that an object of this kind consists of."),
    ] = None

    @property
    def digest(self) -> str:
        """Digest of the definition. Equal definitions have the same digest."""
        return hashlib.blake2b(_encoder.encode(self), digest_size=8).hexdigest()


class DefinitionRef(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Generation and digest of a kind's definition."""

    generation: Annotated[int, description("Generation of the KindDefinition.")]
    digest: Annotated[str, description("Digest of the KindDefinition.")]
    affected: Annotated[
        int,
        description(
            "Number of resources that a change to the definition affects; 0 if the resource was "
            "declared with this definition."
        ),
    ] = 0
    total: Annotated[int, description("Number of declared resources of the kind at that time.")] = 0


def map_fields(definition: KindDefinitionSpec, fields: Fields) -> Fields:
    """Return the fields of the underlying kind for checked fields of the defined kind.

    Raises ``InvalidManifestError`` for a value that is not allowed.
    """
    normal = normalize_fields(definition.fields, fields)
    underlying = {definition.fields[name].to or name: value for name, value in normal.items()}
    return {**definition.constants, **underlying}


def normalize_fields(
    defined: Mapping[str, DefinedField], fields: Fields, path: str = "spec"
) -> Fields:
    """Return checked fields in canonical form, without undeclared ones.

    Raises ``InvalidManifestError`` for a value that is not allowed.
    """
    return {
        name: _normalize_field(each, fields[name], f"{path}.{name}")
        for name, each in defined.items()
        if fields.get(name) is not None
    }


def _normalize_field(field: DefinedField, value: Any, path: str) -> Any:
    if field.type == "Object" and isinstance(value, dict):
        return normalize_fields(field.fields, cast("Fields", value), path)
    if field.items is not None and isinstance(value, dict):
        mapping = cast("Fields", value)
        return {
            each: _normalize_field(field.items, mapping[each], f"{path}.{each}") for each in mapping
        }
    if field.items is not None and isinstance(value, list):
        items = cast("list[Any]", value)
        return [
            _normalize_field(field.items, each, f"{path}[{number}]")
            for number, each in enumerate(items)
        ]
    value = normalize_value(value, field.normalize)
    if not is_allowed(field, value):
        allowed = ", ".join(map(str, field.values))
        raise InvalidManifestError(f"{path}: {value!r} is not allowed; use one of {allowed}")
    return value


def is_allowed(field: DefinedField, value: Any) -> bool:
    """Return whether a normalized value, or each item of a list, is allowed for its field."""
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    return not field.values or all(each in field.values for each in items)


def normalize_value(value: Any, steps: tuple[Normalization, ...]) -> Any:
    """Return a value, or each item of a list, in canonical form."""
    for step in steps:
        match step:
            case "Sort":
                value = sorted(set(cast("list[Any]", value))) if isinstance(value, list) else value
            case "Trim":
                value = _map_strings(value, str.strip)
            case "Lower":
                value = _map_strings(value, str.lower)
            case "Upper":
                value = _map_strings(value, str.upper)
            case "Title":
                value = _map_strings(value, str.capitalize)
    return value


def _map_strings(value: Any, form: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_map_strings(item, form) for item in cast("list[Any]", value)]
    return form(value) if isinstance(value, str) else value
