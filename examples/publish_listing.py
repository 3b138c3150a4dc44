"""Publish a complete listing of an API's objects in a scope, like another team's observer.

    python examples/publish_listing.py default Shape < objects.json

The input is a JSON array of objects with a name, a uid, fields and labels. The listing is
completed only after all objects have been read. An aborted one proves nothing and deletes nothing.
"""

import asyncio
import os
import sys

import msgspec

from reconciler.sdk import BusError, ExternalObject, ReconcilerError, connect

NATS_URL = os.environ.get("RECONCILER_NATS_URL") or sys.exit(
    "RECONCILER_NATS_URL is not set; `./run reconciler config view` shows the URL of `./run up`"
)


async def main(provider_config: str, kind: str) -> None:
    async with (
        connect(NATS_URL, source="examples/publish_listing", timeout_seconds=5) as client,
        client.listing(provider_config, kind) as listing,
    ):
        # Read the API inside the block, because its start is the logical time of the observations.
        for existing in msgspec.json.decode(sys.stdin.buffer.read(), type=list[ExternalObject]):
            await listing.add(existing)
    print(f"published {listing.count} objects")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/publish_listing.py <ProviderConfig> <kind> < objects.json")
    try:
        asyncio.run(main(sys.argv[1], sys.argv[2]))
    except BusError as error:
        sys.exit(
            f"{error} (start a server with `./run up`, or set RECONCILER_NATS_URL to another one)"
        )
    except ReconcilerError as error:
        sys.exit(str(error))
