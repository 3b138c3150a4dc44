"""The label on an external object that says whose it is."""

from __future__ import annotations

from events.names import InvalidNameError, ResourceKey

OWNER_LABEL = "reconciler/owner"


def owner(log_id: str, key: ResourceKey) -> str:
    """Return the label's value: ``<log id>.<namespace>.<kind>.<name>``; two logs never agree."""
    return f"{log_id}.{key.tokens}"


def is_of_log(value: str, log_id: str) -> bool:
    """Return whether a label's value was written by this log, for whatever resource."""
    return value.startswith(f"{log_id}.")


def namespace_of(value: str) -> str:
    """Return the namespace that a label's value names, of any log; empty if it names none."""
    tokens = value.rsplit(".", 3)
    return tokens[1] if len(tokens) == len(("log", "namespace", "kind", "name")) else ""


def resource_of(value: str, log_id: str) -> str:
    """Name the resource that a label's value names; empty if it is none of this log."""
    tokens = value.removeprefix(f"{log_id}.").split(".") if is_of_log(value, log_id) else []
    try:
        return str(ResourceKey.parse("/".join(tokens)))
    except InvalidNameError:  # people write labels, too
        return ""
