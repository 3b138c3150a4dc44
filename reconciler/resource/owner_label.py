"""The owner label on an external object, which names its log and its resource."""

from __future__ import annotations

from collections.abc import Mapping

from events.names import InvalidNameError, ResourceKey

OWNER_LABEL = "reconciler/owner"


def owner(log_id: str, key: ResourceKey) -> str:
    """Return the value of the owner label: ``<log id>.<namespace>.<kind>.<name>``."""
    return f"{log_id}.{key.namespace}.{key.kind}.{key.name}"


def label_in(labels: Mapping[str, str]) -> str | None:
    """Return the owner label. None if it is missing, or empty, because it then names no owner."""
    return labels.get(OWNER_LABEL) or None


def belongs_to_log(value: str, log_id: str) -> bool:
    """Return whether a label names this log, for any resource."""
    return value.startswith(f"{log_id}.")


def namespace_of(value: str) -> str:
    """Return the namespace in a label, whichever log it names; empty if there is none."""
    tokens = value.rsplit(".", 3)
    return tokens[1] if len(tokens) == len(("log", "namespace", "kind", "name")) else ""


def belongs_to_other_namespace(labels: Mapping[str, str] | None, namespace: str) -> bool:
    """Return whether an object's owner label names another namespace.

    A message to this namespace must not contain the name of such an object.
    """
    return namespace_of((labels or {}).get(OWNER_LABEL, "")) not in ("", namespace)


def resource_of(value: str, log_id: str) -> str:
    """Return the resource of this log that a label names; empty if it names none."""
    tokens = value.removeprefix(f"{log_id}.").split(".") if belongs_to_log(value, log_id) else []
    try:
        return str(ResourceKey.parse("/".join(tokens)))
    except InvalidNameError:  # other clients may write labels too
        return ""
