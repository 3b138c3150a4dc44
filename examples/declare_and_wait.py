"""Declare a resource, wait until it exists, change its colour, and withdraw it again.

    python examples/declare_and_wait.py [name]

The bus is that of the environment variable RECONCILER_NATS_URL.
"""

import asyncio
import os
import sys

from reconciler.sdk import BusError, ReconcilerError, connect

NATS_URL = os.environ.get("RECONCILER_NATS_URL") or sys.exit(
    "RECONCILER_NATS_URL: not set; `./run reconciler config view` shows the URL of `./run up`"
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
            answer = await client.declare(manifest(name, color))
            outcome = await client.wait_for(key, generation=answer.generation)
            print(f"{key} {color}: {outcome.outcome}, generation {outcome.generation}")
        answer = await client.withdraw(key)
        outcome = await client.wait_for(key, generation=answer.generation)
        print(f"{key} withdrawn: {outcome.outcome}, generation {outcome.generation}")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "foo"))
    except BusError as error:
        sys.exit(f"{error} (`./run up` starts a server, RECONCILER_NATS_URL names another)")
    except ReconcilerError as error:  # refused, or not in time
        sys.exit(str(error))
