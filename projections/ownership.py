"""Ownership: the external objects that resources own, or may own because a creation is in flight.

They are computed from status rows, because separate rows caused half of the writes in a replay
(ADR 0044).
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from projections.status import StatusRow


class OwnershipRow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An external object that a resource owns, according to the log.

    ``pending_create`` is the id of a creation in flight, which may already have created an object.
    ``pending_name`` is the name of that object, if it replaces ``external_name``. ``retiring`` is
    the replaced object, until it is deleted. ``since`` is the event that began the ownership.
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
    """Return the object that a resource owns or may own, or None."""
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
