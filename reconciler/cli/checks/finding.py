"""What a check of `doctor` found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Verdict = Literal["ok", "warn", "fail"]
_SHOWN = 3


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """One check, what was found, and what to do about it."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def some(names: Sequence[str]) -> str:
    """Name the first few of many."""
    shown = ", ".join(names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
