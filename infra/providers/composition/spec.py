"""What composed kinds and their provider share: names, and the type of a summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from events.composition import COMPOSED_SET_KIND, Child
from events.manifest import Fields
from events.names import InvalidNameError, ResourceKey

Summary = Callable[[Fields, Mapping[str, Child]], Fields]
"""Makes a kind's own outputs of an object's fields and of how its children stand."""

MAX_NAME_CHARACTERS: Final = 46
"""A set's name has the kind before it, and a child's what its kind puts behind it; 63 in all."""


def name_problem(name: str, *, max_characters: int) -> str | None:
    """Describe what is wrong with the name of a composed object: it has its namespace before it."""
    namespace, dot, rest = name.partition(".")
    try:
        ResourceKey.checked(namespace, COMPOSED_SET_KIND, rest)
    except InvalidNameError as error:
        return str(error)
    if len(rest) > max_characters:
        return f"use at most {max_characters} characters, because other names contain it"
    return None if dot else "use the form NAMESPACE.NAME"
