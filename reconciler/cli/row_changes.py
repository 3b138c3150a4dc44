"""Follow changes to rows by folding new log events into the read models."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from nats.aio.client import Client

from events.log import ApiFellSilent, ApiSilenceEnded
from infra.bus.event_log import open_log
from projections.read_models import ReadModels
from projections.status import StatusRow

_SILENCE_EVENTS: Final = (ApiFellSilent, ApiSilenceEnded)


async def row_changes(nc: Client, models: ReadModels) -> AsyncGenerator[list[StatusRow]]:
    """Yield the changed rows each time the log grows; never ends.

    A yielded row that is missing from the models belongs to a deleted resource. After a change in
    whether an API responds, yield all rows, because the shown readiness may have changed.
    """
    async with (await open_log(nc)).follow(models.position) as feed:
        while True:
            events = await feed.next_events()
            if events:
                changed = {event.subject: models.apply(at, event) for at, event in events}
                if any(
                    isinstance(event.data, ApiFellSilent | ApiSilenceEnded) for _, event in events
                ):
                    changed = {**models.status, **changed}
                yield list(changed.values())
