"""The document of an object: its desired and its observed fields, in the API's own terms.

The document is built from a spec when a decision is made, and recorded in the log. So the fields in
the log have the API's own names and places, and a changed definition does not change their meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from events.kind_definition import DefinedField, KindDefinitionSpec
from events.manifest import Fields, InvalidManifestError
from events.rest_definition import RestSpec
from infra.providers.rest.expressions import ExpressionError
from infra.providers.rest.places import (
    MISSING,
    Finder,
    Template,
    found_at,
    put_at,
    steps_of,
)

MAX_SLOTS: Final = 128

_encoder = msgspec.json.Encoder(order="deterministic")
_Steps = tuple[str, ...]


class Document:
    """Builds the document of an object from its spec, and extracts it from the API's responses."""

    def __init__(self, spec: KindDefinitionSpec, rest: RestSpec) -> None:
        """Compile the template of the document; raises ``InvalidManifestError``."""
        tree = _tree(spec, rest)
        self._template = Template(tree, "spec.rest.document", {"spec"})
        slots = [*_slots(tree, ())]
        if not 0 < len(slots) <= MAX_SLOTS:
            raise InvalidManifestError(
                f"spec.rest.document: has {len(slots)} fields, but must have 1 to {MAX_SLOTS}"
            )
        self.slots: tuple[_Steps, ...] = tuple(slots)
        names = {".".join(each): each for each in slots}
        self.top = frozenset(each[0] for each in slots)
        self.shows = frozenset(
            ".".join(each[:length]) for each in slots for length in range(1, len(each) + 1)
        )
        self._finders = {
            names[path]: Finder(place, f"spec.rest.shown.{path}", "object")
            for path, place in rest.shown.items()
            if _known(path, names, f"spec.rest.shown.{path}")
        }
        self._unordered = [
            names[path] for path in rest.unordered if _known(path, names, "spec.rest.unordered")
        ]
        for path in rest.immutable:
            _known(path, self.shows, "spec.rest.immutable")

    def of_spec(self, fields: Fields) -> Fields:
        """Return the desired document of an object; raises ``InvalidManifestError``."""
        try:
            made = self._template.made({"spec": fields})
        except ExpressionError as error:
            raise InvalidManifestError(f"spec: {error}") from None
        return self.normalized(without_nothing(made))

    def of_object(self, shown: Any) -> Fields:
        """Return the observed document of an object: its value at each place, null if it has none.

        If an expression fails, its place is null. An owned object is then written again. A foreign
        object, which may have any form, must not abort the listing.
        """
        result: Fields = {}
        for slot in self.slots:
            finder = self._finders.get(slot)
            try:
                value = found_at(shown, slot) if finder is None else finder.find(shown)
            except ExpressionError:
                value = MISSING
            put_at(result, slot, None if value is MISSING else value)
        return self.normalized(result)

    def normalized(self, fields: Fields) -> Fields:
        """Return the fields; lists are sorted where the definition declares order irrelevant."""
        for slot in self._unordered:
            value = found_at(fields, slot)
            if isinstance(value, list):
                ordered = sorted(cast("list[Any]", value), key=_encoder.encode)
                if ordered != value:
                    # a copy, because the caller keeps its fields
                    fields = msgspec.to_builtins(fields)
                    put_at(fields, slot, ordered)
        return fields


def without_nothing(fields: Any) -> Any:
    """Return JSON without members that are null, because they stand for absent values."""
    if not isinstance(fields, dict):
        return fields
    of_map = cast("dict[str, Any]", fields)
    return {name: without_nothing(each) for name, each in of_map.items() if each is not None}


def _tree(spec: KindDefinitionSpec, rest: RestSpec) -> Fields:
    if rest.document is not None:
        if spec.constants:
            raise InvalidManifestError(
                "spec.constants: not allowed with spec.rest.document; write the values into the "
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
    taken: dict[_Steps, str] = {}
    plain: list[tuple[str, str, Any]] = [
        (f"spec.constants.{path}", path, value) for path, value in spec.constants.items()
    ]
    plain += [
        (f"spec.fields.{name}", field.to or name, _members(f"spec.{name}", field))
        for name, field in spec.fields.items()
    ]
    for where, path, value in plain:
        steps = steps_of(path, f"{where}.to")
        for other, its in taken.items():
            if steps[: len(other)] == other or other[: len(steps)] == steps:
                raise InvalidManifestError(
                    f"{where}: {its} already writes {path!r}; remove one of them"
                )
        taken[steps] = where
        put_at(tree, steps, value)
    return tree


def _members(place: str, field: DefinedField) -> Any:
    """Return one place per member of an object, so that members that the API adds are ignored."""
    if field.type != "Object":
        return f"= {place}"
    return {name: _members(f"{place}.{name}", each) for name, each in field.fields.items()}


def _slots(node: Any, above: _Steps) -> Iterator[_Steps]:
    """Yield the places that are compared separately: all template values that are not objects."""
    of_map = cast("Mapping[str, Any]", node if isinstance(node, dict) else {})
    for name, each in of_map.items():
        if "." in name or not name:
            place = ".".join((*above, name))
            raise InvalidManifestError(
                f"spec.rest.document: {place!r}: a name must not contain a dot"
            )
        if isinstance(each, dict) and each:
            yield from _slots(each, (*above, name))
        else:
            yield (*above, name)


def _known(path: str, known: Any, where: str) -> bool:
    if path not in known:
        places = ", ".join(sorted(known))
        raise InvalidManifestError(
            f"{where}: the document has no field {path!r}; use one of {places}"
        )
    return True
