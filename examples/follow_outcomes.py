"""Follow all outcomes from where the last run ended, and print each as a line of JSON.

    python examples/follow_outcomes.py <durable name> [limit]

The server stores the position of the processed outcomes under the durable name. After a crash
between printing and the next iteration, an outcome is printed twice, but none is lost.
"""

import asyncio
import os
import sys

import msgspec

from reconciler.sdk import BusError, ReconcilerError, connect

NATS_URL = os.environ.get("RECONCILER_NATS_URL") or sys.exit(
    "RECONCILER_NATS_URL is not set; `./run reconciler config view` shows the URL of `./run up`"
)


async def main(durable: str, limit: int) -> None:
    printed = 0
    async with (
        connect(NATS_URL, source="examples/follow_outcomes", timeout_seconds=5) as client,
        client.outcomes(after=0, durable=durable) as outcomes,
    ):
        async for outcome in outcomes:
            print(msgspec.json.encode(outcome).decode(), flush=True)
            printed += 1
            if printed == limit:
                await outcomes.ack()  # otherwise, the request for the next one would
                break


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) not in (1, 2) or not all(text.isdecimal() for text in arguments[1:]):
        sys.exit("usage: python examples/follow_outcomes.py <durable name> [limit]")
    try:
        asyncio.run(main(arguments[0], int(arguments[1]) if len(arguments) > 1 else 0))
    except BusError as error:
        sys.exit(
            f"{error} (start a server with `./run up`, or set RECONCILER_NATS_URL to another one)"
        )
    except ReconcilerError as error:
        sys.exit(str(error))
