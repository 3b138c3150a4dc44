"""The three-way comparison: what we last applied, what is desired, what is observed.

A field is different when it is desired and not observed so, or when we applied it once, it is no
longer desired, and it is still there. What others added is theirs, and so is every ignored field
(invariant 8). Lists are compared whole: their order and length have a meaning that only the kind's
``normalize`` knows.

The rules are those of the three-way merge of ``kubectl apply``, without its strategic list merges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from events.composition import PART_OF_LABEL
from events.external import ExternalObject
from events.log import Action, FieldDifference
from events.manifest import Fields, Policy
from reconciler.provider.kind import Kind
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.resource.state import Applied, Desired, Owned, ResourceState, Spec
from reconciler.resource.turn import Context

Normalize = Callable[[Fields], Fields]
_MISSING = object()
LABELS = "labels"
_MAX_VALUE_CHARACTERS = 120


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """The content that an object should have, and what of it is left to others."""

    fields: Fields
    labels: dict[str, str]
    applied_fields: Fields = {}
    applied_labels: Mapping[str, str] = {}
    ignored: frozenset[str] = frozenset()


def differences(
    wanted: Wanted, observed: ExternalObject, kind: Kind
) -> tuple[FieldDifference, ...]:
    """List the fields and labels whose observed value is not the desired one, in path order."""
    desired, actual, applied = wanted.fields, kind.normalize(observed.fields), wanted.applied_fields
    if kind.comparable is not None:
        desired, actual, applied = map(kind.comparable, (desired, actual, applied))
    field_differences = _compare(desired, actual, applied, wanted.ignored, "", kind.shows)
    # A label's name may hold dots, so labels are one level, never descended into.
    label_differences = _compare(
        wanted.labels, observed.labels, wanted.applied_labels, wanted.ignored, f"{LABELS}."
    )
    return (*field_differences, *label_differences)


def merge_desired(
    wanted: Wanted, observed: ExternalObject, normalize: Normalize
) -> tuple[Fields, dict[str, str]]:
    """Return the fields and labels to write: the desired ones, over what others have set."""
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
    """Return the part of a content that is not left to others."""
    return {
        name: without_ignored(_mapping(value), ignored, f"{prefix}{name}.")
        if ignored and _is_mapping(value)
        else value
        for name, value in content.items()
        if prefix + name not in ignored
    }


# --- of a resource


class Comparison(msgspec.Struct, gc=False):
    """The content that a resource's object should have, and how an object differs from it.

    Both are computed when they are first read, and then kept: a turn compares once.
    """

    desired: Desired
    owned: Owned | None
    existing: ExternalObject | None
    context: Context
    _wanted: Wanted | None = None
    _differences: tuple[FieldDifference, ...] | None = None

    @classmethod
    def of(cls, state: ResourceState, context: Context) -> Comparison:
        """Return the comparison with the object that was observed last."""
        return cls(state.desired, state.owned, state.observed.object, context)

    def is_of(self, state: ResourceState) -> bool:
        """Return whether a state has the very parts that are compared here."""
        is_same_object = state.observed.object is self.existing
        return is_same_object and state.desired is self.desired and state.owned is self.owned

    @property
    def wanted(self) -> Wanted:
        """The content that the object should have; the resource must have a spec."""
        if self._wanted is None:
            self._wanted = _wanted(self.desired, self.owned, self.existing, self.context)
        return self._wanted

    @property
    def differences(self) -> tuple[FieldDifference, ...]:
        """How the object differs from the desired one; empty if there is none of either."""
        if self._differences is None:
            self._differences = (
                () if self.existing is None else self.differences_from(self.existing)
            )
        return self._differences

    def differences_from(self, existing: ExternalObject) -> tuple[FieldDifference, ...]:
        """Compare the desired with another object; empty if nothing is desired."""
        kind = self.context.kind
        if self.desired.spec is None or kind is None:
            return ()
        return differences(self.wanted, existing, kind)

    @property
    def is_replaced(self) -> bool:
        """Whether another object, by its uid, has the place of the owned one."""
        if self.owned is None or self.owned.uid is None or self.existing is None:
            return False
        return self.existing.uid not in (None, self.owned.uid)

    @property
    def is_applied(self) -> bool:
        """Whether what is wanted now is what was last applied: else a difference is no drift."""
        applied = self._applied
        if applied is None or applied.in_doubt or self.desired.spec is None:
            return False
        ignored = self.wanted.ignored
        fields = without_ignored(self.wanted.fields, ignored)
        labels = without_ignored(self.wanted.labels, ignored, f"{LABELS}.")
        # The owner label was written with the rest, also where it cannot be put back later.
        written = without_ignored(applied.labels, ignored, f"{LABELS}.")
        return (applied.fields, written) == (fields, labels)

    @property
    def is_kept_by_the_api(self) -> bool:
        """Whether what differs is what the API result of exactly this write.

        Writing it again would change nothing but make a hot loop.
        """
        result, existing = None if self._applied is None else self._applied.result, self.existing
        if result is None or existing is None:
            return False
        is_same = (result.fields, result.labels, result.uid) == (
            existing.fields,
            existing.labels,
            existing.uid,
        )
        return is_same and self.is_applied

    def changes(self, action: Action) -> list[tuple[FieldDifference, object]]:
        """Return what an action changes: each path, and its applied value."""
        if action.operation == "Delete":
            return []
        if action.operation == "Create":
            changes = [FieldDifference(path, each, None) for path, each in action.fields.items()]
            changes += [
                FieldDifference(f"{LABELS}.{name}", each, None)
                for name, each in action.labels.items()
            ]
            return [(each, None) for each in changes]
        applied = self._applied
        if applied is None:
            return [(each, None) for each in self.differences]
        return [
            (each, value_at(each.path, applied.fields, applied.labels)) for each in self.differences
        ]

    @property
    def _applied(self) -> Applied | None:
        return None if self.owned is None else self.owned.applied


def _wanted(
    desired: Desired, owned: Owned | None, existing: ExternalObject | None, context: Context
) -> Wanted:
    spec, kind = desired.spec, context.kind
    assert spec is not None
    applied = None if owned is None else owned.applied
    if kind is not None and kind.composition is not None and existing is not None:
        # Whatever a set has is its parent's: an adopted one has nothing that was applied.
        applied = Applied(existing.fields, {} if applied is None else applied.labels)
    ignored = ignored_paths(spec.policy)
    if kind is not None and LABELS in kind.immutable:
        # Only a replacement could put our label back.
        ignored = (*ignored, f"{LABELS}.{OWNER_LABEL}")
    return Wanted(
        desired.fields,
        _labels(spec, owned, context),
        {} if applied is None else applied.fields,
        {} if applied is None else applied.labels,
        frozenset(ignored),
    )


def _labels(spec: Spec, owned: Owned | None, context: Context) -> dict[str, str]:
    """Return the labels that the object should carry: the declared ones, and our owner label.

    An object that is only observed is not ours to label.
    """
    if not context.capabilities.labels:
        return {}
    if spec.policy.mode == "ObserveOnly" and owned is None:
        # The part-of label belongs to the declaration: Reconciler does not write to this object.
        return {name: each for name, each in spec.labels.items() if name != PART_OF_LABEL}
    return {**spec.labels, OWNER_LABEL: context.owner}


def ignored_paths(policy: Policy) -> tuple[str, ...]:
    """Return the paths that are left to others: our label too, if it shall not be put back."""
    if policy.owner_label == "Report":
        return (*policy.ignore_fields, f"{LABELS}.{OWNER_LABEL}")
    return policy.ignore_fields


def needs_replacement(differences: Iterable[FieldDifference], kind: Kind) -> tuple[str, ...]:
    """Return the paths of differences that the API cannot mend in place."""
    return tuple(
        each.path
        for each in differences
        if any(each.path == path or each.path.startswith(f"{path}.") for path in kind.immutable)
    )


def value_at(path: str, fields: Mapping[str, object], labels: Mapping[str, str]) -> object:
    """Return what a content has at the path of a difference; None where nothing is."""
    if path.startswith(f"{LABELS}."):
        return labels.get(path.removeprefix(f"{LABELS}."))
    value: object = fields
    for name in path.split("."):
        value = cast("Mapping[str, object]", value).get(name) if isinstance(value, dict) else None
    return value


def format_value(value: object) -> str:
    """Return a value of a difference as text: JSON, cut where it is long."""
    if value is None:
        return "not set"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"


# --- of two contents


def _compare(
    desired: Mapping[str, object],
    observed: Mapping[str, object],
    applied: Mapping[str, object],
    ignored: frozenset[str],
    prefix: str,
    shows: frozenset[str] = frozenset(),
) -> Iterator[FieldDifference]:
    for name in sorted(desired.keys() | (applied.keys() & observed.keys())):
        path = prefix + name
        if path in ignored:
            continue
        want, have = desired.get(name, _MISSING), observed.get(name, _MISSING)
        if want is _MISSING:
            if have is not None:  # null is as nothing: there is no more to take away
                yield FieldDifference(path, None, have)
        elif want == have or (want is None and have is _MISSING):
            continue
        elif have is _MISSING and path in shows:
            continue  # nobody has looked there: it was read under an older definition
        elif _is_mapping(want) and _is_mapping(have):
            yield from _compare(
                _mapping(want),
                _mapping(have),
                _mapping(applied.get(name)),
                ignored,
                path + ".",
                shows,
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
    """Return whether a value is compared field by field; a secret is one value."""
    return isinstance(value, dict) and "$secret" not in value


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if _is_mapping(value) else {}
