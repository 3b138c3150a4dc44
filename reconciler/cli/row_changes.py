"""Follow the rows of resources: fold new events of the log into the read models."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from nats.aio.client import Client

from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.cli.folded_log import log_of


async def row_changes(nc: Client, models: ReadModels) -> AsyncGenerator[list[StatusRow]]:
    """Yield the changed rows each time the log has grown, without end.

    A yielded row that is missing in the models belongs to a deleted resource.
    """
    async with (await log_of(nc)).follow(models.position) as feed:
        while True:
            events = await feed.next_events()
            if events:
                changed = {event.subject: models.apply(at, event) for at, event in events}
                yield list(changed.values())
