"""The digests of shapes at their newest positions, as this process knows them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from events.names import ShapeKey

MAX_SHAPES: Final = 50_000  # about 250 bytes each


class DigestCache:
    """Digests by shape and position: what is not known is looked up in the log.

    An append is a compare-and-set on the shape's last position, and the digest at a position never
    changes: what is remembered can be forgotten, never wrong.
    """

    def __init__(self, most: int = MAX_SHAPES) -> None:
        self._most = most
        self._known: OrderedDict[ShapeKey, tuple[int, str]] = OrderedDict()

    def get(self, key: ShapeKey, position: int) -> str | None:
        """Return a shape's digest at a position, empty for none; None if it is not known."""
        if position == 0:
            return ""
        known = self._known.get(key)
        return known[1] if known is not None and known[0] == position else None

    def put(self, key: ShapeKey, position: int, digest: str) -> None:
        """Remember a digest; the one that was not touched for longest is forgotten for it."""
        self._known[key] = (position, digest)
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
