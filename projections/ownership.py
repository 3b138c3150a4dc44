"""Ownership: which external objects are ours, and which may be because a create is under way."""

from __future__ import annotations

from datetime import datetime

import msgspec

from events.log import (
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionSucceeded,
    LogEvent,
    OwnershipClaimed,
    OwnershipReleased,
    is_retired,
)


class OwnershipRow(msgspec.Struct, rename="camel", omit_defaults=True):
    """One external object that is ours, by the log.

    ``pending_create`` names the create that may have made it: intent before effect, so an object
    that was made while we crashed is found here; ``pending_name`` is what it is called, where that
    is a replacement beside ``external_name``. ``retiring`` is what was replaced and is still there.
    ``since`` is the event that made it ours,
    ``position`` where the newest event stands that is folded in.
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
    position: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the resource owns nothing, and may own nothing."""
        return not self.owned and not self.pending_create


OWNERSHIP_EVENTS = frozenset(
    {
        ActionDecided,
        ActionSucceeded,
        ActionFailed,
        ActionAbandoned,
        OwnershipClaimed,
        OwnershipReleased,
    }
)
"""The events that say something about ownership; others need not be folded."""

_MAY_HAVE_HAPPENED = ("Transient", "Throttled", "Unknown")


def fold_ownership(row: OwnershipRow, event: LogEvent) -> bool:
    """Fold one event into the row of its resource, in place; tell whether it changed."""
    data = event.data
    if isinstance(data, ActionDecided) and data.action.operation == "Create":
        row.pending_create = data.action.action_id
        row.provider_config = data.action.provider_config
        if row.owned:
            row.pending_name = data.action.external_name
        else:
            row.external_name = data.action.external_name
    elif isinstance(data, ActionSucceeded):
        return _succeeded(row, data, event)
    elif isinstance(data, ActionAbandoned) or (
        isinstance(data, ActionFailed) and data.error.error_class not in _MAY_HAVE_HAPPENED
    ):
        row.pending_create = row.pending_name = ""
        if (
            isinstance(data, ActionFailed)
            and data.purpose == "Retire"
            and is_retired(data, row.retiring_uid)
        ):
            row.retiring, row.retiring_uid = "", None
    elif isinstance(data, OwnershipClaimed):
        row.provider_config = data.provider_config
        row.external_name = data.external_name
        _own(row, event, data.uid, data.reason)
    elif isinstance(data, OwnershipReleased):
        if row.retiring and (data.external_name, data.uid) == (row.retiring, row.retiring_uid):
            row.retiring, row.retiring_uid = "", None
        else:
            _disown(row)
    else:
        return False
    return True


def _succeeded(row: OwnershipRow, data: ActionSucceeded, event: LogEvent) -> bool:
    if data.outdated:
        return False
    if data.operation == "Create":
        if row.owned and data.purpose == "Replace":
            row.retiring, row.retiring_uid = row.external_name, row.uid
        row.external_name = data.external_name or row.external_name
        row.pending_create = row.pending_name = ""
        _own(row, event, None if data.object is None else data.object.uid, "Created")
        return True
    if data.operation == "Delete" and data.purpose == "Retire":
        row.retiring, row.retiring_uid = "", None
        return True
    if data.operation == "Delete":
        _disown(row)
        return True
    return False


def _disown(row: OwnershipRow) -> None:
    """What was replaced is ours again, if it is still there."""
    row.owned, row.external_name, row.uid = (
        bool(row.retiring),
        row.retiring or row.external_name,
        row.retiring_uid,
    )
    row.retiring, row.retiring_uid = "", None


def _own(row: OwnershipRow, event: LogEvent, uid: str | None, reason: str) -> None:
    row.owned = True
    row.uid = uid
    row.since, row.since_time = event.id, event.time
    row.reason = reason
