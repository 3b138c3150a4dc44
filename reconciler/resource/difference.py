"""The three-way comparison of the last applied, the desired and the observed content.

A desired field differs if its observed value is not the desired one. A field that is no longer
desired differs if it was applied and still exists. Other clients' fields and ignored fields never
differ (invariant 8). Lists are compared as a whole, because only the kind's ``normalize`` defines
the meaning of their order and length.

The rules are those of the three-way merge of ``kubectl apply``, without strategic list merges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from events.composition import PART_OF_LABEL
from events.excerpt import list_first
from events.external import ExternalObject
from events.log import Action, FieldDifference
from events.manifest import Fields, Policy
from reconciler.provider.kind import Kind
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.resource.state import Applied, Desired, Owned, ResourceState, Spec
from reconciler.resource.turn import Context

_MISSING = object()
LABELS = "labels"
_MAX_VALUE_CHARACTERS = 120


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """The desired content of an object, with the base of the comparison and the ignored paths."""

    fields: Fields
    labels: dict[str, str]
    applied_fields: Fields = {}
    applied_labels: Mapping[str, str] = {}
    ignored: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()  # ignored paths that the object changed by itself


def differences(
    wanted: Wanted, observed: ExternalObject, kind: Kind
) -> tuple[FieldDifference, ...]:
    """Return the fields and labels whose observed value is not the desired one, in path order."""
    desired, actual, applied = wanted.fields, kind.normalize(observed.fields), wanted.applied_fields
    if kind.comparable is not None:
        desired, actual, applied = map(kind.comparable, (desired, actual, applied))
    visible = kind.visible_paths
    may_hide = bool(visible) and desired != applied
    if not may_hide and desired == actual and wanted.labels == observed.labels:
        return ()  # the most frequent case
    field_differences = _compare(desired, actual, applied, wanted.ignored, "", visible)
    if may_hide and LABELS not in kind.immutable:  # otherwise the API cannot update an object
        hidden = _hidden(desired, actual, applied, wanted.ignored, "", visible)
        field_differences = sorted((*field_differences, *hidden), key=lambda each: each.path)
    # A label's name may contain dots, so labels are one level deep.
    label_differences = _compare(
        wanted.labels, observed.labels, wanted.applied_labels, wanted.ignored, f"{LABELS}."
    )
    return (*field_differences, *label_differences)


def merge_desired(
    wanted: Wanted, observed: ExternalObject, kind: Kind
) -> tuple[Fields, dict[str, str]]:
    """Return the fields and labels to write: the desired ones, merged into the observed ones.

    If the kind shows missing values as null, a null removes a value that was applied.
    """
    fields = _merge(
        wanted.fields,
        kind.normalize(observed.fields),
        wanted.applied_fields,
        wanted.ignored,
        "",
        has_nulls=bool(kind.visible_paths),
    )
    labels = _merge(
        wanted.labels, observed.labels, wanted.applied_labels, wanted.ignored, f"{LABELS}."
    )
    return without_ignored(fields, wanted.settled), cast("dict[str, str]", labels)


def without_ignored(
    content: Mapping[str, object], ignored: Collection[str], prefix: str = ""
) -> dict[str, Any]:
    """Return the content without the ignored paths."""
    if not ignored:
        return dict(content)
    return {
        name: without_ignored(_mapping(value), ignored, f"{prefix}{name}.")
        if _is_mapping(value)
        else value
        for name, value in content.items()
        if prefix + name not in ignored
    }


# --- comparison of a resource


class Comparison(msgspec.Struct, gc=False):
    """The desired content of a resource's object, and its differences from an existing object.

    Both are computed on first access and then cached, so that a turn compares once.
    """

    desired: Desired
    owned: Owned | None
    existing: ExternalObject | None
    context: Context
    _wanted: Wanted | None = None
    _differences: tuple[FieldDifference, ...] | None = None

    @classmethod
    def of(cls, state: ResourceState, context: Context) -> Comparison:
        """Return the comparison with the last observed object."""
        return cls(state.desired, state.owned, state.observed.object, context)

    def applies_to(self, state: ResourceState) -> bool:
        """Return whether the cached results apply to a state, by identity of its parts."""
        is_same_object = state.observed.object is self.existing
        return is_same_object and state.desired is self.desired and state.owned is self.owned

    @property
    def wanted(self) -> Wanted:
        """The desired content of the object. The resource must have a spec."""
        if self._wanted is None:
            self._wanted = _build_wanted(self.desired, self.owned, self.existing, self.context)
        return self._wanted

    @property
    def differences(self) -> tuple[FieldDifference, ...]:
        """Differences of the existing object; empty if it or the desired content does not exist."""
        if self._differences is None:
            self._differences = (
                () if self.existing is None else self.differences_from(self.existing)
            )
        return self._differences

    def differences_from(self, existing: ExternalObject) -> tuple[FieldDifference, ...]:
        """Return the differences of another object; empty if no content is desired."""
        kind = self.context.kind
        if self.desired.spec is None or kind is None:
            return ()
        return differences(self.wanted, existing, kind)

    @property
    def is_replaced(self) -> bool:
        """Whether an object with a different uid has replaced the owned one."""
        if self.owned is None or self.owned.uid is None or self.existing is None:
            return False
        return self.existing.uid not in (None, self.owned.uid)

    @property
    def is_applied(self) -> bool:
        """Whether the last write applied the desired content. If not, differences are not drift."""
        applied = self._applied
        if applied is None or applied.in_doubt or self.desired.spec is None:
            return False
        ignored = self.wanted.ignored
        fields = without_ignored(self.wanted.fields, ignored)
        labels = without_ignored(self.wanted.labels, ignored, f"{LABELS}.")
        # The owner label was part of the write, even if no update can restore it later.
        written = without_ignored(applied.labels, ignored, f"{LABELS}.")
        applied_fields = without_ignored(applied.fields, self.wanted.settled)
        return (applied_fields, written) == (fields, labels)

    @property
    def is_kept_by_api(self) -> bool:
        """Whether the API itself turned the last written content into the observed one.

        Writing it again would only cause a hot loop.
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
        """Return each field that an action changes, with its last applied value."""
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


