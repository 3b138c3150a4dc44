"""The holds that an operator ends with an approval."""

from __future__ import annotations

from enum import StrEnum


class Hold(StrEnum):
    """Reason of the outcome ``Held``, and what an approval names."""

    APPROVAL = "Approval"
    DELETION_GUARD = "DeletionGuard"
    LOSS_GUARD = "LossGuard"
    UNKNOWN_RESULT = "UnknownResult"
    DATA_LOSS = "DataLoss"
    DEFINITION_GUARD = "DefinitionGuard"
    PRUNE_GUARD = "PruneGuard"
    TWIN = "Twin"

    @property
    def needs_listing(self) -> bool:
        """Whether an approval takes effect with the next listing, instead of immediately."""
        return self in (Hold.DELETION_GUARD, Hold.LOSS_GUARD)
