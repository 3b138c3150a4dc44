"""Report references to their targets, and the targets' states to the referrers.

Two resources are aggregates without access to each other. This module compares their rows in the
read models, and is level-triggered: after a lost or repeated message, the next sweep finds the same
difference. A target that is withdrawn before a reference is reported may be deleted. Its referrer
then waits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from events.intake import (
    DefinitionReported,
    Referenced,
    SecretReported,
    TargetReported,
    TargetState,
    Unreferenced,
)
from events.kind_definition import DefinitionRef
from events.names import ResourceKey
from events.provider_config import config_key
from events.reference import REFERENCE_KIND, Reference, may_refer, value_of
from projections.read_models import ReadModels
from projections.readiness import find_silent_api
from projections.status import StatusRow
from reconciler.ports import IntakeMessageOut
from reconciler.provider.kind import KindRegistry
from reconciler.resource.cycle import find_cycles, find_reachable
from reconciler.roles.sweeper.reference_index import (
    AffectedResources,
    NamedSecret,
    ReferenceIndex,
    select_rows,
)

MAX_REFERRERS: Final = 500
"""Limit on references that a target records. When one is removed, it records another."""

MAX_VALUE_BYTES: Final = 64 * 1024
"""Limit on values from referenced resources, because a resource's row and state contain them."""

_encoder = msgspec.json.Encoder(order="deterministic")
_Rows = Mapping[str, StatusRow]


def reference_messages(
    affected: AffectedResources, index: ReferenceIndex, models: ReadModels
) -> list[IntakeMessageOut]:
    """Return the messages about changed references.

    ``index`` contains the references of all rows. Damaged resources are excluded, because they may
    still be declared, and their targets must not be released.
    """
    messages: list[IntakeMessageOut] = []
    for name in sorted(affected.referrers):
        messages += referrer_messages(name, models)
    for name in sorted(affected.targets):
        messages += target_messages(name, index, models)
    return messages


def referrer_messages(
    name: str, models: ReadModels, kinds: KindRegistry | None = None
) -> list[IntakeMessageOut]:
    """Return the messages to a resource about the states of its targets.

    ``kinds`` is None for a plan, which expects that a ready target stays ready.
    """
    row = models.status.get(name)
    if row is None or name in models.damage:
        return []
    return [*_state_messages(row, models.status, models.damage, kinds)]


def find_momentary_targets(name: str, models: ReadModels, kinds: KindRegistry) -> list[str]:
    """Return the targets that a waiting resource will use once they have stayed ready."""
    row = models.status.get(name)
    if row is None or row.outcome != "Waiting" or row.paused:
        return []
    targets = [
        models.status[each.target]
        for each in row.refers
        if each.target in models.status and each.target not in models.damage
    ]
    return [
        str(each.key)
        for each in targets
        if each.owned and each.is_settled_ready and _must_stay_ready(row, each, kinds)
    ]


def target_messages(
    target: str, index: ReferenceIndex, models: ReadModels
) -> list[IntakeMessageOut]:
    """Return the messages to a resource about the references to it."""
    all_rows, damaged = models.status, models.damage
    if target in damaged:
        return []
    row = all_rows.get(target)
    known = {} if row is None else row.references
    current = _limit_referrers(_current_references(target, index, all_rows, damaged), known)
    messages: list[IntakeMessageOut] = []
    for name, (referrer, reference) in current.items():
        if known.get(name) != reference.on_withdrawal:
            data = Referenced(name, reference.on_withdrawal)
            # Each version of the target needs a new id: an older message may arrive late and
            # undo this one, and the bus would drop a repetition as a duplicate. A target
            # without a row may have changed with any event of the log.
            version = f"at-{models.position}" if row is None else row.version
            basis = f"{name}/{referrer.version}/{version}"
            messages.append(_message(ResourceKey.parse(target), data, basis))
    if row is not None:
        removed = [name for name in sorted(known.keys() - current.keys()) if name not in damaged]
        messages += [
            _message(row.key, Unreferenced(name), f"{name}/{row.version}") for name in removed
        ]
    return messages


def secret_messages(row: StatusRow, digests: Mapping[NamedSecret, str]) -> list[IntakeMessageOut]:
    """Return the messages about secrets whose digest differs from the one in a resource's row."""
    return [
        _message(
            row.key,
            SecretReported(secret, digest, row.version),
            f"{secret}/{digest}/{row.version}",
        )
        for secret, known in row.secrets.items()
        if row.declared
        and (digest := digests.get(NamedSecret(row.namespace, secret))) is not None
        and digest != known
    ]


def definition_messages(
    definition: DefinitionRef, kind: str, all_rows: _Rows, damaged: Container[str]
) -> list[IntakeMessageOut]:
    """Return the messages to a kind's resources that use an older definition."""
    rows = [row for row in all_rows.values() if row.kind == kind and row.declared]
    outdated = [row for row in rows if row.definition < definition.generation]
    counts = len(outdated), len(rows)
    return [
        _message(
            row.key,
            DefinitionReported(definition.generation, definition.digest, *counts),
            f"{definition.generation}/{row.version}",
        )
        for row in outdated
        if str(row.key) not in damaged
    ]


