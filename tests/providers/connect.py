"""Helps tests to speak with providers: how one is connected, and how an action is written."""

from __future__ import annotations

from typing import Protocol

from events.external import ExternalObject
from events.log import Action, Operation
from events.manifest import Fields
from reconciler.provider import Provider, contract
from reconciler.provider.contract import action
from reconciler.provider.kind import Kind


class Connect(Protocol):
    """Builds a provider that is closed at the end of the test."""

    def __call__(
        self, kind: Kind, endpoint: str, *, timeout_seconds: float = 10, secret: str | None = None
    ) -> Provider: ...


def upon(operation: Operation, thing: ExternalObject | None, fields: Fields) -> Action:
    """Write an action on an object as it was seen."""
    assert thing is not None
    return contract.with_version_of(action(operation, thing.name, fields), thing)
