"""What a check of `doctor` found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from infra.jetstream.errors import BusDeniedError

Verdict = Literal["ok", "warn", "fail", "skip"]
"""``skip``: the user may not look; that is no failure of what is looked at."""

_SHOWN = 3


class Finding(msgspec.Struct, frozen=True, rename={"verdict": "status", "found": "details"}):
    """One check, what was found, and what to do about it."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def not_looked_at(check: str, denied: BusDeniedError) -> Finding:
    """Say that a check was not made, for want of permissions."""
    remedy = "Connect as a user with the permissions that `reconciler permissions operator` prints."
    return Finding(check, "skip", f"not checked: {denied}", remedy)


def some(names: Sequence[str], separator: str = ", ") -> str:
    """Name the first few of many: a message is one line that people read."""
    shown = separator.join(names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