def _build_wanted(
    desired: Desired, owned: Owned | None, existing: ExternalObject | None, context: Context
) -> Wanted:
    spec, kind = desired.spec, context.kind
    assert spec is not None
    applied = None if owned is None else owned.applied
    if existing is not None and kind is not None and kind.composition is not None:
        # All parts of a set belong to its parent. An adopted set has no applied content yet.
        applied = Applied(existing.fields, {} if applied is None else applied.labels)
    ignored = ignored_paths(spec.policy)
    if kind is not None and LABELS in kind.immutable:
        # Only a replacement could restore our label, or name another parent. The log decides both.
        ignored = (*ignored, f"{LABELS}.{OWNER_LABEL}", f"{LABELS}.{PART_OF_LABEL}")
    applied_fields = {} if applied is None else applied.fields
    settled: frozenset[str] = frozenset()
    if existing is not None and kind is not None:
        settled = frozenset(kind.settled_paths(desired.fields, applied_fields, existing))
    return Wanted(
        desired.fields,
        _labels(spec, owned, context),
        applied_fields,
        {} if applied is None else applied.labels,
        settled.union(ignored),
        settled,
    )


def _labels(spec: Spec, owned: Owned | None, context: Context) -> dict[str, str]:
    """Return the labels that the object should have: the declared ones and our owner label.

    An object that is only observed is not given an owner label.
    """
    if not context.capabilities.labels:
        return {}
    if spec.policy.mode == "ObserveOnly" and owned is None:
        # The part-of label belongs to the declaration: Reconciler does not write to this object.
        return {name: each for name, each in spec.labels.items() if name != PART_OF_LABEL}
    return {**spec.labels, OWNER_LABEL: context.owner}


def ignored_paths(policy: Policy) -> tuple[str, ...]:
    """Return the ignored paths, including our owner label if the policy does not restore it."""
    if policy.owner_label == "Report":
        return (*policy.ignore_fields, f"{LABELS}.{OWNER_LABEL}")
    return policy.ignore_fields


def needs_replacement(differences: Iterable[FieldDifference], kind: Kind) -> tuple[str, ...]:
    """Return the paths of differences that the API cannot change in place."""
    return tuple(
        each.path
        for each in differences
        if any(each.path == path or each.path.startswith(f"{path}.") for path in kind.immutable)
    )


