"""Parse the names of resources on the command line."""

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
    """Parse NAME, kind/name or namespace/kind/name, or a kind followed by the ``name``.

    Raises:
        UsageError, InvalidNameError: the text is invalid; no server is used.
    """
    text = resource if name is None else f"{resource}/{name}"
    parts = text.split("/")
    if len(parts) > 3:  # noqa: PLR2004 - namespace, kind, name
        raise UsageError(
            f"{text!r} is not a resource name; use NAME, KIND/NAME or NAMESPACE/KIND/NAME"
        )
    *places, name = parts
    kind = places.pop() if places else None
    place = places.pop() if places else namespace
    check_names(namespace=place, kind=kind, name=name)
    return Reference(text, place, kind, name)


def check_names(
    *, namespace: str | None = None, kind: str | None = None, name: str | None = None
) -> None:
    """Check parts of a resource's key; raises ``InvalidNameError``."""
    for what, token in (("namespace", namespace), ("kind", kind), ("name", name)):
        if token is not None:
            check_token(token, what=what)


def same_kind(text: str, kind: str) -> bool:
    """Return whether a text means a kind: ``shape``, ``Shape`` and ``shapes`` are equivalent."""
    return text.lower() in (kind.lower(), f"{kind.lower()}s")


def known_outcome(text: str, *also: str, option: str = "--outcome") -> str:
    """Return the outcome for a text, or one of ``also``; ``UsageError`` lists them all."""
    # No resource is Rejected: that is the outcome of a declaration.
    known = [*(each for each in get_args(OutcomeName) if each != "Rejected"), *also]
    return _one_of(known, text, option, "outcome")


def known_event(text: str) -> str:
    """Return the event type for a text; ``UsageError`` lists them all."""
    return _one_of(event_names(), text, "--event", "event")


def event_names() -> list[str]:
    """Return the sorted names of the log's event types."""
    return sorted(each.__name__ for each in get_args(ResourceEvent))


def _one_of(known: Sequence[str], text: str, option: str, noun: str) -> str:
    for each in known:
        if each.lower() == text.lower():
            return each
    raise UsageError(f"{option} {text}: unknown {noun}; use one of {', '.join(known)}")


def registered(text: str) -> str:
    """Return the installed kind for a text, or the text, because the kind may be elsewhere."""
    return next((kind for kind in installed_kinds() if same_kind(text, kind)), text)
