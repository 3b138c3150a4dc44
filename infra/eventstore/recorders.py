"""The library's recorders on JetStream."""

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    Notification,
    ProcessRecorder,
    Recorder,
    StoredEvent,
    Subscription,
    Tracking,
    TrackingRecorder,
)

from infra.eventstore.bus import Bus
from infra.eventstore.layout import EventLayout, TrackingLayout
from infra.eventstore.subscription import JetStreamSubscription
from infra.eventstore.writer import EventWriter, SnapshotWriter
from infra.jetstream.reads import StoredMessage, last_from_leader, read_subject
from infra.jetstream.sequences import EMPTY, Entry
from infra.jetstream.topology import ensure_stream

# A filter on topics may drop most events on a page, so a larger page saves round trips.
_MIN_PAGE: Final = 500


class JetStreamRecorder(Recorder):
    """Base class for the recorders. Subclasses keep the constructor's arguments."""

    writer_class: type[EventWriter] = EventWriter

    def __init__(self, bus: Bus, layout: EventLayout) -> None:
        self.bus = bus
        self.layout = layout
        self.writer = self.writer_class(bus.nc, layout, timeout=bus.timeout)

    def create_stream(self, replicas: int = 1) -> None:
        """Create the stream, or update its configuration.

        Raises:
            OperationalError: the stream cannot be changed in place, or the bus does not respond.
            ProgrammingError: this module may not create the layout's stream.
        """
        self.bus.call(ensure_stream(self.bus.nc, self.layout.stream_config(replicas)))


