"""The label on an external object that says whose it is."""

from __future__ import annotations

from events.names import ShapeKey

OWNER_LABEL = "reconciler/owner"


def owner(log_id: str, key: ShapeKey) -> str:
    """Give the label's value: ``<log id>.<namespace>.<kind>.<name>``; two logs never agree."""
    return f"{log_id}.{key.tokens}"
