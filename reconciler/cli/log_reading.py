"""One reading of the log for all checks: its read models, what cannot be read, what is missing."""

from __future__ import annotations

from collections.abc import Callable

from nats.aio.client import Client

from events.envelope import InvalidMessageError, decode_log
from infra.bus.rows import JetStreamRows
from infra.bus.streams import SHAPES
from infra.jetstream.follow import follow
from infra.jetstream.reads import StoredMessage, stream_state
from projections.read_models import OutdatedRowsError, ReadModels, restore

MOST_EVENTS = 300_000
"""A longer log is read from where the stored rows end, unless all of it is asked for."""

_SHOWN = 3


class LogReading:
    """What the log says, up to ``position``; ``since`` is the position before the first one read.

    ``unreadable`` and ``gaps`` name the first few of those, ``unreadable_count`` and ``gap_count``
    count all: events that this release cannot read, and versions of shapes that are not there.
    """

    def __init__(self, models: ReadModels) -> None:
        self.models = models
        self.since = self.position = models.position
        self.events = 0
        self.unreadable: list[str] = []
        self.unreadable_count = 0
        self.gaps: list[str] = []
        self.gap_count = 0
        self._versions = {name: row.version for name, row in models.status.items()}

    async def read_on(
        self, nc: Client, progress: Callable[[int], object] = lambda _position: None
    ) -> None:
        """Read up to what is the end now."""
        if (await stream_state(nc, SHAPES)).last_seq <= self.position:
            return
        async with follow(nc, SHAPES, start_seq=self.position + 1) as follower:
            async for messages in follower.replay():
                for message in messages:
                    self._take(message)
                progress(self.position)

    def _take(self, message: StoredMessage) -> None:
        self.position = message.seq
        self.events += 1
        try:
            event = decode_log(message.payload)
            self._count(event.subject, event.shapeversion, message.seq)
            self.models.apply(message.seq, event)
        except (InvalidMessageError, ValueError) as error:
            self.unreadable_count += 1
            if len(self.unreadable) < _SHOWN:
                self.unreadable.append(f"{message.subject} at {message.seq}: {str(error)[:120]}")

    def _count(self, shape: str, version: int, position: int) -> None:
        """Compare with the version before; of what a part of the log begins with it is unknown."""
        known = self._versions.get(shape, None if self.since else 0)
        if known is not None and version != known + 1:
            self.gap_count += 1
            if len(self.gaps) < _SHOWN:
                self.gaps.append(f"{shape} has {version} behind {known} at {position}")
        self._versions[shape] = version


async def read_whole_log(
    nc: Client,
    *,
    full: bool,
    progress: Callable[[int], object] = lambda _position: None,
) -> LogReading:
    """Read the log: all of it, or from the stored rows on where that is too much."""
    state = await stream_state(nc, SHAPES)
    models = ReadModels()
    if not full and state.messages > MOST_EVENTS:
        try:
            models = restore(await JetStreamRows(nc).load())
        except OutdatedRowsError:
            models = ReadModels()
    reading = LogReading(models)
    await reading.read_on(nc, progress)
    return reading
