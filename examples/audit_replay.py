"""Print the objects that Reconciler owned at a given time, and their claiming events, from the log.

python examples/audit_replay.py 2026-11-21T12:00:00Z
"""

import asyncio
import os
import sys
from datetime import UTC, datetime

from projections.read_models import ReadModels
from reconciler.sdk import BusError, ReconcilerError, connect

NATS_URL = os.environ.get("RECONCILER_NATS_URL") or sys.exit(
    "RECONCILER_NATS_URL is not set; `./run reconciler config view` shows the URL of `./run up`"
)


async def owned_at(time: datetime) -> ReadModels:
    """Return the read models as of a given time, by folding the log up to it."""
    models = ReadModels()
    async with connect(NATS_URL, source="examples/audit_replay", timeout_seconds=5) as client:
        async for batch in client.replay():
            for position, event in batch:
                if event.time <= time:
                    models.apply(position, event)
    return models


async def main(time: datetime) -> None:
    models = await owned_at(time)
    print(f"at {time.isoformat()}, after position {models.position} of the log:")
    for name, row in sorted(models.ownership.items()):
        if row.owned:
            print(f"{name} owned {row.external_name} (uid {row.uid}): {row.reason} by {row.since}")


if __name__ == "__main__":
    try:
        time_argument = (
            datetime.fromisoformat(sys.argv[1]) if len(sys.argv) > 1 else datetime.now(UTC)
        )
    except ValueError as error:
        sys.exit(f"{error}\nusage: python examples/audit_replay.py [2026-11-21T12:00:00Z]")
    try:
        asyncio.run(
            main(time_argument if time_argument.tzinfo else time_argument.replace(tzinfo=UTC))
        )
    except BusError as error:
        sys.exit(
            f"{error} (start a server with `./run up`, or set RECONCILER_NATS_URL to another one)"
        )
    except ReconcilerError as error:
        sys.exit(str(error))
