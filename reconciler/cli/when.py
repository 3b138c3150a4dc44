"""Points in time as users write them: a log position, a time, or a duration before now."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from cyclopts import Parameter

from reconciler.cli.errors import UsageError
from reconciler.cli.local_clock import record_local_clock_use
from reconciler.sdk.moments import When, as_utc

TIME_FORMS: Final = (
    "use a log position (1234), a time (2026-01-31, 2026-01-31T12:00:05Z, "
    "2026-01-31T12:00+01:00; UTC if no zone is given), or a duration before now (30m, 2h, 7d)"
)
_MAX_SHOWN_CHARACTERS: Final = 80
_POSITION: Final = re.compile(r"[0-9]{1,18}")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|w)")
_SPAN: Final = re.compile(rf"(?:{_PART.pattern})+")


def parse_when(text: str, now: datetime) -> When:
    """Parse a point in time; raises ``UsageError``, which lists the accepted forms."""
    text = text.strip()
    if _POSITION.fullmatch(text):
        return int(text)
    try:
        if _SPAN.fullmatch(text):
            record_local_clock_use()
            return now - timedelta(seconds=sum(_seconds(part) for part in _PART.finditer(text)))
        return as_utc(datetime.fromisoformat(text.upper()))
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text[:_MAX_SHOWN_CHARACTERS]!r} is not a point in time; {TIME_FORMS}"
        ) from None


def _seconds(part: re.Match[str]) -> float:
    return float(part[1]) * _UNITS[part[2]]


def _convert_time(_type: Any, tokens: Any) -> When:
    return parse_when(tokens[0].value, datetime.now(UTC))


At = Annotated[When | None, Parameter(converter=_convert_time, metavar="TIME")]
"""A point in time that a user may omit."""
