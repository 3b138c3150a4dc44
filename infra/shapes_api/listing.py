"""Listings: the shapes that match, in name order, from a place on, now or as of a moment ago."""

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

LAST_CHARACTER: Final = chr(0x10FFFF)

_NOW: Final = """
SELECT name, document FROM shapes
WHERE name > :after AND name >= :prefix AND name < :end ORDER BY name
"""

# The document from before a name's first later effect is what it was at that moment.
_AS_OF: Final = """
WITH later AS (
    SELECT name, previous AS document, min(sequence) FROM journal
    WHERE sequence > :sequence GROUP BY name
)
SELECT name, document FROM (
    SELECT name, document FROM shapes WHERE name NOT IN (SELECT name FROM later)
    UNION ALL
    SELECT name, document FROM later WHERE document IS NOT NULL
)
WHERE name > :after AND name >= :prefix AND name < :end ORDER BY name
"""

Item = tuple[str, bytes]


class Filters(msgspec.Struct, frozen=True):
    """Which shapes a listing is about."""

    labels: tuple[tuple[str, str], ...] = ()
    prefix: str = ""


class Page(msgspec.Struct, frozen=True):
    """One page: names and documents, and whether more follow."""

    items: list[Item]
    has_more: bool


class _Labelled(msgspec.Struct):
    labels: dict[str, str]


_labels_decoder: Final = msgspec.json.Decoder(_Labelled)


def read_page(
    connection: sqlite3.Connection,
    filters: Filters,
    after: str,
    limit: int | None,
    as_of_sequence: int | None = None,
) -> Page:
    """Return the shapes behind `after`; `as_of_sequence` undoes the later effects."""
    parameters = {
        "after": after,
        "prefix": filters.prefix,
        "end": filters.prefix + LAST_CHARACTER,
        "sequence": as_of_sequence,
    }
    query = _NOW if as_of_sequence is None else _AS_OF
    rows: Iterable[Item] = connection.execute(query, parameters)
    if filters.labels:
        rows = _with_labels(rows, filters.labels)
    if limit is None:
        return Page(list(rows), has_more=False)
    items = list(islice(rows, limit + 1))
    return Page(items[:limit], has_more=len(items) > limit)


def _with_labels(rows: Iterable[Item], labels: tuple[tuple[str, str], ...]) -> Iterator[Item]:
    for name, document in rows:
        has = _labels_decoder.decode(document).labels
        if all(has.get(key) == value for key, value in labels):
            yield name, document
