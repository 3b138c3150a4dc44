"""A defect that is put into the product on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Patch(Protocol):
    """Replaces attributes, as `pytest.MonkeyPatch` does."""

    def setattr(self, target: object, name: str, value: object) -> None:
        """Replace an attribute of a module or class."""
        ...


class Mutation(NamedTuple):
    """A defect, and a function that puts it into the product."""

    name: str
    put_in: Callable[[Patch], None]
