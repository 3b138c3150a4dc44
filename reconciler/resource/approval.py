"""Approval: an action waits until an operator approves or rejects exactly that action (ADR 0040).

The request contains a *plan*: a digest of the action's parameters and of the current object. If
either changes, the plan changes, and a decision about the earlier one no longer applies.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from events.hold import PLAN_HOLDS, Hold
from events.intake import Approved
from events.log import Action, ActionDecided, ApprovalRefused, ApprovalRequested, HoldApproved
from events.manifest import ApprovalLevel, stricter_level
from events.names import ResourceKey
from reconciler.resource.difference import Comparison, format_value
from reconciler.resource.state import (
    ApprovalState,
    ResourceState,
)
from reconciler.resource.turn import Command, CommandResult, Context, Step, accept, on_hold, refuse

SHORT_PLAN: Final = 12
"""Number of characters of a plan's digest in messages. Enough to identify it within a resource."""

_MAX_DESCRIBED = 5

_encoder = msgspec.json.Encoder(order="deterministic")


def approval_command(key: ResourceKey, *, abandon: bool = False) -> str:
    """Return the command that approves a retry of an action in doubt, or abandons the action."""
    suffix = " --abandon" if abandon else ""
    return f"`reconciler approve {key} --hold {Hold.UNKNOWN_RESULT}{suffix}`"


def require_approval(
    step: Step, state: ResourceState, context: Context, comparison: Comparison
) -> Step:
    """Return the step, or the request or hold that precedes it while it is not approved."""
    if not isinstance(step, ActionDecided) or not _needs_approval(step.action, state, context):
        return step
    request = _build_request(step.action, state, context, comparison)
    known = state.holds.approval
    if known is None or known.plan != request.plan:
        return request
    if known.decision == "Proceed":
        return step
    if known.decision == "Reject":
        return on_hold(
            Hold.NOT_APPROVED, f"{describe_plan(request)}; rejected {_decided_by(known)}"
        )
    return on_hold(Hold.APPROVAL, f"{describe_plan(request)}; approve or reject it")


def apply_decision(data: Approved, command: Command, state: ResourceState) -> CommandResult:
    """Approve or reject the waiting plan, or refuse a decision about any other plan."""
    request, outcome = state.holds.approval, state.outcome
    is_waiting = outcome is not None and outcome.reason in PLAN_HOLDS
    if request is None or not is_waiting:
        return refuse(state, command, "NotHeld", "the resource has no action waiting for approval")
    if data.decision == "Abandon":
        return refuse(
            state,
            command,
            "Invalid",
            "decision Abandon: not allowed for the Approval hold; use Proceed or Reject",
        )
    if data.plan != request.plan:
        mismatch = (
            f"not plan {data.plan[:SHORT_PLAN]}" if data.plan else "but the decision names none"
        )
        message = (
            f"plan {request.plan[:SHORT_PLAN]} is waiting for approval, {mismatch}; review it first"
        )
        return refuse(state, command, "PlanOutdated", message)
    if request.decision == data.decision:
        return accept(state, command, reason="Unchanged")
    if data.decision == "Reject":
        return accept(state, command, ApprovalRefused(request.plan, data.reason))
    approved = HoldApproved(Hold.APPROVAL.value, "Proceed", data.reason, request.plan)
    return accept(state, command, approved)


def _needs_approval(action: Action, state: ResourceState, context: Context) -> bool:
    """Return whether the policy or the ProviderConfig requires approval of the action."""
    config, level = context.configs.get(action.provider_config), _declared_level(state)
    if config is not None:
        level = stricter_level(config.approve, level)
    if level == "Never" or _is_covered_by_approval(action, state):
        return False
    return stricter_level(level, level_of(action)) == level


def _declared_level(state: ResourceState) -> ApprovalLevel:
    spec = state.desired.spec
    return "Never" if spec is None else spec.policy.approve


def level_of(action: Action) -> ApprovalLevel:
    """Return the least strict level at which an action requires approval."""
    return "Deletions" if action.operation == "Delete" or action.purpose == "Replace" else "Always"


def _is_covered_by_approval(action: Action, state: ResourceState) -> bool:
    """Return whether an approval already covers the action.

    A replacement is approved as a whole, but its content may have changed since.
    """
    approval = state.holds.approval
    if action.operation == "Create" and approval is not None and approval.is_replacing:
        return approval.content == state.desired.digest
    return action.purpose == "Retire"


def _build_request(
    action: Action, state: ResourceState, context: Context, comparison: Comparison
) -> ApprovalRequested:
    return ApprovalRequested(
        plan=_digest(action, state, context),
        operation=action.operation,
        generation=action.generation,
        provider_config=action.provider_config,
        external_name=action.external_name,
        purpose=action.purpose,
        changes=tuple(each for each, _ in comparison.changes(action)),
        level=level_of(action),
        declared_level=None if state.desired.is_declared else _declared_level(state),
    )


def _digest(action: Action, state: ResourceState, context: Context) -> str:
    """Return the digest of an action and of the current object, without ids and versions.

    Ids and versions change with every decision and read.
    """
    existing = state.observed.object
    current = None
    if existing is not None and context.kind is not None:
        current = (context.kind.normalize(existing.fields), existing.labels, existing.uid)
    # Approving the deletion in a replacement also approves the replacement's content.
    is_replacement_deletion = action.operation == "Delete" and action.purpose == "Replace"
    fields = state.desired.fields if is_replacement_deletion else action.fields
    content = (
        *(action.operation, action.purpose, action.generation, action.provider_config),
        *(_name(action), fields, action.labels, action.uid, current),
    )
    return hashlib.blake2b(_encoder.encode(content), digest_size=16).hexdigest()


def _name(action: Action) -> str:
    """Return the external name; empty for a replacement, whose name depends on the version."""
    return "" if action.purpose == "Replace" else action.external_name


def describe_plan(request: ApprovalRequested) -> str:
    """Return a description of the plan waiting for approval, and of its changes."""
    what = f"{request.operation} {request.external_name!r}"
    if request.purpose != "Converge":
        what = f"{request.purpose}: {what}"
    changes = [
        f"{each.path}: {format_value(each.observed)} → {format_value(each.desired)}"
        for each in request.changes
    ]
    if request.operation != "Update":
        changes = []
    more = len(changes) - _MAX_DESCRIBED
    parts = [what, *changes[:_MAX_DESCRIBED], *([f"and {more} more"] if more > 0 else [])]
    return f"plan {request.plan[:SHORT_PLAN]} ({', '.join(parts)})"


def _decided_by(approval: ApprovalState) -> str:
    return f"by {approval.by}{f': {approval.reason}' if approval.reason else ''}"
