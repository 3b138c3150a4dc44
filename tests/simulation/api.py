"""An external API that misbehaves: its objects, its stored responses, and all effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from events.external import ExternalObject
from events.log import Action, Operation
from events.manifest import Fields
from tests.memory_bus.clock import date_of
from tests.simulation.plan import ApiTraits

DUPLICATE_MARK = "#"
"""Marks a second object with the same name."""

REFUSED_COLOR = "Invisible"
"""The API never accepts an object of this color."""


DATA = "data"
"""The output that names the newest data of an object, if it holds any."""

UNPAINTED = "White"
"""The color that the first of two calls sets."""


def address_of(existing: ExternalObject) -> str:
    """Return the address of an object, if objects have addresses."""
    return f"{existing.uid}/{existing.fields.get('color')}"


def second_key(action: Action) -> str:
    """Return the key of the second of two calls."""
    return f"{action.idempotency_key}/2"


class RefusalError(Exception):
    """The API refuses without an effect; ``status`` is an HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Change(NamedTuple):
    """One change of one object; ``key`` is empty if a human made it."""

    at: float
    name: str
    before: ExternalObject | None
    after: ExternalObject | None
    key: str


class StoredResponse(msgspec.Struct, frozen=True):
    """The stored response for an idempotency key."""

    object: ExternalObject | None


