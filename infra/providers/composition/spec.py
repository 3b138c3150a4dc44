"""Names and types that composed kinds share with their provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from events.composition import COMPOSED_SET_KIND, Child
from events.manifest import Fields
from events.names import InvalidNameError, ResourceKey

Summary = Callable[[Fields, Mapping[str, Child]], Fields]
"""Computes a kind's own outputs from an object's fields and the status of its children."""

MAX_NAME_CHARACTERS: Final = 46
"""Leaves room within 63 characters for the kind in a set's name and the suffix in a child's."""


def name_problem(name: str, *, max_characters: int) -> str | None:
    """Describe what is wrong with the name of a composed object; None if it is valid."""
    namespace, dot, rest = name.partition(".")
    try:
        ResourceKey.checked(namespace, COMPOSED_SET_KIND, rest)
    except InvalidNameError as error:
        return str(error)
    if len(rest) > max_characters:
        return f"use at most {max_characters} characters, because other names contain it"
    return None if dot else "use the form NAMESPACE.NAME"
