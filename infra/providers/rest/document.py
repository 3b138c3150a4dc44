"""The document of an object: what it should have, in the API's own words, and what is read back.

It is made of a spec where decisions are made, and its result is in the log. So an object's fields
in the log are the API's own, at the API's own places, and never change their meaning with a
definition.
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
    """Makes an object's document of a spec, and finds it in what the API shows."""

    def __init__(self, spec: KindDefinitionSpec, rest: RestSpec) -> None:
        """Compile it; raises ``InvalidManifestError``."""
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
        """Return what an object should have; raises ``InvalidManifestError``."""
        try:
            made = self._template.made({"spec": fields})
        except ExpressionError as error:
            raise InvalidManifestError(f"spec: {error}") from None
        return self.normalized(without_nothing(made))

    def of_object(self, shown: Any) -> Fields:
        """Return what an object has at each place, null for nothing.

        What an expression makes nothing of is nothing: of our object it is written again, and
        somebody else's, which may have any form, must not end a listing.
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
        """Return fields with one order of the lists whose order means nothing."""
        for slot in self._unordered:
            value = found_at(fields, slot)
            if isinstance(value, list):
                ordered = sorted(cast("list[Any]", value), key=_encoder.encode)
                if ordered != value:
                    fields = msgspec.to_builtins(fields)  # a copy: it is somebody's
                    put_at(fields, slot, ordered)
        return fields


def without_nothing(fields: Any) -> Any:
    """Return JSON without members that are null: they are not there."""
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
    """Return an object's members each for itself: what the API adds to it is left to others."""
    if field.type != "Object":
        return f"= {place}"
    return {name: _members(f"{place}.{name}", each) for name, each in field.fields.items()}


def _slots(node: Any, above: _Steps) -> Iterator[_Steps]:
    """Yield the places that are compared each for itself: all that is no object of the template."""
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