class Api:
    """The API's state. ``after_change`` receives every effect, ``before_call`` every request.

    ``unread_loss`` receives every deletion that was not preceded by a read of the object's data.
    """

    def __init__(self, traits: ApiTraits, time: Callable[[], float]) -> None:
        self.traits = traits
        self._time = time
        self.objects: dict[str, ExternalObject] = {}
        self.changes: list[Change] = []
        self.stored_effects: dict[str, StoredResponse] = {}
        self._kept_refusals: dict[str, RefusalError] = {}
        self.tried_keys: set[str] = set()
        self.misnamed: set[str] = set()
        self._serial = 0
        self._written_at: dict[str, float] = {}
        self.lifetime_seconds = traits.lifetime_seconds
        self.away_until = 0.0
        self.has_copies = False  # whether another copy of the log has written
        self.calls = 0
        self.before_call: Callable[[Action], None] = lambda action: None
        self.after_change: Callable[[Change], None] = lambda change: None
        self.unread_loss: Callable[[str], None] = lambda text: None

    @property
    def now(self) -> float:
        """The loop's time."""
        return self._time()

    @property
    def is_away(self) -> bool:
        """Whether every connection is refused."""
        return self._time() < self.away_until

    # --- writes by the reconciler

    def write(
        self, action: Action, fields: Fields, *, version: str | None = None
    ) -> tuple[StoredResponse, bool]:
        """Apply an action once per key; return the response and whether it was already stored.

        ``fields`` are the action's, with its secrets. Raises ``RefusalError``.
        """
        self.calls += 1
        self.before_call(action)
        if self.traits.idempotency_keys and action.idempotency_key in self.stored_effects:
            return self.stored_effects[action.idempotency_key], True
        if action.idempotency_key in self._kept_refusals:
            raise self._kept_refusals[action.idempotency_key]
        slot = self._slot_of(action)
        existing = self.objects.get(slot)
        try:
            self._check(action.operation, action, fields, existing, version)
        except RefusalError as refusal:
            if self.traits.keeps_refusals:
                self._kept_refusals[action.idempotency_key] = refusal
            raise
        after = self._after(action, fields, existing)
        if self.traits.two_calls and action.operation == "Create" and after is not None:
            after = replace(after, fields={**after.fields, "color": UNPAINTED})
        if existing is not None or after is not None:
            self._change(slot, after, action.idempotency_key)
        self.stored_effects[action.idempotency_key] = StoredResponse(
            self.response_view(self.objects.get(slot))
        )
        return self.stored_effects[action.idempotency_key], False

    def _slot_of(self, action: Action) -> str:
        """Return the slot of the object, by its id if names are not unique, or a free one."""
        if self.traits.names:
            return action.external_name
        if action.operation == "Create":
            return self._free_slot(action.external_name)
        return self._slot(action.external_name, action.uid)

    def _free_slot(self, name: str) -> str:
        is_taken = name in self.objects
        return f"{name}{DUPLICATE_MARK}{self._next('p')}" if is_taken else name

    def _slot(self, name: str, uid: str | None) -> str:
        """Find an object by its id or, without an id, the first one with the name."""
        for slot, each in self.objects.items():
            if each.name == name and uid in (None, each.uid):
                return slot
        return name if uid is None else f"{name}{DUPLICATE_MARK}{uid}"

    def paint(
        self, action: Action, fields: Fields, created_object: ExternalObject
    ) -> tuple[StoredResponse, bool]:
        """Apply the second call of a creation to the object from the first; raises like
        ``write``."""
        self.calls += 1
        self.before_call(action)
        key = second_key(action)
        if self.traits.idempotency_keys and key in self.stored_effects:
            return self.stored_effects[key], True
        slot = self._slot(action.external_name, created_object.uid)
        existing = self.objects.get(slot)
        if existing is None:
            raise RefusalError(404, "it does not exist")
        if existing.uid != created_object.uid or existing.version != created_object.version:
            raise RefusalError(412, "it is a different object, or has changed")
        if fields.get("color") == REFUSED_COLOR:
            raise RefusalError(422, f"color {REFUSED_COLOR} is not known: {fields}")
        after = self._after(action, fields, existing)
        self._change(slot, after, key)
        self.stored_effects[key] = StoredResponse(self.response_view(self.objects.get(slot)))
        return self.stored_effects[key], False

    def _check(
        self,
        operation: Operation,
        action: Action,
        fields: Fields,
        existing: ExternalObject | None,
        version: str | None,
    ) -> None:
        is_first_call = self.traits.two_calls and operation == "Create"
        if operation != "Delete" and not is_first_call and fields.get("color") == REFUSED_COLOR:
            raise RefusalError(422, f"color {REFUSED_COLOR} is not known: {fields}")
        if operation == "Create" and existing is not None:
            raise RefusalError(409, "the name is taken")
        if operation == "Update" and existing is None:
            raise RefusalError(404, "it does not exist")
        if existing is None or operation == "Create" or not self.traits.conditional_writes:
            return
        if action.uid is not None and existing.uid != action.uid:
            raise RefusalError(412, "it is a different object")
        if version is not None and existing.version != version:
            raise RefusalError(412, "it has changed")

    def _after(
        self, action: Action, fields: Fields, existing: ExternalObject | None
    ) -> ExternalObject | None:
        if action.operation == "Delete":
            return None
        labels = dict(action.labels) if self.traits.labels else {}
        uid = self._next("u") if existing is None else existing.uid
        assert uid is not None
        self._written_at[uid] = self._time()
        outputs: Fields = {}
        if existing is not None and DATA in existing.outputs:
            outputs[DATA] = existing.outputs[DATA]
        if self.traits.lifetime_seconds:
            outputs["expires"] = date_of(self._time() + self.lifetime_seconds).isoformat()
        is_marked = self.traits.two_calls or self.traits.wrong_uids or self.traits.lag_seconds > 0
        written_by = action.idempotency_key if is_marked else None
        return ExternalObject(
            action.external_name,
            dict(fields),
            uid,
            self._next("v"),
            labels,
            written_by,
            outputs,
        )

    # --- humans

    def human_creates(self, name: str, fields: Fields, labels: dict[str, str]) -> None:
        """Create an object, unless the API rejects a second one with that name."""
        if name not in self.objects or not self.traits.names:
            accepted_labels = labels if self.traits.labels else {}
            created_object = ExternalObject(
                name, dict(fields), self._next("h"), self._next("v"), accepted_labels
            )
            self._change(self._free_slot(name), created_object, "")

    def copy_writes(
        self, name: str, fields: Fields, labels: dict[str, str], written_by: str
    ) -> None:
        """Write an object as another copy of the log would."""
        existing = self.objects.get(name)
        created_object = existing or ExternalObject(name, {}, self._next("c"))
        created_object = replace(
            created_object,
            fields=dict(fields),
            labels=labels,
            written_by=written_by,
            version=self._next("v"),
        )
        self.has_copies = True
        self._change(name, created_object, "")

    def human_edits(self, name: str, fields: Fields) -> None:
        """Change fields of an object, if it exists."""
        existing = self.objects.get(name)
        if existing is not None:
            changed = replace(
                existing, fields={**existing.fields, **fields}, version=self._next("v")
            )
            self._change(name, changed, "")

    def human_fills(self, name: str) -> None:
        """Store data in an object and in its replacement, if they exist."""
        for slot, existing in list(self.objects.items()):
            if existing.name == name or existing.name.startswith(f"{name}-"):
                filled = {**existing.outputs, DATA: self._next("d")}
                self._change(slot, replace(existing, outputs=filled), "")

    def human_strips_labels(self, name: str) -> None:
        """Remove the labels of an object, if it exists."""
        existing = self.objects.get(name)
        if existing is not None:
            self._change(name, replace(existing, labels={}, version=self._next("v")), "")

    def human_labels(self, name: str, labels: dict[str, str]) -> None:
        """Add labels to an object, if it exists."""
        existing = self.objects.get(name)
        if existing is not None:
            labeled = replace(
                existing, labels={**existing.labels, **labels}, version=self._next("v")
            )
            self._change(name, labeled, "")

    def human_deletes(self, name: str) -> None:
        """Delete an object, if it exists."""
        if name in self.objects:
            self._change(name, None, "")

    # --- reads

    def read(self, name: str, uid: str | None = None) -> ExternalObject | None:
        """Return an object in its current state."""
        slot = name if self.traits.names else self._slot(name, uid)
        return self.response_view(self.objects.get(slot))

    def find_by_uid(self, uid: str | None) -> ExternalObject | None:
        """Return the object with this id."""
        return next((each for each in self.objects.values() if each.uid == uid), None)

    def is_starting(self, uid: str | None) -> bool:
        """Return whether an object cannot be used yet."""
        written_at = self._written_at.get(uid or "", float("-inf"))
        return self._time() < written_at + self.traits.starting_seconds

    def response_view(self, existing: ExternalObject | None) -> ExternalObject | None:
        """Return an object as the API shows it."""
        if existing is None or not self.is_starting(existing.uid):
            return existing
        return replace(existing, outputs={**existing.outputs, "starting": True})

    def list_objects(self, lag_seconds: float) -> dict[str, ExternalObject]:
        """Return all objects as they were ``lag_seconds`` ago."""
        objects = {name: self.response_view(each) or each for name, each in self.objects.items()}
        for change in reversed(self.changes):
            if change.at <= self._time() - lag_seconds:
                break
            if change.before is None:
                objects.pop(change.name, None)
            else:
                objects[change.name] = change.before
        return objects

    def unlisted_slots(self) -> set[str]:
        """Return the slots of objects that are too new to be listed."""
        since = self._time() - self.traits.lag_seconds
        newest = (each for each in self.changes if each.at > since)
        return {each.name for each in newest if each.before is None}

    def was_absent_within(self, name: str, uid: str | None, begin: float, end: float) -> bool:
        """Return whether the object was missing at some time in an interval.

        If names are not unique, the id identifies it.
        """
        exists = False
        for change in self.changes:
            is_same = change.name == name
            if not self.traits.names and uid is not None:
                is_same = uid in {each.uid for each in (change.before, change.after) if each}
            if not is_same:
                continue
            if change.at > end:
                break
            if change.at > begin and (change.before is None or change.after is None):
                return True
            exists = change.after is not None
        return not exists

    def _change(self, name: str, after: ExternalObject | None, key: str) -> None:
        before = self.objects.get(name)
        if after is None:
            self.objects.pop(name, None)
        else:
            if self.traits.addresses:
                outputs = {**after.outputs, "address": address_of(after)}
                after = replace(after, outputs=outputs)
            self.objects[name] = after
        self.changes.append(Change(self._time(), name, before, after, key))
        self.after_change(self.changes[-1])

    def _next(self, prefix: str) -> str:
        self._serial += 1
        return f"{prefix}{self._serial}"
