"""Backoff: the delay before the next attempt.

Exponential with equal jitter (half fixed, half random), after Brooker, "Exponential Backoff And
Jitter" (AWS Architecture Blog, 2015). The random number is an input.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from events.provider_config import Retry

SPREAD = 0.1
"""Jitter of a delay that the API requests, as a fraction of the delay, to spread the retries."""

MAX_SECONDS = 86_400.0
"""Maximum delay in seconds. An absurd ``Retry-After`` must not suspend a resource permanently."""

MAX_CLOCK_DIFFERENCE_SECONDS = 60.0
"""Maximum difference between the clocks of two deciders, in seconds. A larger one means that a
clock is wrong."""

_MAX_DOUBLINGS = 32


def delay(retry: Retry, failures: int, jitter: float, at_least: float | None = None) -> timedelta:
    """Return the delay after the ``failures``-th consecutive failure (starting at 1).

    ``at_least`` is the delay in seconds that the API requests. It may exceed the policy's
    maximum, but not ``MAX_SECONDS``. Its jitter is up to the initial delay or a fraction of
    ``at_least``, whichever is larger.
    """
    doublings = min(max(failures - 1, 0), _MAX_DOUBLINGS)
    ceiling = min(retry.max_seconds, retry.initial_seconds * 2.0**doublings, MAX_SECONDS)
    seconds = ceiling / 2 + ceiling / 2 * jitter
    if at_least:
        spread = max(min(retry.initial_seconds, retry.max_seconds), at_least * SPREAD)
        seconds = max(seconds, at_least + spread * jitter)
    return timedelta(seconds=min(seconds, MAX_SECONDS))


def is_over(until: datetime, wait_seconds: float, now: datetime) -> bool:
    """Return whether a wait is over, or was set by a clock that was fast.

    A wait that has more time left than its duration was set by a wrong clock. A wait without a
    duration was ended by an event, whose time comes from a decider's clock.
    """
    remaining = (until - now).total_seconds()
    return (
        remaining <= 0
        or wait_seconds == 0
        or remaining > wait_seconds + MAX_CLOCK_DIFFERENCE_SECONDS
    )
