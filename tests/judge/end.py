"""Rules about the end: declared objects exist as declared, and no other object of ours exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from events.external import ExternalObject
from events.log import SpecDeclared
from events.names import ResourceKey
from tests.judge.ledger import OWNER_LABEL, Ledger, Owned, Resource, has_rival, is_as_expected
from tests.judge.objects import owner_labels
from tests.judge.references import mark_of, references_damage
from tests.judge.rule import Breach, rule

_EXCUSED_OUTCOMES = ("Failed", "Conflict", "Disputed", "Held", "Paused")
"""Outcomes that excuse a difference, where no simulated world can confirm the reason."""


@rule("end")
def missing_outcome(ledger: Ledger) -> Iterator[Breach]:
    """A resource has an outcome for its newest generation, or is retried (invariants 9, 11)."""
    for key, resource in _undamaged_resources(ledger):
        is_known = resource.generation or resource.observed is not None
        is_told = resource.outcome is not None and not resource.has_news
        if is_known and not is_told and not _is_retried(ledger, resource):
            yield key, "it has no outcome"
        is_looking = resource.outcome is not None and resource.outcome.reason == "AwaitingListing"
        if is_looking and ledger.history.is_final:
            yield key, "it still waits for its first listing"


@rule("end", "objects")
def loss(ledger: Ledger) -> Iterator[Breach]:
    """Declared objects exist as declared, and owned objects exist (invariants 6, 8, 17)."""
    existing = {each.uid for each in ledger.history.objects or ()}
    for key, resource in _undamaged_resources(ledger):
        spec = resource.spec
        if spec is not None and spec.provider_config and not is_held(ledger, resource):
            for text in _losses(ledger, resource, spec):
                yield key, f"{text}; {_outcome(ledger, resource)}"
        for owned in (resource.owned, resource.retiring):
            is_missing = owned is not None and owned.uid not in {None, *existing}
            if owned is not None and is_missing and _should_exist(resource, owned):
                yield key, f"the log owns {owned.uid}, which does not exist"


@rule("end", "objects")
def leak(ledger: Ledger) -> Iterator[Breach]:
    """An object of ours is declared, and the log owns it (invariants 2, 7, 11).

    Exceptions: a hold keeps it, or it was created by a call that arrived after its action had
    failed permanently, or by an action that a person abandoned.
    """
    owned, pending, waiting = _owned_and_pending(ledger)
    for key, resource in _undamaged_resources(ledger):
        found = _object_of(ledger, resource)
        is_kept = is_held(ledger, resource) or found in _held_objects(ledger)
        owns_none = resource.owned is None and not resource.is_declared
        is_kept = is_kept or (owns_none and found is not None and found.uid in owned)
        is_kept = is_kept or key in _former_resources(ledger)
        if not is_kept and _is_leaked(ledger, resource, found):
            yield key, f"it is not declared to exist, but does; {_outcome(ledger, resource)}"
    for found in ledger.history.objects or ():
        if found.uid not in ledger.ours or found.uid in ledger.late | owned | waiting:
            continue
        if found.name in pending or _is_excused(ledger, found):
            continue
        yield found.name, f"{found.uid} is ours, and the log does not own it"


@rule("end", "objects")
def conflict(ledger: Ledger) -> Iterator[Breach]:
    """A resource conflicts only with an object that exists and is not its own (invariant 7)."""
    owners = {each.owned.uid: key for key, each in ledger.resources.items() if each.owned}
    for key, resource in _undamaged_resources(ledger):
        if resource.outcome_name not in ("Conflict", "Disputed") or not ledger.history.is_final:
            continue
        if not resource.is_declared or not _is_managed(resource) or is_held(ledger, resource):
            continue
        existing = _object_of(ledger, resource)
        if resource.outcome is not None and resource.outcome.reason == "OwnedByAnother":
            continue  # `_waits_in_vain`
        if existing is None:
            yield key, "there is nothing to conflict with"
        elif existing.uid in ledger.ours - ledger.late and owners.get(existing.uid, key) == key:
            label = existing.labels.get(OWNER_LABEL)
            if label in (None, "", owner_labels(ledger, resource).get(OWNER_LABEL)):
                yield key, f"it conflicts with {existing.uid}, which is ours"


# --- one resource


def _undamaged_resources(ledger: Ledger) -> Iterator[tuple[ResourceKey, Resource]]:
    damaged = ledger.history.damaged
    names = {key.name for key in damaged}
    for key, resource in ledger.resources.items():
        # A damaged resource keeps its name until an operator repairs its history.
        is_rival = resource.spec is not None and resource.spec.external_name in names
        if key not in damaged and not is_rival and not references_damage(ledger, resource):
            yield key, resource


def is_held(ledger: Ledger, resource: Resource, *, forever: bool = True) -> bool:
    """Return whether another service or a person has to remove a hold of a resource.

    ``forever``: a reference from a damaged resource, which cannot be withdrawn, also counts.
    """
    is_held = not resource.is_forced and "Keep" in resource.references.values()
    is_held = is_held and (forever or not ledger.history.damaged) and not resource.is_declared
    return bool(resource.finalizers) or is_held or resource.is_held_for_a_person


def _former_resources(ledger: Ledger) -> set[ResourceKey]:
    """Return the resources that keep their objects for declared resources with new names."""
    return {
        ResourceKey.parse(each.spec.moved_from)
        for each in ledger.resources.values()
        if each.is_declared and each.spec is not None and each.outcome_name == "Waiting"
        if each.spec.moved_from
    }


def _passes_on(resource: Resource) -> bool:
    """Return whether a withdrawn resource waits to take an object over for another one."""
    is_waiting = resource.outcome is not None and resource.outcome.reason == "MoveExpected"
    is_renamed = resource.spec is not None and resource.spec.moved_from != ""
    return is_waiting and is_renamed and resource.owned is None and not resource.is_declared


def _held_objects(ledger: Ledger) -> list[ExternalObject]:
    """Return the objects that a held resource owns; another resource may declare their names."""
    held = [each.owned for each in ledger.resources.values() if is_held(ledger, each)]
    uids = {owned.uid for owned in held if owned is not None}
    return [each for each in ledger.history.objects or () if each.uid in uids]


def _is_managed(resource: Resource) -> bool:
    return not resource.policy.paused and resource.policy.mode != "ObserveOnly"


def _losses(ledger: Ledger, resource: Resource, spec: SpecDeclared) -> Iterator[str]:
    """Yield how a declared resource differs from its declaration."""
    is_wanted = resource.is_declared and resource.policy.mode != "Absent"
    if not is_wanted or not _is_managed(resource):
        return
    if _waits_in_vain(ledger, resource, spec):
        yield "it waits for the owner of its name, but nothing has or declares this name"
    if resource.outcome_name in ("Conflict", "Disputed") or _is_explained(ledger, resource, spec):
        return
    existing = _object_of(ledger, resource)
    if resource.outcome_name != "Converged" and not _is_retried(ledger, resource):
        yield "it is declared, but has not converged"
    elif existing is None or existing.uid not in ledger.ours:
        yield "it converged, but does not exist"
    else:
        yield from _differences(ledger, resource, spec, existing)


def _waits_in_vain(ledger: Ledger, resource: Resource, spec: SpecDeclared) -> bool:
    """Return whether its name belongs to another resource that does not use the name."""
    outcome = resource.outcome
    if outcome is None or (outcome.outcome, outcome.reason) != ("Conflict", "OwnedByAnother"):
        return False
    existing = _object_of(ledger, resource)
    if existing is not None and existing.uid not in ledger.ours:
        return False
    return not has_rival(ledger, resource)


def _is_retried(ledger: Ledger, resource: Resource) -> bool:
    """Return whether an outcome may still follow; in a final history none does."""
    return resource.in_flight is not None and not ledger.history.is_final


def _is_explained(ledger: Ledger, resource: Resource, spec: SpecDeclared) -> bool:
    """Return whether its outcome names the true reason why it is not as declared."""
    if resource.outcome_name == "Drifted":
        return resource.policy.mode == "CreateOnly"
    if resource.outcome is not None and resource.outcome.reason == "MoveExpected":
        former = ledger.resource(ResourceKey.parse(spec.moved_from))
        while _passes_on(former) and former.spec is not None:
            former = ledger.resource(ResourceKey.parse(former.spec.moved_from))
        is_damaged = former.key in ledger.history.damaged
        return is_damaged or former.is_declared or is_held(ledger, former)
    truth = ledger.history.truth
    if truth is not None:
        return truth.explains(spec, resource.outcome_name)
    return resource.outcome_name in _EXCUSED_OUTCOMES and not ledger.history.is_final


def _differences(
    ledger: Ledger, resource: Resource, spec: SpecDeclared, existing: ExternalObject
) -> Iterator[str]:
    truth, ignored = ledger.history.truth, resource.policy.ignore_fields
    if truth is not None:
        seconds_left = truth.seconds_to_expiry(existing)
        if resource.policy.mode == "Present" and seconds_left is not None and seconds_left < 0.0:
            yield f"it expired {-seconds_left:.1f} s ago, and was not renewed"
        conditions = () if resource.outcome is None else resource.outcome.conditions
        if any(each.type == "Ready" and each.status != "True" for each in conditions):
            yield "it is ready, but its outcome reports that it is not"
        expected = truth.expected_fields(spec)
    else:
        fields = spec.fields if resource.resolved is None else resource.resolved
        expected = {
            name: _secret_value(each, ledger.history.secrets) for name, each in fields.items()
        }
    for name, value in expected.items():
        if name not in ignored and not is_as_expected(value, existing.fields.get(name)):
            yield f"{name} is {existing.fields.get(name)!r}, but {value!r} is declared"
    if ledger.history.promises.labels:
        labels = {**spec.labels, **owner_labels(ledger, resource)}
        for name, value in labels.items():
            if f"labels.{name}" not in ignored and existing.labels.get(name) != value:
                yield f"label {name} is {existing.labels.get(name)!r}, not {value!r}"


def _secret_value(value: Any, secrets: Mapping[str, str]) -> Any:
    """Return the value of a secret instead of its reference."""
    mark = mark_of(value, "$secret")
    return value if mark is None else secrets.get(mark["$secret"])


def _is_leaked(ledger: Ledger, resource: Resource, existing: ExternalObject | None) -> bool:
    """Return whether an object exists that should not exist according to the declarations."""
    excuses = {"Conflict", "Disputed"} if resource.is_declared else {"Disputed"}
    excuses |= set() if ledger.history.is_final else {"Held", "Paused", "Failed"}
    if existing is None or resource.outcome_name in excuses:
        return False
    label = existing.labels.get(OWNER_LABEL)
    if has_rival(ledger, resource) and label != owner_labels(ledger, resource).get(OWNER_LABEL):
        return False  # the object of the other resource with this name
    is_ours = existing.uid in ledger.ours
    if resource.is_declared:
        is_meant = is_ours or ledger.history.promises.unique_names
        return is_meant and _is_managed(resource) and resource.policy.mode == "Absent"
    return is_ours and not _is_abandoned(ledger, existing)


def _should_exist(resource: Resource, owned: Owned) -> bool:
    """Return whether an object that the log owns should exist."""
    if resource.is_paused or resource.doubted is not None:
        return False
    if owned != resource.retiring:
        return True
    # While a hold keeps the replaced object, it is no longer read.
    return resource.policy.mode != "ObserveOnly" and resource.outcome_name in ("", "Converged")


def _object_of(ledger: Ledger, resource: Resource) -> ExternalObject | None:
    """Return the object of a resource: owned, released, or the one with its name."""
    objects, owned = ledger.history.objects or (), resource.owned
    known_ownership = owned or resource.released
    if known_ownership is not None and known_ownership.uid is not None:
        of_uid = next((each for each in objects if each.uid == known_ownership.uid), None)
        is_all = owned is not None and not ledger.history.promises.unique_names
        if of_uid is not None or is_all:
            return of_uid
    name = owned.name if owned is not None else resource.key.name
    if owned is None and resource.spec is not None:
        name = resource.spec.external_name
    of_name = [each for each in objects if each.name == name]
    return next((each for each in of_name if each.labels.get(OWNER_LABEL)), None) or next(
        iter(of_name), None
    )


def _outcome(ledger: Ledger, resource: Resource) -> str:
    outcome = resource.outcome and (resource.outcome.outcome, resource.outcome.reason)
    return f"outcome: {outcome}; the API has {_object_of(ledger, resource)}"


# --- all objects


def _owned_and_pending(ledger: Ledger) -> tuple[set[str | None], set[str], set[str | None]]:
    """Return the ids that the log owns, the names of paused actions, and the ids that wait.

    Once its references are known, a waiting resource decides whether its write's object is its own.
    A person decides about an object that would be replaced after its adoption.
    """
    owned: set[str | None] = set()
    pending: set[str] = set()
    waiting: set[str | None] = set()
    for resource in ledger.resources.values():
        owned |= {each.uid for each in (resource.owned, resource.retiring) if each is not None}
        if resource.in_flight is not None and resource.is_paused:
            pending.add(resource.in_flight.action.external_name)
        outcome = resource.outcome
        is_waiting = outcome is not None and (
            outcome.outcome == "Waiting" or outcome.reason == "Adoption"
        )
        if is_waiting and resource.observed is not None:
            waiting.add(resource.observed.uid)
    return owned, pending, waiting


def _is_excused(ledger: Ledger, existing: ExternalObject) -> bool:
    damaged = {key.name for key in ledger.history.damaged}
    if damaged & {existing.name, existing.name.rpartition("-")[0]} or _is_abandoned(
        ledger, existing
    ):
        return True
    decided = ledger.action_of(ledger.creation_keys.get(existing.uid or ""))
    name = "" if decided is None else ledger.resource(decided.key).outcome_name
    return name in ("Disputed", "Held", "Paused") and not ledger.history.is_final


def _is_abandoned(ledger: Ledger, existing: ExternalObject) -> bool:
    decided = ledger.action_of(ledger.creation_keys.get(existing.uid or ""))
    return decided is not None and decided.action.action_id in ledger.given_up
