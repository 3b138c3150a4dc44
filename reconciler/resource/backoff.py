"""Back-off: how long to wait before the next attempt.

Exponential with full upper jitter ("equal jitter": half fixed, half random), after Brooker,
"Exponential Backoff And Jitter" (AWS Architecture Blog, 2015). The randomness is an input.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from events.provider_config import Retry

SPREAD = 0.1
"""Share of the API's own wish by which resources come later: not all at once."""

MAX_SECONDS = 86_400.0
"""No wait is longer: an absurd ``Retry-After`` must not put a resource to sleep for ever."""

CLOCKS_DIFFER_SECONDS = 60.0
"""By so much the clocks of deciders may differ; by more, one of them was wrong."""

_MAX_DOUBLINGS = 32


def delay(retry: Retry, failures: int, jitter: float, at_least: float | None = None) -> timedelta:
    """Return the wait after the ``failures``-th failure in a row (from 1).

    ``at_least`` is the API's own wish in seconds, which is honoured even beyond the maximum, but
    not beyond ``MAX_SECONDS``, and is spread by what is longer: a first wait, or a share of it.
    """
    doublings = min(max(failures - 1, 0), _MAX_DOUBLINGS)
    ceiling = min(retry.max_seconds, retry.initial_seconds * 2.0**doublings, MAX_SECONDS)
    seconds = ceiling / 2 + ceiling / 2 * jitter
    if at_least:
        spread = max(min(retry.initial_seconds, retry.max_seconds), at_least * SPREAD)
        seconds = max(seconds, at_least + spread * jitter)
    return timedelta(seconds=min(seconds, MAX_SECONDS))


def is_over(until: datetime, wait_seconds: float, now: datetime) -> bool:
    """Return whether a wait is over: its time has come, or it was set by a clock that ran ahead.

    No wait can have more left than it had when it began.
    """
    left = (until - now).total_seconds()
    return left <= 0 or left > wait_seconds + CLOCKS_DIFFER_SECONDS
