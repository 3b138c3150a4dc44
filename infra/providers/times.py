"""Normalize times in fields. Other clients may set times outside Python's calendar."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec


def in_utc(value: str | None, *, to_seconds: bool = False) -> str | None:
    """Return a time in UTC, or unchanged if it would not be between the years 1 and 9999."""
    if value is None:
        return None
    try:
        instant = msgspec.convert(value, datetime).astimezone(UTC)
    except (OverflowError, msgspec.ValidationError):  # one object must not make a listing fail
        return value
    if to_seconds:
        instant = instant.replace(microsecond=0)
    return str(msgspec.to_builtins(instant))


def check_time(field: str, value: datetime | None) -> None:
    """Raise ``ValueError`` for a declared time that does not exist in UTC."""
    try:
        _ = value and value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{field}: must be between the years 1 and 9999 in UTC") from None
