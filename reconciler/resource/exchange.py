"""Resources that exchange values which the API accepts for one object only (ADR 0089).

The API refuses each update, because the object of the other resource still has the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import eq
from typing import Any, NamedTuple

from events.excerpt import list_first
from events.log import FieldDifference
from reconciler.provider.kind import Overlap
from reconciler.resource.cycle import find_cycle

Changes = Mapping[str, Sequence[FieldDifference]]
"""The pending changes of resources of one kind and one ProviderConfig, by resource."""


class Exchange(NamedTuple):
    """A circle of resources. Each requests a value that the object of the next one still has.

    The circle begins and ends with the same resource. ``paths``: the fields of these values.
    """

    circle: tuple[str, ...]
    paths: tuple[str, ...]


def find_exchange(
    resource: str, changes: Changes, unique: Mapping[str, Overlap] | None = None
) -> Exchange | None:
    """Return the shortest circle of requested values that a resource is part of, or None.

    ``unique``: the fields that can cause a circle; None if any field may.
    """
    names = {each.path for each in changes.get(resource, ())}
    circles: dict[str, tuple[str, ...]] = {}
    for path in sorted(names if unique is None else names & unique.keys()):
        overlap = eq if unique is None else unique[path]
        circle = _find_circle(resource, path, changes, overlap)
        if circle:
            circles[path] = circle
    if not circles:
        return None
    shortest = min(circles.values(), key=len)
    return Exchange(shortest, tuple(path for path in circles if circles[path] == shortest))


def describe_exchange(exchange: Exchange) -> str:
    """Return a sentence about the values, without the way out."""
    fields = list_first([f"`{each}`" for each in exchange.paths])
    if len(exchange.circle) == 3:  # noqa: PLR2004 - two resources, the first one twice
        first, second, _ = exchange.circle
        return f"{first} and {second} exchange {fields}, and the API refuses both updates"
    return (
        f"{' → '.join(exchange.circle)}: each requests {fields} of the next one, and the API "
        "refuses all of these updates"
    )


def _find_circle(resource: str, path: str, changes: Changes, overlap: Overlap) -> tuple[str, ...]:
    at_path = {
        name: next((each for each in pending if each.path == path), None)
        for name, pending in changes.items()
    }

    def holders_of(name: str) -> Iterator[str]:
        requested = _elements_without(at_path.get(name), requested=True)
        for other, difference in at_path.items():
            held = _elements_without(difference, requested=False)
            if other != name and any(overlap(each, value) for each in requested for value in held):
                yield other

    return find_cycle(resource, holders_of(resource), holders_of)


def _elements_without(difference: FieldDifference | None, *, requested: bool) -> list[Any]:
    """Return the values that an object lacks, or those that it has and is about to give up."""
    if difference is None:
        return []
    desired, observed = _elements(difference.desired), _elements(difference.observed)
    first, second = (desired, observed) if requested else (observed, desired)
    return [each for each in first if each not in second]


def _elements(value: object) -> list[Any]:
    """Return the elements of a list, or the value. A truth value is never unique."""
    elements: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]  # pyright: ignore[reportUnknownArgumentType]
    return [each for each in elements if each is not None and not isinstance(each, bool)]
