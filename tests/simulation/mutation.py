"""A defect deliberately introduced into the product."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Patch(Protocol):
    """Replaces attributes, as `pytest.MonkeyPatch` does."""

    def setattr(self, target: object, name: str, value: object) -> None:
        """Replace an attribute of a module or class."""
        ...


class Mutation(NamedTuple):
    """A defect, and a function that introduces it into the product."""

    name: str
    apply_to: Callable[[Patch], None]
