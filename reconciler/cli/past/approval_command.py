"""The command that approves the current hold of a resource, and nothing newer."""

from __future__ import annotations

from typing import Final

from events.hold import Hold
from events.provider_config import config_key, is_config
from projections.status import StatusRow
from reconciler.resource.approval import SHORT_PLAN

_HOLDS_OF_CONFIGS: Final = (Hold.TWIN, Hold.EXCLUSIVE_SCOPE)


def find_approval_command(row: StatusRow) -> str:
    """Return the command that approves the hold of a resource, or "" if no approval can end it.

    It names the plan or the generation that the operator has seen. The decider refuses it if the
    resource has been declared again meanwhile.
    """
    hold = row.hold
    if hold is None or not hold.is_approvable or row.observed_generation != row.generation:
        return ""
    if hold == Hold.APPROVAL:
        return f"reconciler approve {row.key} --plan {row.pending_plan[:SHORT_PLAN]}"
    if hold in _HOLDS_OF_CONFIGS and not is_config(row.key):
        return f"reconciler approve {config_key(row.provider_config)} --hold {hold}"
    generation = f" --generation {row.generation}" if row.generation else ""  # never declared
    return f"reconciler approve {row.key} --hold {hold}{generation}"
