"""Faults on demand: what shall go wrong, for which requests, how often.

The document of `PUT /_faults`; every field is optional, unknown ones are refused:

    latency_ms, latency_jitter_ms   wait so long (plus up to the jitter) before the effect
    error_rate, error_status        answer the status (503) instead of doing anything
    throttle_rate                   answer 429 with Retry-After: retry_after_seconds (1)
    error_after_rate                do it, then answer error_status
    lost_reply_rate                 do it, then cut the connection without an answer
    listing_lag_seconds             listings show the state of so long ago
    listing_fail_after_pages        a listing's pages fail with 500 after so many
    listing_drop_rate               leave each item out of a page with this probability
    listing_drop_names              leave these out of listings
    listing_token_seconds           continue tokens live so long (0: not at all), not 300 seconds
    seed                            makes the random choices repeatable
    methods                         only requests with these (GET, POST, PUT, DELETE)
    name_prefix                     only requests about shapes whose name starts so; of a listing,
                                    only the items that may be left out
    remaining                       how many more requests are hit; null means for ever

Rates are probabilities from 0 to 1. A request that several faults touch counts once.
"""

from typing import Annotated, Final, Literal

import msgspec

Rate = Annotated[float, msgspec.Meta(ge=0, le=1)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=600_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
ErrorStatus = Annotated[int, msgspec.Meta(ge=400, le=599)]
Method = Literal["GET", "POST", "PUT", "DELETE"]


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shall go wrong; the default is nothing."""

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
