"""The messages that a client sends to the intake, and the meaning of the replies.

Everything that can be checked without the reconciler is checked before anything is sent: a message
that cannot be decoded would become a dead letter.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from events.checked_manifest import checked_manifest
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
    """Parse ``namespace/kind/name``, or check a key. Raises ``InvalidNameError``."""
    if isinstance(resource, str):
        return ResourceKey.parse(resource)
    return ResourceKey.checked(resource.namespace, resource.kind, resource.name)


def declaration(
    manifest: Manifest | Mapping[str, Any],
    expected_generation: int | None = None,
    plan: PlanRef | None = None,
    reason: str = "",
) -> IntakeMessageOut:
    """Build the message that declares a manifest. Raises as ``checked_manifest``."""
    checked = checked_manifest(manifest)
    return _message("desired", checked.key, Declared(checked, expected_generation, plan, reason))


def withdrawal(
    resource: ResourceKey | str, expected_generation: int | None = None, reason: str = ""
) -> IntakeMessageOut:
    """Build the message that withdraws a resource. Raises ``InvalidNameError``."""
    return _message("desired", resource, Withdrawn(expected_generation, reason))


def look(resource: ResourceKey | str, reason: str) -> IntakeMessageOut:
    """Build the message that requests a reconciliation now. Raises ``InvalidNameError``."""
    return _message("desired", resource, ReconcileRequested(reason))


def finalizer_request(resource: ResourceKey | str, finalizer: str) -> IntakeMessageOut:
    """Build the message that adds a finalizer. Raises ``InvalidNameError``."""
    return _message("finalizer", resource, FinalizerRequested(check_finalizer(finalizer)))


def finalizer_release(
    resource: ResourceKey | str, finalizer: str, *, force: bool, reason: str
) -> IntakeMessageOut:
    """Build the message that removes a finalizer. Raises ``InvalidNameError``."""
    released = FinalizerReleased(check_finalizer(finalizer), force, reason)
    return _message("finalizer", resource, released)


def approval(
    resource: ResourceKey | str,
    hold: str,
    decision: ApprovalDecision,
    reason: str,
    plan: str = "",
) -> IntakeMessageOut:
    """Build the message that decides about a hold. Raises ``InvalidNameError``."""
    return _message("approval", resource, Approved(hold, decision, reason, plan))


def forced_release(resource: ResourceKey | str, reason: str, *, orphan: bool) -> IntakeMessageOut:
    """Build the message that removes everything that keeps a resource.

    Raises ``InvalidNameError``.
    """
    return _message("approval", resource, ForcedRelease(reason, orphan))


def checked_answers(
    messages: Sequence[IntakeMessageOut],
    answers: Sequence[Reply | None],
    timeout_seconds: float,
) -> list[Reply | DeclarationRefusedError]:
    """Turn refusals into errors. Raises ``WaitTimeoutError`` for a missing reply."""
    told = [None if answer is None else _told(answer) for answer in answers]
    silent = [message.key for message, one in zip(messages, told, strict=True) if one is None]
    if silent:
        raise WaitTimeoutError(
            f"no reply within {timeout_seconds:g} s for {len(silent)} of {len(messages)} "
            f"messages (first: {silent[0]}). The bus may have stored them, and a decider may "
            "still process them; sending them again is safe. `reconciler doctor` shows whether a "
            "decider is running, the servers respond, and their disks have room"
        )
    return [one for one in told if one is not None]


def _told(answer: Reply) -> Reply | DeclarationRefusedError:
    return answer if answer.accepted else DeclarationRefusedError(answer.reason, answer.message)


def _message(what: Intake, resource: ResourceKey | str, data: IntakeData) -> IntakeMessageOut:
    return IntakeMessageOut(what, as_key(resource), data, uuid.uuid4().hex)
