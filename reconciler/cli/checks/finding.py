"""The result of a check of `doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec

from infra.jetstream.errors import BusDeniedError

Verdict = Literal["ok", "warn", "fail", "skip"]
"""``skip``: the user has no permission, which is not a failure."""


class Finding(msgspec.Struct, frozen=True, rename={"verdict": "status", "found": "details"}):
    """One check with its result and its remedy."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def not_looked_at(check: str, denied: BusDeniedError) -> Finding:
    """Return a finding for a check that requires missing permissions."""
    remedy = "Connect as a user with the permissions that `reconciler permissions operator` prints."
    return Finding(check, "skip", f"not checked: {denied}", remedy)
