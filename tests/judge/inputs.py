"""Rules about what a spec rests on: the values of references, and that no secret is recorded."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, cast

from events.envelope import encode_log
from events.external import ExternalObject
from events.log import SpecResolved
from events.manifest import Fields
from tests.judge.history import Recorded
from tests.judge.ledger import Ledger, Resource
from tests.judge.rule import Breach, on_event


@on_event()
def secrets(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """No value of a secret is in the log, whatever an API returned (invariant 12).

    Neither as it is, nor in Base64 or hexadecimal digits.
    """
    values = ledger.history.secret_values
    if not values:
        return
    stored = encode_log(recorded.event)
    for value in map(str.encode, values):
        encoded = (value, base64.b64encode(value).rstrip(b"="), value.hex().encode())
        if any(each in stored for each in encoded):
            yield resource.key, f"{recorded.event.id}: a secret is in the log"


@on_event("effects", "truth")
def resolved(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """A reference has a value that its target had, and was ready with at first (invariant 16)."""
    event, truth = recorded.event, ledger.history.truth
    if not isinstance(event.data, SpecResolved) or resource.spec is None or truth is None:
        return
    for name, value in resource.spec.fields.items():
        place = mark_of(value, "$ref")
        if place is None:
            continue
        _, _, target = place["$ref"].partition("/")
        found = [
            effect.at
            for effect in ledger.effects
            if effect.after is not None
            and is_named(effect.after.name, target)
            and event.data.fields[name] == value_of(place["field"], effect.after)
        ]
        if not found:
            yield event.key, f"{event.id}: {place} never was {event.data.fields[name]!r}"
        elif resource.resolved is None and truth.is_too_recent(found[0]):
            yield event.key, f"{event.id}: {target} was not ready yet"


def mark_of(field: Any, mark: str) -> dict[str, Any] | None:
    """Return a field's reference or secret, by its mark; None if it is a plain value."""
    return cast("Fields", field) if isinstance(field, dict) and mark in field else None


def is_named(found: str, name: str) -> bool:
    """Return whether an object has a name, or replaces one that has."""
    return found == name or found.rpartition("-")[0] == name


def value_of(field: str, found: ExternalObject) -> object:
    """Return the value of a reference to an object of the simulated API."""
    return {"name": found.name, "uid": found.uid}.get(field, found.outputs.get("address"))
