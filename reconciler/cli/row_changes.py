"""The rows of resources as they change: the log folded on as it grows."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from nats.aio.client import Client

from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.cli.folded_log import log_of


async def row_changes(nc: Client, models: ReadModels) -> AsyncGenerator[list[StatusRow]]:
    """Yield the rows that changed, each time that the log has grown: for ever.

    A row that is yielded and not among the models any more is of a resource that is gone.
    """
    async with (await log_of(nc)).follow(models.position) as feed:
        while True:
            events = await feed.next_events()
            if events:
                changed = {event.subject: models.apply(at, event) for at, event in events}
                yield list(changed.values())
