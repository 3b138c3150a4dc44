"""Helpers for tests that call providers: connect one, and build an action."""

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


def action_on(operation: Operation, existing: ExternalObject | None, fields: Fields) -> Action:
    """Build an action on an observed object."""
    assert existing is not None
    return contract.with_version_of(action(operation, existing.name, fields), existing)
