"""Circles of renames, in which each resource waits for an object that none of them owns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from events.names import ResourceKey
from reconciler.resource.cycle import MAX_CYCLE
from reconciler.resource.move import Move, find_source
from reconciler.resource.state import ResourceState

ReadState = Callable[[ResourceKey], Awaitable[ResourceState | None]]
"""Returns the state of a resource; None if its history is unreadable."""


async def find_move_circle(move: Move, former: ResourceState, read: ReadState) -> frozenset[Move]:
    """Return the moves of the circle that a move is part of; empty if it is part of none.

    It reads nothing unless the former resource waits for an object, too.
    """
    moves, state = [move], former
    while len(moves) <= MAX_CYCLE and (source := find_source(state)) is not None:
        if source == move.new:
            return frozenset((*moves, Move(source, moves[-1].former)))
        moves.append(Move(source, moves[-1].former))
        known = await read(source)
        if known is None:
            break
        state = known
    return frozenset()