class JetStreamAggregateRecorder(JetStreamRecorder, AggregateRecorder):
    """Aggregate events. Each aggregate is a sequence with compare-and-set."""

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Store all events or none. Always return None.

        Raises:
            IntegrityError: an aggregate already has one of the versions.
            DataError: there are over 1,000 events, or one is too large or does not fit the layout.
            OperationalError: no response, so it is unknown whether they were stored. Read before
                you repeat the call.
        """
        self.insert_entries(stored_events, **kwargs)

    def insert_entries(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> list[int]:
        """Store all events or none, and return their positions in the stream.

        Raises the same errors as `insert_events`.
        """
        entries = self.entries(stored_events, **kwargs)
        numbers = self.bus.call(self.writer.append(entries)) if entries else []
        return numbers[: len(stored_events)]

    def entries(self, stored_events: Sequence[StoredEvent], **_: Any) -> list[Entry]:
        """Return the entries of one insert, starting with the events. Subclasses may add others."""
        return [self.layout.encode(event) for event in stored_events]

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Read an aggregate's events by version; raises the same errors as `select_history`."""
        events = self.select_history(originator_id, gt=gt, lte=lte, desc=desc, limit=limit)
        return [
            StoredEvent(event.originator_id, event.originator_version, event.topic, event.state)
            for event in events
        ]

    def select_history(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[Notification]:
        """Read an aggregate's events by version, with their positions in the stream.

        Raises:
            OperationalError: no response.
            InternalError: the layout detected damage to the log.
        """
        return self.bus.call(self._select(originator_id, gt, lte, desc, limit))

    async def _select(
        self,
        originator_id: UUID | str,
        gt: int | None,
        lte: int | None,
        desc: bool,
        limit: int | None,
    ) -> list[Notification]:
        sequence = self.layout.sequence_of(originator_id)
        if desc and limit == 1:
            message = await self._newest(sequence)
            if message is None:
                return []
            last, version = self.layout.decode(message), self.layout.version_of(message)
            # A late snapshot is not the newest version, so read all snapshots.
            if last.originator_version == version and (lte is None or version <= lte):
                return _select_range([last], gt=gt, lte=lte, desc=desc, limit=limit)
        after = self.writer.sequences.heads.get(sequence) or EMPTY
        if after.version is None or gt is None or gt < after.version:
            after = EMPTY  # events before the cached head are also requested
        messages = await self.writer.sequences.read(sequence, after=after.position)
        events = self.layout.history(messages, after, lte)
        return _select_range(events, gt=gt, lte=lte, desc=desc, limit=limit)

    async def _newest(self, sequence: str) -> StoredMessage | None:
        newest = await self.writer.sequences.newest([sequence], from_leader=False)
        return newest.get(sequence)


class JetStreamSnapshotRecorder(JetStreamAggregateRecorder):
    """Snapshots in a separate stream, unique by aggregate and version."""

    writer_class = SnapshotWriter


class JetStreamApplicationRecorder(JetStreamAggregateRecorder, ApplicationRecorder):
    """Aggregate events in stream order, with stream sequences as notification ids."""

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Store all events or none, and return their notification ids.

        Raises the same errors as an aggregate recorder.
        """
        return self.insert_entries(stored_events, **kwargs)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Read a page of the log; raises `OperationalError` if the bus does not respond."""
        first = start or 0
        if start is not None and not inclusive_of_start:
            first += 1
        return self.bus.call(self._page(max(1, first), limit, stop, topics))

    async def _page(
        self, start: int, limit: int, stop: int | None, topics: Sequence[str]
    ) -> list[Notification]:
        layout = self.layout
        notifications: list[Notification] = []
        page_size = max(limit, _MIN_PAGE) if topics else limit
        while len(notifications) < limit:
            page = await read_subject(
                self.bus.nc, layout.stream, layout.events_filter, start_seq=start, limit=page_size
            )
            decoded = (
                layout.decode(message) for message in page if stop is None or message.seq <= stop
            )
            notifications += [event for event in decoded if not topics or event.topic in topics]
            if len(page) < page_size or (stop is not None and page[-1].seq >= stop):
                break
            start = page[-1].seq + 1
        return notifications[:limit]

    def max_notification_id(self) -> int | None:
        """Return the position of the last event from the stream's leader, or None."""
        layout = self.layout
        last = self.bus.call(last_from_leader(self.bus.nc, layout.stream, layout.events_filter))
        return last.seq if last else None

    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> Subscription[ApplicationRecorder]:
        """Follow the log after `gt`, including new events."""
        return JetStreamSubscription(self, self.bus, self.layout, gt=gt, topics=topics)


class JetStreamTrackingRecorder(JetStreamRecorder, TrackingRecorder):
    """Tracking records in the application's stream, one sequence per tracked application."""

    def __init__(self, bus: Bus, layout: TrackingLayout) -> None:
        super().__init__(bus, layout)
        self.tracking_layout = layout

    def insert_tracking(self, tracking: Tracking) -> None:
        """Store a position, which must be higher than that application's earlier ones.

        Raises:
            IntegrityError: that position, or a later one, already exists.
            OperationalError: no response, so it is unknown whether it was stored. Read before you
                repeat the call.
        """
        self.bus.call(self.writer.append([self.tracking_layout.encode_tracking(tracking)]))

    def max_tracking_id(self, application_name: str) -> int | None:
        """Return the last position from the stream's leader, or None."""
        sequence = self.tracking_layout.tracking_sequence_of(application_name)
        last = self.bus.call(last_from_leader(self.bus.nc, self.layout.stream, sequence))
        return self.layout.version_of(last) if last else None


class JetStreamProcessRecorder(
    JetStreamTrackingRecorder, JetStreamApplicationRecorder, ProcessRecorder
):
    """Events and a tracking record in one atomic batch.

    A tracking record takes up a stream position, so notification ids have gaps.
    """

    def entries(
        self, stored_events: Sequence[StoredEvent], *, tracking: Tracking | None = None, **_: Any
    ) -> list[Entry]:
        """Return the events' entries, followed by the entry of the tracking record."""
        entries = super().entries(stored_events)
        if tracking is not None:
            entries.append(self.tracking_layout.encode_tracking(tracking))
        return entries


def _select_range(
    events: Iterable[Notification],
    *,
    gt: int | None,
    lte: int | None,
    desc: bool,
    limit: int | None,
) -> list[Notification]:
    """Return the events of one aggregate in a range of versions."""
    selected = [
        event
        for event in events
        if (gt is None or event.originator_version > gt)
        and (lte is None or event.originator_version <= lte)
    ]
    selected.sort(key=lambda event: event.originator_version, reverse=desc)
    return selected[:limit]
