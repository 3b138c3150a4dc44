"""Which shapes a command line means."""

from __future__ import annotations

from collections.abc import Sequence

from events.manifest import PROVIDER_CONFIG_KIND
from events.names import SYSTEM_NAMESPACE, ShapeKey
from reconciler.cli.errors import UsageError
from reconciler.cli.reading import same_kind
from reconciler.kinds import installed_kinds


def named(
    kind: str | None, names: Sequence[str], namespace: str | None, *, what: str
) -> list[ShapeKey]:
    """Give the shapes that a command line names: KIND NAME..., or namespace/kind/name...

    Each once, in the order of the command line.
    ``what`` is the command, for the error. Raises ``UsageError`` and ``InvalidNameError``.
    """
    if kind is None:
        return []
    if "/" in kind:
        return list(dict.fromkeys(ShapeKey.parse(text) for text in (kind, *names)))
    if not names:
        raise UsageError(f"{what} what of kind {kind}? Give at least one name")
    registered = _registered(kind)
    place = namespace or (SYSTEM_NAMESPACE if registered == PROVIDER_CONFIG_KIND else "default")
    return list(
        dict.fromkeys(
            ShapeKey.parse(name) if "/" in name else ShapeKey.checked(place, registered, name)
            for name in names
        )
    )


def _registered(text: str) -> str:
    """Give the kind that is meant, or the text as it is: its kind may not be installed here."""
    return next((kind for kind in installed_kinds() if same_kind(text, kind)), text)
