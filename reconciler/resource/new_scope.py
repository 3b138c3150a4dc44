"""The hold on deletions of undeclared objects in a new scope, until one approval (ADR 0082).

A mistake in the scope of a ``ProviderConfig`` would otherwise delete objects of other clients, and
the deletion guard allows a few objects per listing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from events.excerpt import list_first
from events.hold import Hold
from events.intake import UndeclaredObjects
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, config_key
from events.wording import plural
from reconciler.resource.observation import are_similar
from reconciler.resource.ownership import ClaimReason
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import Conclusion, Context, on_hold

SCOPE_CLAIMS: Final[tuple[ClaimReason, ...]] = ("Prefix", "ExclusiveScope")
"""Claims for which the scope or the name is the only evidence."""

MAX_NAMES: Final = 20
"""Maximum number of undeclared objects of a kind to record by name."""


def undeclared_for(fields: Fields, state: ResourceState) -> dict[str, UndeclaredObjects] | None:
    """Return the known undeclared objects of a declared ProviderConfig, if they need approval.

    A new scope has no known ones. An unchanged scope needs no second approval.
    """
    scope, desired = _deletion_scope(fields), state.desired
    if scope is None:
        return None
    is_same = desired.spec is not None and scope == _deletion_scope(desired.spec.fields)
    return state.api.undeclared if desired.is_declared and is_same else {}


def _deletion_scope(fields: Fields) -> tuple[object, ...] | None:
    try:
        return msgspec.convert(fields, ProviderConfigSpec).deletion_scope
    except msgspec.ValidationError:  # written by another release, so unused
        return None


def is_count_news(known: int | None, current: int) -> bool:
    """Return whether a count of undeclared objects must be recorded. A settled kind stays so."""
    return known is None or (known > 0 and not are_similar((known, known), (current, current)))


def conclude_new_scope(undeclared: Mapping[str, UndeclaredObjects]) -> Conclusion | None:
    """Hold a ProviderConfig whose new scope has undeclared objects; None if it has none."""
    kinds = [
        f"{each.count} of {plural(each.total, f'{kind} object')} ({_list_names(each)})"
        for kind, each in sorted(undeclared.items())
        if each.count
    ]
    if not kinds:
        return None
    return on_hold(
        Hold.EXCLUSIVE_SCOPE,
        "the scope is new, and Reconciler would delete its undeclared objects: "
        f"{list_first(kinds, '; ')}. Declare what should stay, then approve; or undo the change",
    )


def _list_names(objects: UndeclaredObjects) -> str:
    more = objects.count - len(objects.names)
    return list_first([*map(repr, objects.names), *[""] * more])


def hold_for_new_scope(
    claim: ClaimReason, config_name: str, kind: str, context: Context
) -> Conclusion | None:
    """Hold the claim to an undeclared object, which would delete it; None if it is allowed."""
    counts = context.new_scopes.get(config_name)
    if claim not in SCOPE_CLAIMS or counts is None or counts.get(kind) == 0:
        return None
    return on_hold(
        Hold.EXCLUSIVE_SCOPE,
        f"ProviderConfig {config_name!r} has a new scope, in which Reconciler would delete this "
        "undeclared object; to continue: "
        f"`reconciler approve {config_key(config_name)} --hold {Hold.EXCLUSIVE_SCOPE}`, or "
        "declare the object",
    )
