"""What a defect is that is put into the product on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

Patch = pytest.MonkeyPatch


class Mutation(NamedTuple):
    """A defect, and how it is put in."""

    name: str
    put_in: Callable[[Patch], None]
