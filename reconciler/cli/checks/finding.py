"""What a check of `doctor` found."""

from __future__ import annotations

from typing import Literal

import msgspec

from infra.jetstream.errors import BusDeniedError

Verdict = Literal["ok", "warn", "fail", "skip"]
"""``skip``: the user may not look; that is no failure of what is looked at."""


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
