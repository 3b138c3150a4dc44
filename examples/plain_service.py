"""A service that declares a Shape and follows its outcome, with nats-py and without the SDK.

    python examples/plain_service.py [name]

RECONCILER_NKEY names the file with the service's seed. NAMESPACE is its namespace, "default"
by default; the service's user has the same name. docs/security.md lists the permissions of a
service and explains the names of its inbox and its consumer.
"""

# pyright: reportUnknownMemberType=false

import asyncio
import json
import os
import sys
import uuid

import nats
import nats.errors

NATS_URL = os.environ.get("RECONCILER_NATS_URL") or sys.exit(
    "RECONCILER_NATS_URL is not set; `./run reconciler config view` shows the URL of `./run up`"
)
NAMESPACE = os.environ.get("NAMESPACE", "default")
OUTCOMES = f"log.{NAMESPACE}.*.*.outcome.*"


async def ignore(_error: Exception) -> None:
    """Log nothing: each error that ends the program is also raised."""


async def main(name: str) -> None:
    # A long-running service would keep the default, which retries for two minutes.
    nc = await nats.connect(
        NATS_URL,
        nkeys_seed=os.environ["RECONCILER_NKEY"],
        inbox_prefix=f"_INBOX.{NAMESPACE}",
        max_reconnect_attempts=1,
        error_cb=ignore,
    )
    # `reconciler init --namespace` created this consumer, which stores the service's position.
    # The program needs only new outcomes, so it resets the consumer to the end of the log.
    newest = await nc.request(f"$JS.API.DIRECT.GET.LOG_1.{OUTCOMES}")
    position = int((newest.headers or {}).get("Nats-Sequence", 0))
    reset = await nc.request(
        f"$JS.API.CONSUMER.RESET.LOG_1.{NAMESPACE}", json.dumps({"seq": position + 1}).encode()
    )
    assert "error" not in json.loads(reset.data), reset.data

    manifest = {
        "apiVersion": "shapes/v1",
        "kind": "Shape",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"type": "Circle", "color": "Blue"},
    }
    inbox = nc.new_inbox()
    replies = await nc.subscribe(inbox)
    await nc.request(
        f"rec.desired={NAMESPACE}.{NAMESPACE}.Shape.{name}",  # USER.NAMESPACE.KIND.NAME
        json.dumps(manifest).encode(),
        headers={"Nats-Msg-Id": uuid.uuid4().hex, "Reconciler-Reply-To": inbox},
    )
    reply = json.loads((await replies.next_msg(timeout=10)).data)
    print(f"reply: {reply['reason']}, generation {reply['generation']}")

    outcome: dict[str, object] = {"outcome": reply["reason"]}
    delivery = nc.new_inbox()  # messages arrive here with the subject of the outcome
    outcomes = await nc.subscribe(delivery)
    while outcome["outcome"] not in ("Converged", "Unchanged", "Invalid"):
        await nc.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.LOG_1.{NAMESPACE}",
            json.dumps({"batch": 1, "expires": 30_000_000_000}).encode(),
            reply=delivery,
        )
        message = await outcomes.next_msg(timeout=35)
        if message.reply:  # the subject for the acknowledgement; a status message has none
            await nc.publish(message.reply, b"+ACK")
            event = json.loads(message.data)
            if event["subject"] == f"{NAMESPACE}/Shape/{name}":
                outcome = event["data"]
    print(f"{NAMESPACE}/Shape/{name}: {outcome['outcome']}, generation {outcome['generation']}")
    await nc.close()


if __name__ == "__main__":
    if "RECONCILER_NKEY" not in os.environ:
        sys.exit(
            "usage: RECONCILER_NKEY=<file with the seed> python examples/plain_service.py [name]"
        )
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "foo"))
    except (OSError, nats.errors.Error) as error:
        sys.exit(
            f"cannot reach {NATS_URL}: {error} "
            "(start a server with `./run up`, or set RECONCILER_NATS_URL to another one)"
        )
