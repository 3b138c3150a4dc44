"""The messages of an action's steps, whose ids identify the step."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence

from events.intake import IntakeData, Reply
from events.log import Action
from events.names import ResourceKey
from reconciler.ports import IntakeMessageOut

Publish = Callable[[Sequence[IntakeMessageOut]], Awaitable[Sequence[Reply]]]


def build_message(
    action: Action, key: ResourceKey, data: IntakeData, step: str
) -> IntakeMessageOut:
    """Build a message whose id identifies the step of the action."""
    identity = f"{action.idempotency_key}.{digest_of_text(str(key))}.{step}"
    return IntakeMessageOut("desired", key, data, identity)


def digest_of_text(text: str) -> str:
    """Return a digest of text that is too long for an id."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
