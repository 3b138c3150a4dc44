"""The contract suite's cases: add a case for a provider, and the suite runs it."""

from __future__ import annotations

from dataclasses import dataclass

from events.manifest import Fields
from reconciler.provider.kind import Kind
from shapes_api.kinds.records import RECORD
from shapes_api.kinds.shapes import SHAPE


@dataclass(frozen=True)
class Case:
    """A kind, the module that serves its API, and two valid specs that differ."""

    kind: Kind
    api_module: str
    fields: Fields
    other_fields: Fields
    endpoint_path: str = ""


SHAPES_CASE = Case(
    kind=SHAPE,
    api_module="tests.faulty_api",
    fields={"type": "Square", "color": "Red"},
    other_fields={"type": "Square", "color": "Blue"},
)

RECORDS_CASE = Case(
    kind=RECORD,
    api_module="shapes_api",
    fields={"type": "A", "values": ["192.0.2.1", "192.0.2.2"]},
    other_fields={"type": "A", "values": ["192.0.2.3"], "ttl": 60},
    endpoint_path="/zones/example.org",
)

CASES = [SHAPES_CASE, RECORDS_CASE]
