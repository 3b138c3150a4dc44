"""The document of an object: its desired and observed fields in the API's format.

The decider builds it from a spec, and the log contains the result. The fields in the log therefore
have the API's names and structure, and editing the definition does not change their meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from events.kind_definition import DefinedField, KindDefinitionSpec
from events.manifest import Fields, InvalidManifestError
from events.rest_definition import RestSpec
from infra.providers.rest.expressions import ExpressionError
from infra.providers.rest.json_paths import (
    MISSING,
    Finder,
    Template,
    put_at,
    split_path,
    value_at,
)

MAX_SLOTS: Final = 128

_encoder = msgspec.json.Encoder(order="deterministic")
_Steps = tuple[str, ...]


class Document:
    """Builds an object's document from a spec, and extracts it from the API's responses."""

    def __init__(self, spec: KindDefinitionSpec, rest: RestSpec) -> None:
        """Compile the definition. Raises ``InvalidManifestError``."""
        tree = _tree(spec, rest)
        self._template = Template(tree, "spec.rest.document", {"spec"})
        slots = [*_slots(tree, ())]
        if not 0 < len(slots) <= MAX_SLOTS:
            raise InvalidManifestError(
                f"spec.rest.document: has {len(slots)} fields, but must have 1 to {MAX_SLOTS}"
            )
        self.slots: tuple[_Steps, ...] = tuple(slots)
        names = {".".join(each): each for each in slots}
        self.top_level = frozenset(each[0] for each in slots)
        self.paths = frozenset(
            ".".join(each[:length]) for each in slots for length in range(1, len(each) + 1)
        )
        self._finders = {
            names[path]: Finder(text, f"spec.rest.shown.{path}", "object")
            for path, text in rest.shown.items()
            if _check_known(path, names, f"spec.rest.shown.{path}")
        }
        self._unordered = [
            names[path]
            for path in rest.unordered
            if _check_known(path, names, "spec.rest.unordered")
        ]
        for path in rest.immutable:
            _check_known(path, self.paths, "spec.rest.immutable")

    def build(self, fields: Fields) -> Fields:
        """Return the fields that an object should have. Raises ``InvalidManifestError``."""
        try:
            document = self._template.build({"spec": fields})
        except ExpressionError as error:
            raise InvalidManifestError(f"spec: {error}") from None
        return self.normalize(remove_null_members(document))

    def extract(self, content: Any) -> Fields:
        """Return an object's fields, each null if the object has no value for it.

        An expression that fails yields null, so a managed object is written again. Other clients'
        objects may have any structure, and must not make a listing fail.
        """
        result: Fields = {}
        for slot in self.slots:
            finder = self._finders.get(slot)
            try:
                value = value_at(content, slot) if finder is None else finder.find(content)
            except ExpressionError:
                value = MISSING
            put_at(result, slot, None if value is MISSING else value)
        return self.normalize(result)

    def normalize(self, fields: Fields) -> Fields:
        """Return fields in which lists without a meaningful order are sorted."""
        for slot in self._unordered:
            value = value_at(fields, slot)
            if isinstance(value, list):
                ordered = sorted(cast("list[Any]", value), key=_encoder.encode)
                if ordered != value:
                    # a copy: the original belongs to the caller
                    fields = msgspec.to_builtins(fields)
                    put_at(fields, slot, ordered)
        return fields


def remove_null_members(fields: Any) -> Any:
    """Return JSON without null members, which are equivalent to missing members."""
    if not isinstance(fields, dict):
        return fields
    mapping = cast("dict[str, Any]", fields)
    return {name: remove_null_members(each) for name, each in mapping.items() if each is not None}


def _tree(spec: KindDefinitionSpec, rest: RestSpec) -> Fields:
    if rest.document is not None:
        if spec.constants:
            raise InvalidManifestError(
                "spec.constants: not allowed with spec.rest.document; put the values in the "
                "document"
            )
        for name, field in spec.fields.items():
            if field.to is not None:
                raise InvalidManifestError(
                    f"spec.fields.{name}.to: not allowed with spec.rest.document; remove one "
                    "of them"
                )
        return rest.document
    tree: Fields = {}
    owners: dict[_Steps, str] = {}
    plain: list[tuple[str, str, Any]] = [
        (f"spec.constants.{path}", path, value) for path, value in spec.constants.items()
    ]
    plain += [
        (f"spec.fields.{name}", field.to or name, _members(f"spec.{name}", field))
        for name, field in spec.fields.items()
    ]
    for location, path, value in plain:
        steps = split_path(path, f"{location}.to")
        for other_steps, owner in owners.items():
            if steps[: len(other_steps)] == other_steps or other_steps[: len(steps)] == steps:
                raise InvalidManifestError(
                    f"{location}: {owner} already writes {path!r}; remove one of them"
                )
        owners[steps] = location
        put_at(tree, steps, value)
    return tree


def _members(reference: str, field: DefinedField) -> Any:
    """List an object's members separately, so that members added by the API are ignored."""
    if field.type != "Object":
        return f"= {reference}"
    return {name: _members(f"{reference}.{name}", each) for name, each in field.fields.items()}


def _slots(node: Any, parents: _Steps) -> Iterator[_Steps]:
    """Yield the paths that are compared separately: those of all template values except objects."""
    mapping = cast("Mapping[str, Any]", node if isinstance(node, dict) else {})
    for name, child in mapping.items():
        if "." in name or not name:
            path = ".".join((*parents, name))
            raise InvalidManifestError(
                f"spec.rest.document: {path!r}: a name must not contain a dot"
            )
        if isinstance(child, dict) and child:
            yield from _slots(child, (*parents, name))
        else:
            yield (*parents, name)


def _check_known(path: str, known_paths: Any, location: str) -> bool:
    if path not in known_paths:
        names = ", ".join(sorted(known_paths))
        raise InvalidManifestError(
            f"{location}: the document has no field {path!r}; use one of {names}"
        )
    return True
