"""From what a caller declares or withdraws to checked messages of the intake, and back to answers.

Everything that can be checked without the reconciler is checked before anything is sent: a message
that nobody can read would go to the dead letters.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from events.envelope import MAX_MESSAGE_BYTES
from events.intake import Answer, Declared, IntakeData, Withdrawn
from events.manifest import InvalidManifestError, Manifest, take_apart
from events.names import ShapeKey
from reconciler.errors import DeclarationRefusedError, WaitTimeoutError
from reconciler.ports import IntakeMessageOut

_ENVELOPE_BYTES = 4 * 1024  # more than id, source, type and time take


def checked_manifest(manifest: Manifest | Mapping[str, Any]) -> Manifest:
    """Check a manifest as far as it can be without the reconciler.

    Raises ``InvalidManifestError`` or ``InvalidNameError``.
    """
    if not isinstance(manifest, Manifest):
        try:
            manifest = msgspec.convert(manifest, Manifest)
        except msgspec.ValidationError as error:
            raise InvalidManifestError(f"manifest: {error}") from None
    _ = manifest.key  # raises InvalidNameError
    take_apart(manifest)
    _check_size(manifest)
    return manifest


def as_key(shape: ShapeKey | str) -> ShapeKey:
    """Read ``namespace/kind/name``, or check a key; raises ``InvalidNameError``."""
    if isinstance(shape, str):
        return ShapeKey.parse(shape)
    return ShapeKey.checked(shape.namespace, shape.kind, shape.name)


def declaration(
    manifest: Manifest | Mapping[str, Any], expected_generation: int | None = None
) -> IntakeMessageOut:
    """Make the message that declares a manifest; raises as ``checked_manifest``."""
    checked = checked_manifest(manifest)
    return _desired(checked.key, Declared(checked, expected_generation))


def withdrawal(shape: ShapeKey | str, expected_generation: int | None = None) -> IntakeMessageOut:
    """Make the message that withdraws a shape; raises ``InvalidNameError``."""
    return _desired(as_key(shape), Withdrawn(expected_generation))


def checked_answers(
    messages: Sequence[IntakeMessageOut],
    answers: Sequence[Answer | None],
    timeout_seconds: float,
) -> list[Answer | DeclarationRefusedError]:
    """Turn refusals into errors; raises ``WaitTimeoutError`` where an answer did not come."""
    told = [None if answer is None else _told(answer) for answer in answers]
    silent = [message.key for message, one in zip(messages, told, strict=True) if one is None]
    if silent:
        raise WaitTimeoutError(
            f"no answer within {timeout_seconds:g} s for {len(silent)} of {len(messages)} "
            f"({silent[0]} is the first): whether they were stored is unknown, and they may still "
            "be decided; repeating them is safe. Is a decider running? Is "
            "the server's disk full?"
        )
    return [one for one in told if one is not None]


def _told(answer: Answer) -> Answer | DeclarationRefusedError:
    return answer if answer.accepted else DeclarationRefusedError(answer.reason, answer.message)


def _desired(key: ShapeKey, data: IntakeData) -> IntakeMessageOut:
    return IntakeMessageOut("desired", key, data, uuid.uuid4().hex)


def _check_size(manifest: Manifest) -> None:
    try:
        size = len(msgspec.json.encode(manifest))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidManifestError(f"spec cannot be written as JSON: {error}") from None
    allowed = MAX_MESSAGE_BYTES - _ENVELOPE_BYTES
    if size > allowed:
        raise InvalidManifestError(
            f"{manifest.key} has {size} bytes: at most {allowed} are allowed in one manifest"
        )
