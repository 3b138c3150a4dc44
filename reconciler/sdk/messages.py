"""The messages that a client sends to the intake, and the interpretation of replies.

Messages are checked before the first one is sent, because an invalid message would become a dead
letter.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from events.check_manifest import check_manifest
from events.intake import (
    ApprovalDecision,
    Approved,
    Declared,
    FinalizerReleased,
    FinalizerRequested,
    ForcedRelease,
    IntakeData,
    PlanRef,
    ReconcileRequested,
    Reply,
    Withdrawn,
)
from events.manifest import Manifest
from events.names import ResourceKey, check_finalizer
from events.subjects import Intake
from reconciler.errors import DeclarationRefusedError, WaitTimeoutError
from reconciler.ports import IntakeMessageOut


def as_key(resource: ResourceKey | str) -> ResourceKey:
    """Parse ``namespace/kind/name``, or check a key; raises ``InvalidNameError``."""
    if isinstance(resource, str):
        return ResourceKey.parse(resource)
    return ResourceKey.checked(resource.namespace, resource.kind, resource.name)


def declaration(
    manifest: Manifest | Mapping[str, Any],
    expected_generation: int | None = None,
    plan: PlanRef | None = None,
    reason: str = "",
) -> IntakeMessageOut:
    """Return the message that declares a manifest; raises the errors of ``check_manifest``."""
    checked = check_manifest(manifest)
    return _message("desired", checked.key, Declared(checked, expected_generation, plan, reason))


def withdrawal(
    resource: ResourceKey | str, expected_generation: int | None = None, reason: str = ""
) -> IntakeMessageOut:
    """Return the message that withdraws a resource; raises ``InvalidNameError``."""
    return _message("desired", resource, Withdrawn(expected_generation, reason))


def reconcile_request(resource: ResourceKey | str, reason: str) -> IntakeMessageOut:
    """Return the message that requests a reconciliation; raises ``InvalidNameError``."""
    return _message("desired", resource, ReconcileRequested(reason))


def finalizer_request(resource: ResourceKey | str, finalizer: str) -> IntakeMessageOut:
    """Return the message that adds a finalizer; raises ``InvalidNameError``."""
    return _message("finalizer", resource, FinalizerRequested(check_finalizer(finalizer)))


def finalizer_release(
    resource: ResourceKey | str, finalizer: str, *, force: bool, reason: str
) -> IntakeMessageOut:
    """Return the message that removes a finalizer; raises ``InvalidNameError``."""
    released = FinalizerReleased(check_finalizer(finalizer), force, reason)
    return _message("finalizer", resource, released)


def approval(
    resource: ResourceKey | str,
    hold: str,
    decision: ApprovalDecision,
    reason: str,
    plan: str = "",
    generation: int = 0,
) -> IntakeMessageOut:
    """Return the message that approves or rejects a hold; raises ``InvalidNameError``."""
    return _message("approval", resource, Approved(hold, decision, reason, plan, generation))


def forced_release(resource: ResourceKey | str, reason: str, *, orphan: bool) -> IntakeMessageOut:
    """Return the message that releases a resource from all holds; raises ``InvalidNameError``."""
    return _message("approval", resource, ForcedRelease(reason, orphan))


def check_replies(
    messages: Sequence[IntakeMessageOut],
    replies: Sequence[Reply | None],
    timeout_seconds: float,
) -> list[Reply | DeclarationRefusedError]:
    """Return replies, with refusals as errors; raises ``WaitTimeoutError`` for a missing reply."""
    results = [None if reply is None else _as_result(reply) for reply in replies]
    unanswered = [
        message.key for message, result in zip(messages, results, strict=True) if result is None
    ]
    if unanswered:
        raise WaitTimeoutError(
            f"no reply within {timeout_seconds:g} s for {len(unanswered)} of {len(messages)} "
            f"messages (first: {unanswered[0]}). The bus may have stored them, and a decider may "
            "still process them; sending them again is safe. `reconciler doctor` shows whether a "
            "decider is running, the log is intact, the servers respond, and their disks have room"
        )
    return [result for result in results if result is not None]


def _as_result(reply: Reply) -> Reply | DeclarationRefusedError:
    return reply if reply.accepted else DeclarationRefusedError(reply.reason, reply.message)


def _message(intake: Intake, resource: ResourceKey | str, data: IntakeData) -> IntakeMessageOut:
    return IntakeMessageOut(intake, as_key(resource), data, uuid.uuid4().hex)
