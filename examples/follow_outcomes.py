"""Follow all outcomes, going on where the last run ended: one line each, as JSON.

    python examples/follow_outcomes.py <durable name> [how many]

The server remembers under the durable name what was dealt with. A crash between printing and the
next step of the loop prints an outcome twice, and never loses one.
"""

import asyncio
import os
import sys

import msgspec

from reconciler.sdk import BusError, ReconcilerError, connect

NATS_URL = os.environ.get("RECONCILER_NATS_URL") or sys.exit(
    "RECONCILER_NATS_URL: not set; `./run reconciler config view` shows the URL of `./run up`"
)


async def main(durable: str, how_many: int) -> None:
    position = 0
    async with (
        connect(NATS_URL, source="examples/follow_outcomes", timeout_seconds=5) as client,
        client.outcomes(after=0, durable=durable) as outcomes,
    ):
        async for outcome in outcomes:
            print(msgspec.json.encode(outcome).decode(), flush=True)
            position += 1
            if position == how_many:
                await outcomes.ack()  # a loop that is left has not asked for the next one
                break


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) not in (1, 2) or not all(text.isdecimal() for text in arguments[1:]):
        sys.exit("usage: python examples/follow_outcomes.py <durable name> [how many]")
    try:
        asyncio.run(main(arguments[0], int(arguments[1]) if len(arguments) > 1 else 0))
    except BusError as error:
        sys.exit(f"{error} (`./run up` starts a server, RECONCILER_NATS_URL names another)")
    except ReconcilerError as error:
        sys.exit(str(error))
