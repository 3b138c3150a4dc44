"""Whose an object is: what each witness says, and the verdict that follows.

Four witnesses can speak: the log (we made it or claimed it), the object's name (it begins with the
configuration's ``ownerPrefix``), its owner label, and its scope (an exclusive one is all ours). The
log is always policy; ``ProviderConfig.spec.ownership`` says which of the others are. A witness
that contradicts what is policy makes the object *disputed*: it is reported and never deleted
(invariant 7). The table in docs/concepts/ownership.md is generated from ``verdict``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from events.external import ExternalObject
from events.intake import OnWithdrawal
from events.provider_config import Ownership, ProviderConfigSpec
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import Context

LabelOwner = Literal["ours", "another's", "nothing"]
Owner = Literal["owned", "foreign", "disputed"]
ClaimReason = Literal["Label", "Prefix", "ExclusiveScope", "Returned", "Found"]


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """What the witnesses say of one object.

    ``log``: the log owns this very object. ``returned``: the log had let it go as gone, and by its
    uid it is the same. ``uncertain``: a creation of ours may have made it. ``name`` is None where
    no prefix is configured. ``exclusive``: it lies in the exclusive scope of today, which may have
    been a wider one when it was listed. ``referenced``: a ``ShapeRef`` relies on it.
    """

    log: bool
    label: LabelOwner
    name: bool | None = None
    exclusive: bool = False
    returned: bool = False
    uncertain: bool = False
    referenced: bool = False


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """Whose it is. ``claim`` is why it becomes ours, where the log does not own it yet."""

    owner: Owner
    reason: str
    message: str = ""
    claim: ClaimReason | None = None


def collect_evidence(
    existing: ExternalObject, state: ResourceState, context: Context, config: ProviderConfigSpec
) -> Evidence:
    """Ask every witness about an object that was existing under a resource's external name."""
    label = existing.labels.get(OWNER_LABEL)
    label_owner: LabelOwner = "nothing" if label is None else "another's"
    if label == context.owner:
        label_owner = "ours"
    owned = state.owned
    return Evidence(
        log=owned is not None and (owned.uid is None or existing.uid in (None, owned.uid)),
        label=label_owner,
        name=None if config.owner_prefix is None else existing.name.startswith(config.owner_prefix),
        exclusive=config.scope.mode == "Exclusive"
        and config.scope.has(existing.name, existing.labels),
        returned=existing.uid is not None and existing.uid == state.observed.lost_uid,
        uncertain=state.actions.uncertain_create
        and not (state.observed.is_released or is_obstacle(existing, state, context)),
        referenced=bool(state.holds.references),
    )


def is_obstacle(existing: ExternalObject, state: ResourceState, context: Context) -> bool:
    """Return whether each creation in doubt has met an object that it therefore has not created.

    Asked again under its key, an API that stores keys would have returned the created object.
    """
    ended = state.actions.ended
    doubted = [each for each in ended if each.action.operation == "Create" and each.in_doubt]
    is_met = existing.uid is not None and all(each.obstacle == existing.uid for each in doubted)
    return context.capabilities.idempotency_keys and bool(doubted) and is_met


def describe_restoration(context: Context) -> str:
    """Say that the log may lack newer events, because it was restored; empty if it never was."""
    if not context.epoch:
        return ""
    as_of = f" made at {context.restored_as_of}" if context.restored_as_of else ""
    return f"the log was restored from a backup{as_of}"


def verdict(evidence: Evidence, policy: Ownership) -> Verdict:
    """Judge whose an object is."""
    if evidence.log:
        return _judge_owned_by_log(evidence, policy)
    if evidence.returned:
        return Verdict("owned", "Returned", claim="Returned")
    if evidence.uncertain and evidence.label == "ours":
        return Verdict("owned", "Found", claim="Found")
    if evidence.label == "another's" and (
        evidence.exclusive or _is_name_accepted(evidence, policy)
    ):
        return Verdict("disputed", "OwnedByAnother")
    if policy == "Strict":
        return _judge_strictly(evidence)
    if policy == "Label" and evidence.label == "ours":
        return _claim_unless_referenced(evidence, "Label")
    if policy == "Prefix" and evidence.name:
        return _claim_unless_referenced(evidence, "Prefix")
    if evidence.label == "ours":
        return Verdict(
            "disputed",
            "LabelNotInLog",
            "the object has this log's owner label, but the log never recorded ownership",
        )
    if evidence.exclusive:
        return _claim_unless_referenced(evidence, "ExclusiveScope")
    return Verdict("foreign", "NotDeclared")


def _judge_owned_by_log(evidence: Evidence, policy: Ownership) -> Verdict:
    if evidence.label == "another's":
        return Verdict("disputed", "OwnedByAnother")
    if policy == "Strict" and evidence.name is False:
        return Verdict(
            "disputed",
            "PrefixMissing",
            "the log records ownership of the object, but its name lacks the owner prefix",
        )
    return Verdict("owned", "Log")


def _is_name_accepted(evidence: Evidence, policy: Ownership) -> bool:
    return policy in ("Prefix", "Strict") and bool(evidence.name)


def _judge_strictly(evidence: Evidence) -> Verdict:
    """Under ``Strict`` one voice for us against the log's is a dispute, whoever's it is."""
    ours = [
        witness
        for witness, says in (
            ("label", evidence.label == "ours"),
            ("name", bool(evidence.name)),
            ("scope", evidence.exclusive),
            ("reference", evidence.referenced),
        )
        if says
    ]
    if not ours:
        return Verdict("foreign", "NotDeclared")
    return Verdict(
        "disputed",
        "OwnershipNotInLog",
        (
            f"the object is owned according to its {' and '.join(ours)}, but the log never "
            "recorded ownership"
        ),
    )


def _claim_unless_referenced(evidence: Evidence, claim: ClaimReason) -> Verdict:
    """What nobody declares, but somebody relies on, is not removed without asking."""
    if evidence.referenced:
        return Verdict(
            "disputed",
            "Referenced",
            "no manifest declares the object, but a ShapeRef references it",
        )
    return Verdict("owned", claim, claim=claim)


def references_with_policy(
    references: Mapping[str, OnWithdrawal], policy: OnWithdrawal
) -> list[str]:
    """Name the references with a policy, in order."""
    return sorted(by for by, on_withdrawal in references.items() if on_withdrawal == policy)
