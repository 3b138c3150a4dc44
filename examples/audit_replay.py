"""What did we own at a time? Answered from the log alone, with the event that made it ours.

python examples/audit_replay.py 2026-11-21T12:00:00Z
"""

import asyncio
import os
import sys
from datetime import UTC, datetime

from projections.read_models import ReadModels
from reconciler.sdk import BusError, ReconcilerError, connect

NATS_URL = os.environ.get("RECONCILER_NATS_URL") or sys.exit(
    "RECONCILER_NATS_URL: not set; `./run reconciler config view` shows the URL of `./run up`"
)


async def owned_at(moment: datetime) -> ReadModels:
    """Fold the log up to a moment: the read models as they were then."""
    models = ReadModels()
    async with connect(NATS_URL, source="examples/audit_replay", timeout_seconds=5) as client:
        async for batch in client.replay():
            for position, event in batch:
                if event.time <= moment:
                    models.apply(position, event)
    return models


async def main(moment: datetime) -> None:
    models = await owned_at(moment)
    print(f"at {moment.isoformat()}, after position {models.position} of the log:")
    for name, row in sorted(models.ownership.items()):
        if row.owned:
            print(f"{name} owned {row.external_name} (uid {row.uid}): {row.reason} by {row.since}")


if __name__ == "__main__":
    try:
        given = datetime.fromisoformat(sys.argv[1]) if len(sys.argv) > 1 else datetime.now(UTC)
    except ValueError as error:
        sys.exit(f"{error}\nusage: python examples/audit_replay.py [2026-11-21T12:00:00Z]")
    try:
        asyncio.run(main(given if given.tzinfo else given.replace(tzinfo=UTC)))
    except BusError as error:
        sys.exit(f"{error} (`./run up` starts a server, RECONCILER_NATS_URL names another)")
    except ReconcilerError as error:
        sys.exit(str(error))
