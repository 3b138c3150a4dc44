"""The listings that first missed deleted objects, from the observer's messages in the intake."""

from __future__ import annotations

from nats.aio.client import Client

from events.envelope import decode_intake
from events.intake import Observed
from infra.bus.streams import INTAKE
from infra.jetstream.follow import follow


async def read_listing_times(nc: Client, after: int) -> dict[str, float]:
    """Return the start of the first listing that missed each object, by external name."""
    listing_times: dict[str, float] = {}
    filters = ["in.*.observed.>"]
    async with follow(nc, INTAKE, filters=filters, start_seq=after + 1) as messages:
        async for batch in messages.replay():
            for message in batch:
                data = decode_intake(message.payload, expected="observed", fallback_id="").data
                if isinstance(data, Observed) and data.object is None and data.began_at:
                    listing_times.setdefault(data.external_name, data.began_at.timestamp())
    return listing_times
