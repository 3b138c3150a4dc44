"""Moves: a resource takes over the object of another one of its namespace and kind (ADR 0083).

The new resource waits while the former one is declared. After the former one is withdrawn and
nothing else delays the end of its ownership, it releases the object and the new one claims it, in
one batch. A resource that is renamed again before that passes the object on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from events.log import MovedObject, MoveEnded, MoveExpected, OwnershipClaimed, OwnershipReleased
from events.names import ResourceKey
from reconciler.resource.next_step import MOVE_EXPECTED, passes_on
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.resource.state import Owned, ResourceState

FormerEvent = OwnershipReleased | MoveExpected | MoveEnded
NewEvent = OwnershipClaimed | MoveEnded


class Move(NamedTuple):
    """The resources of a move."""

    former: ResourceKey
    new: ResourceKey


class MoveStep(NamedTuple):
    """The next event of each resource; None if it has none."""

    former: FormerEvent | None = None
    new: NewEvent | None = None


def moves_of(key: ResourceKey, state: ResourceState) -> Iterator[Move]:
    """Yield the moves that a resource takes part in, as the new or as the former resource."""
    for each in (state.desired.moving_from, *state.desired.abandoned_moves):
        if each:
            yield Move(ResourceKey.parse(each), key)
    if state.holds.moving_to:
        yield Move(key, ResourceKey.parse(state.holds.moving_to))


def find_source(state: ResourceState) -> ResourceKey | None:
    """Return the resource whose object a resource without one waits for; None if there is none."""
    former, has_none = state.desired.moving_from, state.owned is None
    is_waiting = has_none and state.actions.in_flight is None and _takes_over(state, former)
    return ResourceKey.parse(former) if former and is_waiting else None


def next_move_step(
    move: Move,
    former: ResourceState,
    new: ResourceState,
    competing: ResourceState,
    log_id: str,
    *,
    is_circular: bool = False,
) -> MoveStep:
    """Return the next step of a move (pure).

    ``competing``: state of the resource that the former one expects to take its object over.
    ``is_circular``: whether each resource of a circle waits for the object of the next one.
    """
    former_name, new_name = str(move.former), str(move.new)
    is_noted = former.holds.moving_to == new_name
    if not _takes_over(new, former_name):
        reason = f"{new_name} no longer takes over the object"
        is_abandoned = former_name in new.desired.abandoned_moves
        return MoveStep(
            MoveEnded(new_name, reason) if is_noted else None,
            MoveEnded(former_name, reason) if is_abandoned else None,
        )
    if former.holds.moving_to and not is_noted and _takes_over(competing, former_name):
        reason = f"{former.holds.moving_to} takes over the object of {former_name}"
        return MoveStep(new=MoveEnded(former_name, reason))
    owned, is_declared = former.owned, former.desired.is_declared
    obstacle = _find_obstacle(former, new)
    if is_circular:
        obstacle = f"{former_name} owns no object, and the renames form a circle"
    if obstacle:
        ended = MoveEnded(new_name, obstacle) if is_noted else None
        return MoveStep(ended, MoveEnded(former_name, obstacle))
    if not is_noted:
        return MoveStep(MoveExpected(new_name))
    if owned is None or is_declared or not (_is_ready(former) and _is_ready(new)):
        return MoveStep()
    location = (owned.external_name, owned.uid)
    return MoveStep(
        OwnershipReleased(*location, "Moved", owned.provider_config, moved_to=new_name),
        OwnershipClaimed(
            *location,
            "Moved",
            owned.provider_config,
            grace_seconds=former.observed.grace_seconds,
            moved=_describe_object(move.former, owned, former, log_id),
        ),
    )


def _takes_over(state: ResourceState, former: str) -> bool:
    """Return whether a resource takes over the object of another one, or passes it on."""
    is_meant = state.desired.is_declared or passes_on(state)
    return is_meant and state.desired.moving_from == former


def _find_obstacle(former: ResourceState, new: ResourceState) -> str:
    """Return why there is nothing to move, or an empty string."""
    owned, is_declared = former.owned, former.desired.is_declared
    is_idle = former.actions.in_flight is None
    if owned is None and is_idle and not is_declared and not passes_on(former):
        return "the former resource owns no object"
    spec = new.desired.spec
    if owned is not None and spec is not None and spec.provider_config != owned.provider_config:
        return f"the object is in ProviderConfig {owned.provider_config!r}"
    return ""


def _is_ready(state: ResourceState) -> bool:
    """Return whether a resource waits only for the other one."""
    is_idle = state.actions.in_flight is None
    return is_idle and state.outcome is not None and state.outcome.reason == MOVE_EXPECTED


def _describe_object(
    key: ResourceKey, owned: Owned, state: ResourceState, log_id: str
) -> MovedObject:
    existing, applied = state.observed.object, owned.applied
    label = "" if existing is None else existing.labels.get(OWNER_LABEL, "")
    is_ours = label in (owner(log_id, key), owned.former_label)
    moved = MovedObject(
        str(key),
        existing,
        owner_label=label if is_ours else owner(log_id, key),
        written_at=state.actions.effect_at,
    )
    if applied is None:
        return moved
    return MovedObject(
        moved.moved_from,
        existing,
        True,
        applied.fields,
        applied.labels,
        applied.result,
        applied.in_doubt,
        moved.owner_label,
        moved.written_at,
    )
