"""Decides for each request what goes wrong with it, by the faults in force."""

import random

import msgspec

from infra.shapes_api.faults import NO_FAULTS, Faults
from infra.shapes_api.problems import ProblemError


class Verdict(msgspec.Struct):
    """What happens to one request; the default is nothing."""

    delay_seconds: float = 0
    refusal: ProblemError | None = None
    failure_after: ProblemError | None = None
    reply_is_lost: bool = False
    is_counted: bool = False


class FaultInjector:
    """Decides for each request what goes wrong with it."""

    def __init__(self) -> None:
        self.replace(NO_FAULTS)

    @property
    def faults(self) -> Faults:
        """The faults in force; `remaining` is what remains of it."""
        return msgspec.structs.replace(self._faults, remaining=self._remaining)

    def replace(self, faults: Faults) -> None:
        """Put other faults in force and start the random choices anew."""
        self._faults = faults
        self._remaining = faults.remaining
        self._random = random.Random(faults.seed)  # noqa: S311 - not a secret

    def judge(self, method: str, name: str | None) -> Verdict:
        """Decide about a request on a shape, or on the collection when it has no name."""
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
        """Return how far behind this listing is."""
        if not self._faults.listing_lag_seconds or not self._listing_applies(verdict):
            return 0
        self._count(verdict)
        return self._faults.listing_lag_seconds

    def listing_token_seconds(self, verdict: Verdict) -> float | None:
        """Return how long continue tokens live, None for as long as always."""
        seconds = self._faults.listing_token_seconds
        return seconds if self._listing_applies(verdict) else None

    def fail_listing(self, verdict: Verdict, page: int) -> None:
        """Fail the page of that number if it is to fail.

        Raises:
            ProblemError: 500.
        """
        pages = self._faults.listing_fail_after_pages
        if pages is None or page < pages or not self._listing_applies(verdict):
            return
        self._count(verdict)
        raise _injected(500, f"after {pages} pages")

    def drop_from_listing(self, verdict: Verdict, names: list[str]) -> set[str]:
        """Return the names that are left out of this page."""
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


def _throttled(retry_after_seconds: int) -> ProblemError:
    return ProblemError(
        429,
        f"too many requests: repeat in {retry_after_seconds} s",
        kind="throttled",
        headers=(("retry-after", str(retry_after_seconds)),),
    )


def _injected(status: int, when: str) -> ProblemError:
    return ProblemError(status, f"a fault was injected {when}", kind="injected-fault")
