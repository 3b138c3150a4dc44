"""Helps tests to speak with providers: how one is connected, and how an action is written."""

from __future__ import annotations

from typing import Protocol
from uuid import uuid4

import msgspec

from events.external import ExternalObject
from events.log import Action, Operation
from events.manifest import Fields
from reconciler.kinds import Kind
from reconciler.provider import Provider

LABELS = {"reconciler/owner": "test", "team": "a+b & c=d/e"}


class Connect(Protocol):
    """Builds a provider that is closed at the end of the test."""

    def __call__(
        self, kind: Kind, endpoint: str, *, timeout_seconds: float = 10, secret: str | None = None
    ) -> Provider: ...


def action(operation: Operation, name: str, fields: Fields) -> Action:
    """Write an action with a key of its own, and no preconditions."""
    unique = uuid4().hex
    return Action(
        action_id=unique,
        idempotency_key=f"key-{unique}",
        operation=operation,
        generation=1,
        provider_config="default",
        external_name=name,
        because=("test",),
        fields=fields,
        labels=LABELS,
    )


def upon(operation: Operation, thing: ExternalObject | None, fields: Fields) -> Action:
    """Write an action on an object as it was seen."""
    assert thing is not None
    return msgspec.structs.replace(
        action(operation, thing.name, fields), uid=thing.uid, version=thing.version
    )
