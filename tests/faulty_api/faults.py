"""Faults on demand: which requests fail, how, and how often.

The body of `PUT /_faults`; every field is optional, and unknown ones are refused:

    latency_ms, latency_jitter_ms   delay before the effect, plus up to the jitter
    error_rate, error_status        return the status (503) without an effect
    throttle_rate                   return 429 with Retry-After: retry_after_seconds (1)
    error_after_rate                return error_status after the effect
    lost_reply_rate                 cut the connection after the effect, without a response
    listing_lag_seconds             listings show the state as of this long ago
    listing_fail_after_pages        a listing fails with 500 after this many pages
    listing_drop_rate               omit each item of a page with this probability
    listing_drop_names              omit these names from listings
    listing_token_seconds           lifetime of continue tokens (0: none) instead of 300 seconds
    seed                            makes the random choices repeatable
    methods                         only requests with these methods (GET, POST, PUT, DELETE)
    name_prefix                     only requests for shapes with this prefix; for a listing,
                                    only the items that may be omitted
    remaining                       number of requests that are still affected; null: all

Rates are probabilities from 0 to 1. A request with several faults counts once.
"""

import random
from typing import Annotated, Final, Literal

import msgspec

from shapes_api.problems import Problem

Rate = Annotated[float, msgspec.Meta(ge=0, le=1)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=600_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
ErrorStatus = Annotated[int, msgspec.Meta(ge=400, le=599)]
Method = Literal["GET", "POST", "PUT", "DELETE"]


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The faults to inject; the default is none."""

    latency_ms: Milliseconds = 0
    latency_jitter_ms: Milliseconds = 0
    error_rate: Rate = 0
    error_status: ErrorStatus = 503
    error_after_rate: Rate = 0
    throttle_rate: Rate = 0
    retry_after_seconds: Count = 1
    lost_reply_rate: Rate = 0
    listing_lag_seconds: Seconds = 0
    listing_fail_after_pages: Count | None = None
    listing_drop_rate: Rate = 0
    listing_drop_names: tuple[str, ...] = ()
    listing_token_seconds: Seconds | None = None
    seed: int | None = None
    methods: tuple[Method, ...] = ("GET", "POST", "PUT", "DELETE")
    name_prefix: str = ""
    remaining: Count | None = None


NO_FAULTS: Final = Faults()


class Verdict(msgspec.Struct):
    """The faults of one request; the default is none."""

    delay_seconds: float = 0
    refusal: Problem | None = None
    failure_after: Problem | None = None
    reply_is_lost: bool = False
    is_counted: bool = False


class FaultInjector:
    """Decides the faults of each request."""

    def __init__(self) -> None:
        self.replace(NO_FAULTS)

    @property
    def faults(self) -> Faults:
        """The current faults; `remaining` is the remaining number of requests."""
        return msgspec.structs.replace(self._faults, remaining=self._remaining)

    def replace(self, faults: Faults) -> None:
        """Replace the faults and restart the random choices."""
        self._faults = faults
        self._remaining = faults.remaining
        self._random = random.Random(faults.seed)

    def judge(self, method: str, name: str | None) -> Verdict:
        """Choose the faults for a request for a shape, or for the collection if it has no name."""
        faults = self._faults
        verdict = Verdict()
        if faults is NO_FAULTS or not self._applies(method):
            return verdict
        if faults.name_prefix and not (name or "").startswith(faults.name_prefix):
            return verdict
        verdict.delay_seconds = self._draw_delay()
        # Every rate draws, so that a seed gives the same choices whichever rates are set.
        throttled, fails, fails_after, is_lost = (
            self._random.random() < rate
            for rate in (
                faults.throttle_rate,
                faults.error_rate,
                faults.error_after_rate,
                faults.lost_reply_rate,
            )
        )
        if throttled:
            verdict.refusal = _throttled(faults.retry_after_seconds)
        elif fails:
            verdict.refusal = _injected(faults.error_status, "before the effect")
        elif fails_after:
            verdict.failure_after = _injected(faults.error_status, "after the effect")
        else:
            verdict.reply_is_lost = is_lost
        if verdict != Verdict():
            self._count(verdict)
        return verdict

    def listing_lag_seconds(self, verdict: Verdict) -> float:
        """Return the lag of this listing."""
        if not self._faults.listing_lag_seconds or not self._listing_applies(verdict):
            return 0
        self._count(verdict)
        return self._faults.listing_lag_seconds

    def listing_token_seconds(self, verdict: Verdict) -> float | None:
        """Return the lifetime of continue tokens; None for the API's default."""
        seconds = self._faults.listing_token_seconds
        return seconds if self._listing_applies(verdict) else None

    def fail_listing(self, verdict: Verdict, page: int) -> None:
        """Raise the fault for the page with this number, if any.

        Raises:
            Problem: 500.
        """
        pages = self._faults.listing_fail_after_pages
        if pages is None or page < pages or not self._listing_applies(verdict):
            return
        self._count(verdict)
        raise _injected(500, f"after {pages} pages")

    def drop_from_listing(self, verdict: Verdict, names: list[str]) -> set[str]:
        """Return the names that are omitted from this page."""
        faults = self._faults
        if not (faults.listing_drop_rate or faults.listing_drop_names):
            return set()
        if not self._listing_applies(verdict):
            return set()
        dropped = {name for name in names if self._is_dropped(name)}
        if dropped:
            self._count(verdict)
        return dropped

    def _is_dropped(self, name: str) -> bool:
        faults = self._faults
        if name in faults.listing_drop_names:
            return True
        may_drop = name.startswith(faults.name_prefix)
        return may_drop and self._random.random() < faults.listing_drop_rate

    def _applies(self, method: str) -> bool:
        method = "GET" if method == "HEAD" else method
        return self._remaining != 0 and method in self._faults.methods

    def _listing_applies(self, verdict: Verdict) -> bool:
        return "GET" in self._faults.methods and (verdict.is_counted or self._remaining != 0)

    def _draw_delay(self) -> float:
        jitter_ms = self._random.random() * self._faults.latency_jitter_ms
        return (self._faults.latency_ms + jitter_ms) / 1000

    def _count(self, verdict: Verdict) -> None:
        if self._remaining is not None and not verdict.is_counted:
            self._remaining -= 1
        verdict.is_counted = True


def _throttled(retry_after_seconds: int) -> Problem:
    detail = f"too many requests: retry in {retry_after_seconds} s"
    return Problem(429, "throttled", detail, {"retry-after": str(retry_after_seconds)})


def _injected(status: int, when: str) -> Problem:
    return Problem(status, "injected-fault", f"a fault was injected {when}")
