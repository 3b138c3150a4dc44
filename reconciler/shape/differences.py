"""The three-way comparison: what we last applied, what is desired, what is observed.

A field is different when it is desired and not observed so, or when we applied it once, it is no
longer desired, and it is still there. What others added is theirs, and so is every ignored field
(invariant 8). Lists are compared whole: their order and length have a meaning that only the kind's
``normalize`` knows.

The rules are those of the three-way merge of ``kubectl apply``, without its strategic list merges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast

from events.external import ExternalObject
from events.log import FieldDifference
from events.manifest import Fields

Normalize = Callable[[Fields], Fields]
_MISSING = object()
LABELS = "labels"


class Wanted:
    """The content that an object should have, and what of it is left to others."""

    __slots__ = ("applied_fields", "applied_labels", "fields", "ignored", "labels")

    def __init__(
        self,
        fields: Fields,
        labels: Mapping[str, str],
        *,
        applied_fields: Fields | None = None,
        applied_labels: Mapping[str, str] | None = None,
        ignored: tuple[str, ...] = (),
    ) -> None:
        self.fields: Fields = fields
        self.labels: Mapping[str, str] = labels
        self.applied_fields: Fields = applied_fields or {}
        self.applied_labels: Mapping[str, str] = applied_labels or {}
        self.ignored = frozenset(ignored)


def differences(
    wanted: Wanted, observed: ExternalObject, normalize: Normalize
) -> tuple[FieldDifference, ...]:
    """List the fields and labels whose observed value is not the desired one, in path order."""
    found = _compare(
        wanted.fields, normalize(observed.fields), wanted.applied_fields, wanted.ignored, ""
    )
    # A label's name may hold dots, so labels are one level, never descended into.
    label_differences = _compare(
        wanted.labels, observed.labels, wanted.applied_labels, wanted.ignored, f"{LABELS}."
    )
    return (*found, *label_differences)


def merged(
    wanted: Wanted, observed: ExternalObject, normalize: Normalize
) -> tuple[Fields, dict[str, str]]:
    """Give the fields and labels to write: the desired ones, over what others have set."""
    fields = _merge(
        wanted.fields, normalize(observed.fields), wanted.applied_fields, wanted.ignored, ""
    )
    labels = _merge(
        wanted.labels, observed.labels, wanted.applied_labels, wanted.ignored, f"{LABELS}."
    )
    return fields, cast("dict[str, str]", labels)


def without_ignored(
    content: Mapping[str, object], ignored: Collection[str], prefix: str = ""
) -> dict[str, Any]:
    """Give the part of a content that is not left to others."""
    return {
        name: without_ignored(_mapping(value), ignored, f"{prefix}{name}.")
        if ignored and _is_mapping(value)
        else value
        for name, value in content.items()
        if prefix + name not in ignored
    }


def united(first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, Any]:
    """Give all that is in either content, at every depth; where both have it, the second's."""
    result = {**first, **second}
    for name in first.keys() & second.keys():
        if _is_mapping(first[name]) and _is_mapping(second[name]):
            result[name] = united(_mapping(first[name]), _mapping(second[name]))
    return result


def _compare(
    desired: Mapping[str, object],
    observed: Mapping[str, object],
    applied: Mapping[str, object],
    ignored: frozenset[str],
    prefix: str,
) -> Iterator[FieldDifference]:
    for name in sorted(desired.keys() | (applied.keys() & observed.keys())):
        path = prefix + name
        if path in ignored:
            continue
        want, have = desired.get(name, _MISSING), observed.get(name, _MISSING)
        if want is _MISSING:
            yield FieldDifference(path, None, have)
        elif want == have or (want is None and have is _MISSING):
            continue
        elif _is_mapping(want) and _is_mapping(have):
            yield from _compare(
                _mapping(want), _mapping(have), _mapping(applied.get(name)), ignored, path + "."
            )
        else:
            yield FieldDifference(path, want, None if have is _MISSING else have)


def _merge(
    desired: Mapping[str, object],
    observed: Mapping[str, object],
    applied: Mapping[str, object],
    ignored: frozenset[str],
    prefix: str,
) -> dict[str, object]:
    result: dict[str, object] = {}
    for name in observed.keys() | desired.keys():
        path = prefix + name
        want, have = desired.get(name, _MISSING), observed.get(name, _MISSING)
        if path in ignored:
            if have is not _MISSING:
                result[name] = have
        elif want is _MISSING:
            if name not in applied:
                result[name] = have
        elif _is_mapping(want) and _is_mapping(have):
            result[name] = _merge(
                _mapping(want), _mapping(have), _mapping(applied.get(name)), ignored, path + "."
            )
        else:
            result[name] = want
    return result


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict)


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if _is_mapping(value) else {}
