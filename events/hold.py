"""Reasons for the ``Held`` outcome, with their meaning and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, NamedTuple

EndedBy = Literal["ProviderConfig", "Kind", "Message"]
"""What may end a hold.

A change to a ``ProviderConfig``, a newly loaded kind or provider, or a message to the resource
itself, such as an approval. Every message triggers a decision, so the sweeper checks only the first
two.
"""


class Hold(StrEnum):
    """Reason for the ``Held`` outcome. An approval names the hold that it ends."""

    PROVIDER_CONFIG_MISSING = "ProviderConfigMissing"
    WRONG_PROVIDER = "WrongProvider"
    NOT_PERMITTED = "NotPermitted"
    UNKNOWN_KIND = "UnknownKind"
    UNKNOWN_PROVIDER = "UnknownProvider"
    DANGLING = "Dangling"
    DELETION_GUARD = "DeletionGuard"
    LOSS_GUARD = "LossGuard"
    DATA_LOSS = "DataLoss"
    DATA_MISSING = "DataMissing"
    ADOPTION = "Adoption"
    DEFINITION_GUARD = "DefinitionGuard"
    PRUNE_GUARD = "PruneGuard"
    APPROVAL = "Approval"
    NOT_APPROVED = "NotApproved"
    UNKNOWN_RESULT = "UnknownResult"
    FINALIZERS = "Finalizers"
    REFERENCED = "Referenced"
    TWIN = "Twin"
    EXCLUSIVE_SCOPE = "ExclusiveScope"
    LOG_DAMAGED = "LogDamaged"

    @property
    def ended_by(self) -> EndedBy:
        """What may end the hold."""
        return _TEXTS[self].ended_by

    @property
    def meaning(self) -> str:
        """Description for docs/concepts/holds.md."""
        return _TEXTS[self].meaning

    @property
    def remedy(self) -> str:
        """What an operator must do, as a sentence."""
        return _TEXTS[self].remedy

    @property
    def is_approvable(self) -> bool:
        """Whether an approval can name this hold."""
        return self in _APPROVABLE

    @property
    def needs_listing(self) -> bool:
        """Whether an approval takes effect at the next listing rather than immediately."""
        return self in (Hold.DELETION_GUARD, Hold.LOSS_GUARD)


_APPROVABLE = frozenset(
    {
        Hold.APPROVAL,
        Hold.DELETION_GUARD,
        Hold.LOSS_GUARD,
        Hold.UNKNOWN_RESULT,
        Hold.DATA_LOSS,
        Hold.DATA_MISSING,
        Hold.ADOPTION,
        Hold.DEFINITION_GUARD,
        Hold.PRUNE_GUARD,
        Hold.TWIN,
        Hold.EXCLUSIVE_SCOPE,
    }
)
PLAN_HOLDS = (Hold.APPROVAL, Hold.NOT_APPROVED)
"""Holds of a plan that can be approved, including one that was rejected."""


def hold_of(outcome: str, reason: str) -> Hold | None:
    """Return the hold of a ``Held`` outcome; None for other outcomes and unknown reasons."""
    return _BY_NAME.get(reason) if outcome == "Held" else None


_BY_NAME = {str(each): each for each in Hold}


class _HoldText(NamedTuple):
    ended_by: EndedBy
    meaning: str
    remedy: str


_TEXTS: Final[Mapping[Hold, _HoldText]] = {
    Hold.PROVIDER_CONFIG_MISSING: _HoldText(
        "ProviderConfig",
        "No `ProviderConfig` with this name is declared",
        "Declare the `ProviderConfig`, or correct `spec.providerConfigRef`",
    ),
    Hold.WRONG_PROVIDER: _HoldText(
        "ProviderConfig",
        "The `ProviderConfig` belongs to a provider that does not have this kind",
        "Correct the provider of the `ProviderConfig`, or use another one",
    ),
    Hold.NOT_PERMITTED: _HoldText(
        "ProviderConfig",
        "The `ProviderConfig` does not permit the namespace, or a host resource that the spec uses",
        "Use a permitted namespace or host resource, or extend `spec.namespaces` or `spec.allow`",
    ),
    Hold.UNKNOWN_KIND: _HoldText(
        "Kind",
        "This kind, or the kind of a part, is not registered where the roles run",
        "Install its package and restart the roles, or declare its `KindDefinition`",
    ),
    Hold.UNKNOWN_PROVIDER: _HoldText(
        "Kind",
        "The package of this `ProviderConfig`'s provider is no longer installed where the "
        "roles run",
        "Install the package and restart the roles",
    ),
    Hold.DANGLING: _HoldText(
        "Message",
        "The target of this `ShapeRef` is not declared, or does not permit the reference",
        "Declare the target, or permit the reference",
    ),
    Hold.DELETION_GUARD: _HoldText(
        "Message",
        "Reconciler would delete more undeclared objects than `deletionGuard` allows",
        "Declare what should stay, then approve the deletion of the rest",
    ),
    Hold.LOSS_GUARD: _HoldText(
        "Message",
        "More owned objects are missing from one listing than `lossGuard` allows, so "
        "Reconciler does not treat them as deleted",
        "Check that the `ProviderConfig` points to the right API, or approve the loss",
    ),
    Hold.DATA_LOSS: _HoldText(
        "Message",
        "The action would destroy data that Reconciler cannot restore",
        "Back up the data, then approve the action; or undo the change",
    ),
    Hold.DATA_MISSING: _HoldText(
        "Message",
        "An object that held data is missing. Reconciler does not replace it with an empty one",
        "Restore the object or rename it back; or approve an empty one, or withdraw the resource",
    ),
    Hold.ADOPTION: _HoldText(
        "Message",
        "Reconciler would delete and recreate an object that it adopts, because a declared field "
        "differs that cannot change in place",
        "Declare what the object has, or approve the replacement",
    ),
    Hold.DEFINITION_GUARD: _HoldText(
        "ProviderConfig",
        "A changed [KindDefinition](../kinds/kind-definition.md) would replace more objects "
        "than `deletionGuard` allows",
        "Approve the replacements, or undo the change to the definition",
    ),
    Hold.PRUNE_GUARD: _HoldText(
        "ProviderConfig",
        "A commit would withdraw more resources of a [GitSource](../kinds/git-source.md) than "
        "`deletionGuard` allows",
        "Approve the withdrawals, or revert the commit",
    ),
    Hold.APPROVAL: _HoldText(
        "ProviderConfig",
        "The `ProviderConfig` or the policy requires approval for this action",
        "Review the plan, then approve or reject it",
    ),
    Hold.NOT_APPROVED: _HoldText(
        "ProviderConfig",
        "An operator rejected this action",
        "Change the declaration, or approve the plan after all",
    ),
    Hold.UNKNOWN_RESULT: _HoldText(
        "Message",
        "A call may have taken effect, and neither the response nor the API can show whether "
        "it did",
        "Check the object in the API, then approve a retry or abandon the action",
    ),
    Hold.FINALIZERS: _HoldText(
        "Message",
        "Another service set a finalizer and has not removed it",
        "Find out what that service is waiting for, or force the release",
    ),
    Hold.REFERENCED: _HoldText(
        "Message",
        "A `ShapeRef`, or a `$ref` in another resource, protects the object from deletion. Or "
        "resources use the withdrawn `ProviderConfig`",
        "Withdraw the resources that the message names, or force the release",
    ),
    Hold.TWIN: _HoldText(
        "ProviderConfig",
        "The API of a `ProviderConfig` has objects that are newer than the log. Its resources that "
        "need an action are held for the same reason. Approve only the `ProviderConfig`",
        "Stop the other copy of the log, then approve the `ProviderConfig`",
    ),
    Hold.EXCLUSIVE_SCOPE: _HoldText(
        "ProviderConfig",
        "Reconciler would delete undeclared objects, because the scope of their `ProviderConfig` "
        "was declared or changed. The `ProviderConfig` is held for the same reason, and lists "
        "them. Approve only the `ProviderConfig`",
        "Declare what should stay, then approve the `ProviderConfig`; or undo the change",
    ),
    Hold.LOG_DAMAGED: _HoldText(
        "Message",
        "The history of this resource is incomplete or was changed. Only a restore ends this hold",
        "Restore the log from a backup",
    ),
}