def describe_differences(differences: Sequence[FieldDifference]) -> str:
    """Return the first differences as text, with the declared values."""
    return list_first(
        [
            f"{each.path}: {format_value(each.observed)} (declared {format_value(each.desired)})"
            for each in differences
        ]
    )


def value_at(path: str, fields: Mapping[str, object], labels: Mapping[str, str]) -> object:
    """Return the value at the path of a difference; None if there is none."""
    if path.startswith(f"{LABELS}."):
        return labels.get(path.removeprefix(f"{LABELS}."))
    value: object = fields
    for name in path.split("."):
        value = cast("Mapping[str, object]", value).get(name) if isinstance(value, dict) else None
    return value


def format_value(value: object) -> str:
    """Return a value of a difference as JSON text, truncated if it is long."""
    if value is None:
        return "not set"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"


# --- comparison of desired and observed content


def _compare(
    desired: Mapping[str, object],
    observed: Mapping[str, object],
    applied: Mapping[str, object],
    ignored: frozenset[str],
    prefix: str,
    visible_paths: frozenset[str] = frozenset(),
) -> Iterator[FieldDifference]:
    for name in sorted(desired.keys() | (applied.keys() & observed.keys())):
        path = prefix + name
        if path in ignored:
            continue
        want, have = desired.get(name, _MISSING), observed.get(name, _MISSING)
        if want is _MISSING:
            if have is not None:  # null counts as missing
                yield FieldDifference(path, None, have)
        elif want == have or (want is None and have is _MISSING):
            continue
        elif have is _MISSING and path in visible_paths:
            continue  # the object was read with an older definition, without this field
        elif _is_mapping(want) and _is_mapping(have):
            yield from _compare(
                _mapping(want),
                _mapping(have),
                _mapping(applied.get(name)),
                ignored,
                path + ".",
                visible_paths,
            )
        else:
            yield FieldDifference(path, want, None if have is _MISSING else have)


def _hidden(
    desired: Mapping[str, object],
    observed: Mapping[str, object],
    applied: Mapping[str, object],
    ignored: frozenset[str],
    prefix: str,
    visible_paths: frozenset[str],
) -> Iterator[FieldDifference]:
    """Yield the applied fields that the definition no longer has, so that no read shows them."""
    for name in sorted(applied):
        path, value = prefix + name, applied[name]
        if path in ignored:
            continue
        if path not in visible_paths:
            # Otherwise the object was read with the older definition, and was compared.
            if name not in desired and name not in observed and value is not None:
                yield FieldDifference(path, None, value)
        elif _is_mapping(value):
            want, have = _mapping(desired.get(name)), _mapping(observed.get(name))
            if any(each.startswith(f"{path}.") for each in visible_paths):
                yield from _hidden(want, have, _mapping(value), ignored, f"{path}.", visible_paths)


def _merge(
    desired: Mapping[str, object],
    observed: Mapping[str, object],
    applied: Mapping[str, object],
    ignored: frozenset[str],
    prefix: str,
    *,
    has_nulls: bool = False,
) -> dict[str, object]:
    result: dict[str, object] = {}
    names = observed.keys() | desired.keys()
    for name in names | applied.keys() if has_nulls else names:
        path = prefix + name
        want, have = desired.get(name, _MISSING), observed.get(name, _MISSING)
        if has_nulls and have is None:
            have = _MISSING
        is_removed = want is _MISSING and name in applied
        if path in ignored or (want is _MISSING and not is_removed):
            if have is not _MISSING:
                result[name] = have
        elif is_removed and not has_nulls:
            continue
        elif is_removed and not _is_mapping(applied[name]):
            result[name] = None
        elif is_removed or (_is_mapping(want) and _is_mapping(have)):
            result[name] = _merge(
                _mapping(want),
                _mapping(have),
                _mapping(applied.get(name)),
                ignored,
                path + ".",
                has_nulls=has_nulls,
            )
        else:
            result[name] = want
    return result


def _is_mapping(value: object) -> bool:
    """Return whether a value is compared field by field. A secret counts as one value."""
    return isinstance(value, dict) and "$secret" not in value


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if _is_mapping(value) else {}
