"""Readiness as shown to users: unknown while the API of an object does not respond (ADR 0080).

An outage adds no event to the histories of resources. Therefore, views replace the recorded
condition according to the rows of the ``ProviderConfig``s. Rows and outcomes stay unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from msgspec.structs import replace

from events.composition import CHILDREN
from events.log import Condition
from events.provider_config import config_key, config_name
from projections.status import StatusRow

API_SILENT: Final = "ApiSilent"
"""Reason for an unknown readiness: the API of the object does not respond."""

_MAX_DEPTH: Final = 8
_Rows = Mapping[str, StatusRow]


class SilentApi(NamedTuple):
    """A silent API: its ``ProviderConfig``, the time of the last response, and its newest event."""

    config: str
    since: datetime
    event: str


def find_silent_api(row: StatusRow, rows: _Rows) -> SilentApi | None:
    """Return the silent API that the readiness of a resource depends on, or None.

    The readiness of a composed resource depends on the APIs of its parts. If several are silent,
    return the one with the oldest response.
    """
    silent = [each for config in _configs(row, rows, 0) if (each := _silent(config, rows))]
    return min(silent, key=lambda each: each.since, default=None)


def show_readiness(row: StatusRow, rows: _Rows) -> StatusRow:
    """Return the row as users see it: a copy with unknown readiness if its API is silent."""
    if not any(each.type == "Ready" and each.status == "True" for each in row.conditions):
        return row
    api = find_silent_api(row, rows)
    if api is None:
        return row
    conditions = tuple(
        unknown_readiness(api.config, api.since, each) if each.type == "Ready" else each
        for each in row.conditions
    )
    unmet = {**(row.unmet_since or {}), "Ready": api.since}
    return replace(row, conditions=conditions, unmet_since=unmet)


def unknown_readiness(config: str, since: datetime, recorded: Condition) -> Condition:
    """Return the condition to show instead of the recorded one."""
    message = (
        f"last seen {since:%Y-%m-%dT%H:%M:%SZ}: the API of ProviderConfig {config!r} has not "
        "responded since then"
    )
    return replace(recorded, status="Unknown", reason=API_SILENT, message=message)


def _silent(config: str, rows: _Rows) -> SilentApi | None:
    row = rows.get(str(config_key(config)))
    if row is None or row.silent_since is None:
        return None
    return SilentApi(config, row.silent_since, row.silence_event)


def _configs(row: StatusRow, rows: _Rows, depth: int) -> Iterator[str]:
    """Yield the configurations of a resource and of its parts; that of a ProviderConfig is itself.

    A configuration may be yielded repeatedly.
    """
    name = config_name(str(row.key)) or row.provider_config
    if name:
        yield name
    children = row.outputs.get(CHILDREN)
    if isinstance(children, dict) and depth < _MAX_DEPTH:
        for child in cast("dict[str, Any]", children):
            part = rows.get(child)
            if part is not None and part.declared:
                yield from _configs(part, rows, depth + 1)
