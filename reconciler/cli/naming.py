"""Parse resource names from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, get_args

from events.log import OutcomeName, ResourceEvent
from events.names import check_token
from reconciler.cli.errors import UsageError
from reconciler.provider.kind import installed_kinds


class Reference(NamedTuple):
    """The parts of a resource's name that the user specified."""

    text: str
    namespace: str | None
    kind: str | None
    name: str


def parse_reference(resource: str, namespace: str | None, name: str | None = None) -> Reference:
    """Parse NAME, KIND/NAME or NAMESPACE/KIND/NAME, or a kind followed by the ``name``.

    Raises:
        UsageError, InvalidNameError: the text is invalid. The check does not need a server.
    """
    text = resource if name is None else f"{resource}/{name}"
    parts = text.split("/")
    if len(parts) > 3:  # noqa: PLR2004 - namespace, kind, name
        raise UsageError(
            f"{text!r} is not a resource name; use NAME, KIND/NAME or NAMESPACE/KIND/NAME"
        )
    *prefix, name = parts
    kind = prefix.pop() if prefix else None
    outer_namespace = prefix.pop() if prefix else namespace
    check_names(namespace=outer_namespace, kind=kind, name=name)
    return Reference(text, outer_namespace, kind, name)


def check_names(
    *, namespace: str | None = None, kind: str | None = None, name: str | None = None
) -> None:
    """Check parts of a resource's key; raises ``InvalidNameError``."""
    for what, token in (("namespace", namespace), ("kind", kind), ("name", name)):
        if token is not None:
            check_token(token, what=what)


def is_same_kind(text: str, kind: str) -> bool:
    """Return whether text names a kind: ``shape``, ``Shape`` and ``shapes`` are equivalent."""
    return text.lower() in (kind.lower(), f"{kind.lower()}s")


def parse_outcome(text: str, *also: str, option: str = "--outcome") -> str:
    """Parse an outcome or one of ``also``; raises ``UsageError``, which lists them all."""
    # Rejected is an outcome of declarations, not of resources.
    known = [*(each for each in get_args(OutcomeName) if each != "Rejected"), *also]
    return _parse_choice(known, text, option, "outcome")


def parse_event_name(text: str) -> str:
    """Parse an event type; raises ``UsageError``, which lists all types."""
    return _parse_choice(event_names(), text, "--event", "event")


def event_names() -> list[str]:
    """Return the sorted names of the log's event types."""
    return sorted(each.__name__ for each in get_args(ResourceEvent))


def _parse_choice(known: Sequence[str], text: str, option: str, noun: str) -> str:
    for each in known:
        if each.lower() == text.lower():
            return each
    raise UsageError(f"{option} {text}: unknown {noun}; use one of {', '.join(known)}")


def resolve_kind(text: str) -> str:
    """Return the installed kind for text, or the text, as the kind may be installed elsewhere."""
    return next((kind for kind in installed_kinds() if is_same_kind(text, kind)), text)
