"""Upcasting: events that older releases stored, brought to the form of this one.

A field with a default needs no upcaster: an event without it is decoded as it is. What does not fit
any more gets a new class, and an upcaster for the old CloudEvents ``type``::

    @UPCASTERS.register("reconciler.resource.SpecDeclared")
    def spec_declared(event: JsonObject) -> JsonObject:
        data = event["data"]
        return {
            **event,
            "type": "reconciler.resource.SpecAccepted",
            "data": {**data, "event": "SpecAccepted"},
        }

Where one type has had several forms, the CloudEvents attribute ``dataschema`` tells them apart by
the number at its end (``urn:reconciler:resource:SpecDeclared:2``); without it the form is 1.
Upcasters are chained, so each one knows only the next form. They are pure, and called only for
what cannot be decoded: an event of today's form costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

JsonObject = dict[str, Any]
Upcaster = Callable[[JsonObject], JsonObject]
"""Returns the next newer form of a whole event, envelope included, without changing the old one."""

FIRST_FORM = 1
_MAX_STEPS = 100


class UpcastingError(ValueError):
    """Upcasters lead in a circle, or back: a defect in them, not in the event."""


class Upcasters:
    """Upcasters by the CloudEvents type and the form that they read."""

    def __init__(self) -> None:
        self._upcasters: dict[tuple[str, int], Upcaster] = {}

    def register(self, event_type: str, form: int = FIRST_FORM) -> Callable[[Upcaster], Upcaster]:
        """Register the upcaster of one form of a type; raises ``ValueError`` for a second one."""

        def put(upcaster: Upcaster) -> Upcaster:
            if (event_type, form) in self._upcasters:
                raise ValueError(f"{event_type} of form {form} already has an upcaster")
            self._upcasters[event_type, form] = upcaster
            return upcaster

        return put

    def upcast(self, event: JsonObject) -> JsonObject | None:
        """Bring an event to its newest form; None if there is no upcaster for it.

        Raises ``UpcastingError``.
        """
        newest: JsonObject | None = None
        for _ in range(_MAX_STEPS):
            upcaster = self._upcasters.get((str(event.get("type")), form_of(event)))
            if upcaster is None:
                return newest
            newest = event = upcaster(event)
        raise UpcastingError(f"upcasters of {event.get('type')!r} form a loop")


def form_of(event: JsonObject) -> int:
    """Read the form out of ``dataschema``: the number after its last colon."""
    number = str(event.get("dataschema", "")).rpartition(":")[2]
    return int(number) if number.isascii() and number.isdigit() else FIRST_FORM


UPCASTERS = Upcasters()
"""The upcasters of this release: none yet, since this is its first form."""