def _current_references(
    target: str, index: ReferenceIndex, all_rows: _Rows, damaged: Container[str]
) -> dict[str, tuple[StatusRow, Reference]]:
    """Return the references to a target by referring resource."""

    def find_withdrawn_targets(name: str) -> Iterable[str]:
        node = all_rows.get(name)
        is_withdrawn = node is not None and name not in damaged and not node.declared
        return [each.target for each in node.refers] if node is not None and is_withdrawn else ()

    rows = select_rows(index.referrers(target), all_rows)
    target_row, key = all_rows.get(target), ResourceKey.parse(target)
    referenced_from = () if target_row is None else target_row.referenced_from
    namespaces = {row.namespace for row in rows}
    permitted = {each for each in namespaces if may_refer(key, each, referenced_from)}
    # Withdrawn members of a cycle would block each other's deletion, so their order is ignored.
    are_declared = all(row.declared for row in rows)
    reachable = () if are_declared else find_reachable([target], find_withdrawn_targets)
    return {
        str(row.key): (row, reference)
        for row in rows
        if str(row.key) not in damaged
        if row.namespace in permitted
        if row.declared or str(row.key) not in reachable
        for reference in row.refers
        if reference.target == target
    }


def _limit_referrers(
    current: dict[str, tuple[StatusRow, Reference]], known: Container[str]
) -> dict[str, tuple[StatusRow, Reference]]:
    """Return the references that a target records, at most `MAX_REFERRERS`, to bound its row.

    The target is kept while unrecorded references exist, because it records more of them before the
    last recorded one is removed.
    """
    if len(current) <= MAX_REFERRERS:
        return current

    def rank(name: str) -> tuple[bool, bool, str]:
        return current[name][1].on_withdrawal != "Keep", name not in known, name

    return {name: current[name] for name in sorted(current, key=rank)[:MAX_REFERRERS]}


def _state_messages(
    row: StatusRow, all_rows: _Rows, damaged: Container[str], kinds: KindRegistry | None
) -> Iterator[IntakeMessageOut]:
    if not row.declared:
        return
    remaining_bytes = MAX_VALUE_BYTES
    cycles = _find_open_cycles(row, all_rows)
    for reference in row.refers:
        if reference.target in damaged:
            continue
        known = row.targets.get(reference.target)
        state = _target_state(row, reference, known, all_rows, cycles)
        is_new = state.ready and not (known is not None and known.ready)
        if kinds and is_new and _must_stay_ready(row, all_rows[reference.target], kinds):
            # Nothing waits for the target in a paused resource, for example. There, each flap would
            # only cause an event.
            is_awaited = row.outcome == "Waiting" and not row.paused
            state = replace(state, ready=False, momentary=is_awaited, api_event="")
        remaining_bytes -= len(_encoder.encode(state.values)) if state.values else 0
        if remaining_bytes < 0 and state.values:
            state = replace(state, values={})
        if state != known:
            state_digest = hashlib.blake2b(_encoder.encode(state), digest_size=8).hexdigest()
            data = TargetReported(reference.target, state, row.version)
            yield _message(row.key, data, f"{reference.target}/{state_digest}/{row.version}")


def _find_open_cycles(row: StatusRow, all_rows: _Rows) -> Mapping[str, tuple[str, ...]]:
    """Return the cycles through references that may still be waiting, by target."""

    def find_targets(name: str) -> Iterable[str]:
        node = all_rows.get(name)
        return [each.target for each in node.refers] if node is not None and node.declared else ()

    waiting = {
        each.target
        for each in row.refers
        if row.outcome == "Waiting"
        or (known := row.targets.get(each.target)) is None
        or known.cycle
    }
    return find_cycles(str(row.key), sorted(waiting), find_targets) if waiting else {}


def _target_state(
    row: StatusRow,
    reference: Reference,
    known: TargetState | None,
    all_rows: _Rows,
    cycles: Mapping[str, tuple[str, ...]],
) -> TargetState:
    target = all_rows.get(reference.target)
    if target is None or not (target.declared or _is_kept_for(row, known, target)):
        return TargetState(False)
    if not may_refer(target.key, row.namespace, target.referenced_from):
        # Report it as missing, because the namespace may not read its state.
        return TargetState(False)
    was_ready = known is not None and known.ready
    is_ready = was_ready or target.is_settled_ready
    api_event = known.api_event if known is not None and known.ready else ""
    if is_ready and not was_ready:
        # The last observation does not show the readiness of an object while its API is silent.
        silent = find_silent_api(target, all_rows)
        config = all_rows.get(str(config_key(target.provider_config)))
        responded = "" if config is None else config.silence_event
        is_ready, api_event = silent is None, silent.event if silent else responded
    values: dict[str, Any] = {}
    for field in reference.fields:
        value = value_of(field, target.external_name, target.uid, target.outputs)
        if value is not None and target.owned:
            values[field] = value
    cycle = cycles.get(reference.target, ())
    # A target without an object, for example one declared absent, is never ready.
    return TargetState(True, is_ready and bool(target.owned), values, cycle, api_event)


def _must_stay_ready(row: StatusRow, target: StatusRow, kinds: KindRegistry) -> bool:
    """Return whether the target must stay ready before it releases the creation of an object."""
    kind = kinds.find(row.kind)
    if kind is not None and not kind.is_external:
        return False  # the reference releases nothing
    return kinds.may_lose_readiness(target.kind) and not target.is_available


def _is_kept_for(row: StatusRow, known: TargetState | None, target: StatusRow) -> bool:
    """Return whether a withdrawn target is kept for a resource that used it before.

    Without its values, the resource could not be repaired, although nothing else is wrong. A new
    reference does not resolve. A resource without an object only shows that its target is leaving.
    """
    if (
        row.kind == REFERENCE_KIND
        or known is None
        or not known.declared
        or not target.owned
        or target.action_id
    ):
        return False
    return target.references.get(str(row.key)) == "Keep"


def _message(
    key: ResourceKey,
    data: Referenced | Unreferenced | TargetReported | SecretReported | DefinitionReported,
    basis: str,
) -> IntakeMessageOut:
    """Build a message with an id from its basis, so that several observers publish it only once."""
    return IntakeMessageOut("reference", key, data, f"{type(data).__name__}/{key}/{basis}")
