"""Evidence of ownership, and the verdict about an object.

There are four kinds of evidence. The log is always accepted: it records a creation or a claim. The
name of the object (the prefix ``ownerPrefix`` of the configuration), its owner label, and an
exclusive scope are accepted as ``ProviderConfig.spec.ownership`` configures. If evidence
contradicts the accepted evidence, the object is *disputed*: it is reported and never deleted
(invariant 7). The table in docs/concepts/ownership.md is generated from ``verdict``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from events.epochs import is_restored
from events.external import ExternalObject
from events.intake import OnWithdrawal
from events.provider_config import Ownership, ProviderConfigSpec
from reconciler.resource.owner_label import label_in
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import Context

LabelOwner = Literal["ours", "another's", "nothing"]
Owner = Literal["owned", "foreign", "disputed"]
ClaimReason = Literal["Label", "Prefix", "ExclusiveScope", "Returned", "Found"]


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """The evidence about one object.

    ``log``: the log owns this object. ``returned``: it has the uid of an owned object that was
    missing. ``uncertain``: a creation of this resource may have created it. ``name``: whether it
    has the owner prefix, or None if none is set. ``exclusive``: it is in the exclusive scope.
    ``referenced``: a ``ShapeRef`` references the resource.
    """

    log: bool
    label: LabelOwner
    name: bool | None = None
    exclusive: bool = False
    returned: bool = False
    uncertain: bool = False
    referenced: bool = False


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The verdict about an object.

    ``claim`` is the reason for a claim, if ownership has not been recorded yet.
    """

    owner: Owner
    reason: str
    message: str = ""
    claim: ClaimReason | None = None


def collect_evidence(
    existing: ExternalObject, state: ResourceState, context: Context, config: ProviderConfigSpec
) -> Evidence:
    """Return the evidence about an object with the external name of a resource."""
    label = label_in(existing.labels)
    label_owner: LabelOwner = "nothing" if label is None else "another's"
    owned = state.owned
    # The log records the move, so the label of the former owner contradicts nothing.
    if label == context.owner or (owned is not None and label == owned.former_label != ""):
        label_owner = "ours"
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
    """Return whether the object conflicted with every creation in doubt, so that none created it.

    An API that stores keys would have returned the created object for the repeated key.
    """
    ended = state.actions.ended
    doubted = [each for each in ended if each.action.operation == "Create" and each.in_doubt]
    is_conflicting = existing.uid is not None and all(
        each.obstacle == existing.uid for each in doubted
    )
    return context.capabilities.idempotency_keys and bool(doubted) and is_conflicting


def describe_restoration(context: Context) -> str:
    """Return a note that the log was restored, so it may lack newer events; empty if it was not."""
    if not is_restored(context.epoch):
        return ""
    as_of = f" made at {context.restored_as_of}" if context.restored_as_of else ""
    return f"the log was restored from a backup{as_of}"


def verdict(evidence: Evidence, policy: Ownership) -> Verdict:
    """Return the verdict about an object.

    ``policy`` is the ownership policy of its ProviderConfig.
    """
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
    """Return the verdict under ``Strict``: any evidence against the log causes a dispute."""
    claims = [
        source
        for source, is_claim in (
            ("label", evidence.label == "ours"),
            ("name", bool(evidence.name)),
            ("scope", evidence.exclusive),
            ("reference", evidence.referenced),
        )
        if is_claim
    ]
    if not claims:
        return Verdict("foreign", "NotDeclared")
    return Verdict(
        "disputed",
        "OwnershipNotInLog",
        (
            f"the object is owned according to its {' and '.join(claims)}, but the log never "
            "recorded ownership"
        ),
    )


def _claim_unless_referenced(evidence: Evidence, claim: ClaimReason) -> Verdict:
    """Return a claim, or a dispute if a ShapeRef references an undeclared resource."""
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
    """Return the resources whose reference has this policy, sorted by name."""
    if not references:
        return []
    return sorted(by for by, on_withdrawal in references.items() if on_withdrawal == policy)
