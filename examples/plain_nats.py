"""Declare a resource and read its outcomes with only nats-py and JSON, without the SDK.

python examples/plain_nats.py [name]
"""

# pyright: reportUnknownMemberType=false

import asyncio
import json
import os
import sys
import uuid

import nats
import nats.errors
from nats.js.api import ConsumerConfig, DeliverPolicy

NATS_URL = os.environ.get("RECONCILER_NATS_URL") or sys.exit(
    "RECONCILER_NATS_URL is not set; `./run reconciler config view` shows the URL of `./run up`"
)


async def ignore(_error: Exception) -> None:
    """Log nothing: each error that ends the program is also raised."""


async def main(name: str) -> None:
    # A long-running program would keep the default, which retries for two minutes.
    nc = await nats.connect(NATS_URL, max_reconnect_attempts=1, error_cb=ignore)
    js = nc.jetstream()
    outcomes = await js.subscribe(
        f"log.default.Shape.{name}.outcome.*",
        stream="LOG_1",
        ordered_consumer=True,
        config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW),
    )
    inbox = nc.new_inbox()
    replies = await nc.subscribe(inbox)

    manifest = {
        "apiVersion": "shapes/v1",
        "kind": "Shape",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"type": "Circle", "color": "Blue"},
    }
    stored = await js.publish(
        f"rec.desired.default.Shape.{name}",
        json.dumps(manifest).encode(),
        headers={"Nats-Msg-Id": uuid.uuid4().hex, "Reconciler-Reply-To": inbox},
    )
    print(f"stored in {stored.stream} at {stored.seq}")

    reply = json.loads((await replies.next_msg(timeout=10)).data)
    print(f"reply: {reply['reason']}, generation {reply['generation']}")
    while reply["reason"] == "Accepted":
        event = json.loads((await outcomes.next_msg(timeout=30)).data)
        outcome = event["data"]
        print(f"outcome: {outcome['outcome']}, generation {outcome['generation']}")
        if outcome["outcome"] == "Converged" and outcome["generation"] == reply["generation"]:
            break
    await nc.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "foo"))
    except (OSError, nats.errors.Error) as error:
        sys.exit(
            f"cannot reach {NATS_URL}: {error} "
            "(start a server with `./run up`, or set RECONCILER_NATS_URL to another one)"
        )
