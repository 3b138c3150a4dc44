"""The result of one `doctor` check."""

from __future__ import annotations

from typing import Literal

import msgspec

from infra.jetstream.errors import BusDeniedError

Verdict = Literal["ok", "warn", "fail", "skip"]
"""``skip``: the user has no permission, which is not a failure."""


class Finding(msgspec.Struct, frozen=True, rename={"verdict": "status"}):
    """A check with its result and remedy."""

    check: str
    verdict: Verdict
    details: str
    remedy: str = ""


def build_skipped_finding(check: str, denied: BusDeniedError) -> Finding:
    """Return a finding for a check that lacks permissions."""
    remedy = "Connect as a user with the permissions that `reconciler permissions operator` prints."
    return Finding(check, "skip", f"not checked: {denied}", remedy)
