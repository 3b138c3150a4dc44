"""A service with an nkey of its own and the permissions of one namespace, with nats-py alone.

    python examples/plain_service.py [name]

RECONCILER_NKEY names the file with the seed; the service's user is called as its namespace, which
is that of NAMESPACE, "default" by default. See docs/security.md for what it may do, and why its
inbox and its consumer have these names.
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
    "RECONCILER_NATS_URL: not set; `./run reconciler config view` shows the URL of `./run up`"
)
NAMESPACE = os.environ.get("NAMESPACE", "default")
OUTCOMES = f"log.{NAMESPACE}.*.*.outcome.*"


async def ignore(_error: Exception) -> None:
    """What ends the program is raised, and need not be logged, too."""


async def main(name: str) -> None:
    # A service that stays would try for longer than this one: the default is two minutes.
    nc = await nats.connect(
        NATS_URL,
        nkeys_seed=os.environ["RECONCILER_NKEY"],
        inbox_prefix=f"_INBOX.{NAMESPACE}",
        max_reconnect_attempts=1,
        error_cb=ignore,
    )
    # The namespace's own consumer, which `reconciler init --namespace` made. It remembers what was
    # dealt with. This program wants only what comes from now on, so it resets the consumer.
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
    answers = await nc.subscribe(inbox)
    await nc.request(
        f"rec.desired={NAMESPACE}.{NAMESPACE}.Shape.{name}",  # in the name of this user
        json.dumps(manifest).encode(),
        headers={"Nats-Msg-Id": uuid.uuid4().hex, "Reconciler-Reply-To": inbox},
    )
    answer = json.loads((await answers.next_msg(timeout=10)).data)
    print(f"answer: {answer['reason']}, generation {answer['generation']}")

    outcome: dict[str, object] = {"outcome": answer["reason"]}
    came = nc.new_inbox()  # not a request: what comes has the outcome's subject, not the inbox's
    outcomes = await nc.subscribe(came)
    while outcome["outcome"] not in ("Converged", "Unchanged", "Invalid"):
        await nc.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.LOG_1.{NAMESPACE}",
            json.dumps({"batch": 1, "expires": 30_000_000_000}).encode(),
            reply=came,
        )
        message = await outcomes.next_msg(timeout=35)
        if message.reply:  # where it is acknowledged; an end of the request has none
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
            "(`./run up` starts a server, RECONCILER_NATS_URL names another)"
        )
