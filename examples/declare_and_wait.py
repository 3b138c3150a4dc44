"""Declare a resource, wait until it exists, change its color, and withdraw it.

    python examples/declare_and_wait.py [name]

The environment variable RECONCILER_NATS_URL sets the URL of the bus.
"""

import asyncio
import os
import sys

from reconciler.sdk import BusError, ReconcilerError, connect

NATS_URL = os.environ.get("RECONCILER_NATS_URL") or sys.exit(
    "RECONCILER_NATS_URL is not set; `./run reconciler config view` shows the URL of `./run up`"
)


def manifest(name: str, color: str) -> dict[str, object]:
    return {
        "apiVersion": "shapes/v1",
        "kind": "Shape",
        "metadata": {"name": name},
        "spec": {"type": "Square", "color": color},
    }


async def main(name: str) -> None:
    key = f"default/Shape/{name}"
    async with connect(NATS_URL, source="examples/declare_and_wait", timeout_seconds=5) as client:
        for color in ("Red", "Purple"):
            reply = await client.declare(manifest(name, color))
            outcome = await client.wait_for(key, generation=reply.generation)
            print(f"{key} {color}: {outcome.outcome}, generation {outcome.generation}")
        reply = await client.withdraw(key)
        outcome = await client.wait_for(key, generation=reply.generation)
        print(f"{key} withdrawn: {outcome.outcome}, generation {outcome.generation}")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "foo"))
    except BusError as error:
        sys.exit(
            f"{error} (start a server with `./run up`, or set RECONCILER_NATS_URL to another one)"
        )
    except ReconcilerError as error:  # rejected, or a timeout
        sys.exit(str(error))
