"""What a spec rests on, checked at each append: values of references, and that no secret shows."""

from __future__ import annotations

from collections.abc import Callable

from events.envelope import encode_log
from events.external import ExternalObject
from events.log import LogEvent, SpecResolved
from events.manifest import Fields
from reconciler.ports import ResourceAppend
from reconciler.resource.state import ResourceState
from tests.simulation.api import Api
from tests.simulation.vault import Vault, mark_of


class InputChecks:
    """Compares what the log says of inputs with what the API and the store really had."""

    def __init__(self, api: Api, vault: Vault, fail: Callable[[str], None]) -> None:
        self._api = api
        self._vault = vault
        self._fail = fail

    def look_at(self, state: ResourceState, event: LogEvent) -> None:
        """Judge an event by the state before it."""
        if isinstance(event.data, SpecResolved):
            self._resolved(state, event, event.data.fields)

    def nothing_secret(self, append: ResourceAppend) -> None:
        """No value of a secret is ever in the log, in whatever an API says of it."""
        if not self._vault.ever:
            return
        stored = b"".join(encode_log(event) for event in append.events)
        for value in self._vault.ever:
            if value.encode() in stored:
                self._fail(f"{append.events[0].id}: a secret is in the log")

    def _resolved(self, state: ResourceState, event: LogEvent, fields: Fields) -> None:
        """A reference stands for what its target really had, and had it ready the first time."""
        spec = state.desired.spec
        assert spec is not None
        for name, value in spec.fields.items():
            place = mark_of(value, "$ref")
            if place is None:
                continue
            _, _, target = place["$ref"].partition("/")
            made = [
                change.at
                for change in self._api.changes
                if change.after is not None
                and is_named(change.after.name, target)
                and fields[name] == value_of(place["field"], change.after)
            ]
            if not made:
                self._fail(f"{event.id}: {place} never was {fields[name]!r}")
            elif state.desired.resolved is None and (
                made[0] + self._api.traits.starting_seconds > self._api.now
            ):
                self._fail(f"{event.id}: {target} was not ready yet")


def is_named(found: str, name: str) -> bool:
    """Whether an object is called so, or takes the place of one that is."""
    return found == name or found.rpartition("-")[0] == name


def value_of(field: str, found: ExternalObject) -> object:
    """Give what a reference to an object stands for."""
    return {"name": found.name, "uid": found.uid}.get(field, found.outputs.get("address"))
