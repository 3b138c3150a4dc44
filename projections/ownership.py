"""Ownership: which external objects are ours, and which may be because a create is under way.

It is read off the status row, which has all of it: a row of its own was half of what a replay and
the store had to write (ADR 0044).
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from projections.status import StatusRow


class OwnershipRow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One external object that is ours, by the log.

    ``pending_create`` names the create that may have made it: intent before effect, so an object
    that was made while we crashed is found here; ``pending_name`` is what it is called, where that
    is a replacement beside ``external_name``. ``retiring`` is what was replaced and is still there.
    ``since`` is the event that made it ours.
    """

    provider_config: str = ""
    external_name: str = ""
    uid: str | None = None
    owned: bool = False
    since: str = ""
    since_time: datetime | None = None
    reason: str = ""
    pending_create: str = ""
    pending_name: str = ""
    retiring: str = ""
    retiring_uid: str | None = None


def ownership_of(row: StatusRow) -> OwnershipRow | None:
    """Return what a resource owns, or may own; None if that is nothing."""
    creates = row.operation == "Create"
    if not row.owned and not creates:
        return None
    return OwnershipRow(
        provider_config=row.provider_config,
        external_name=row.external_name if row.owned else row.pending_name,
        uid=row.uid,
        owned=row.owned,
        since=row.owned_by,
        since_time=row.owned_since,
        reason=row.owned_reason,
        pending_create=row.action_id if creates else "",
        pending_name=row.pending_name if row.owned else "",
        retiring=row.retiring,
        retiring_uid=row.retiring_uid,
    )
