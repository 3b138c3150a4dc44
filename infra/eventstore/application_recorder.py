"""The recorder of an application's events, which are notifications too."""

from collections.abc import Sequence
from typing import Any

from eventsourcing.persistence import ApplicationRecorder, Notification, StoredEvent, Subscription

from infra.eventstore.aggregate_recorder import JetStreamAggregateRecorder
from infra.eventstore.selection import notifications
from infra.eventstore.subscription import JetStreamSubscription
from infra.jetstream.reads import last_from_leader


class JetStreamApplicationRecorder(JetStreamAggregateRecorder, ApplicationRecorder):
    """Events of aggregates, in the one order of the stream: a notification's id is its sequence."""

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Store all events or none, and return their notification ids.

        Raises:
            IntegrityError: a version of an aggregate is there already.
            DataError: over 1,000 events, or one that is too large or does not fit the layout.
            OperationalError: no answer: unknown whether they were stored. Read before you repeat.
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
        """Read a page of the log; raises `OperationalError` without an answer."""
        first = start or 0
        if start is not None and not inclusive_of_start:
            first += 1
        return self.bus.call(
            notifications(
                self.bus.nc,
                self.layout,
                start=max(1, first),
                limit=limit,
                stop=stop,
                topics=topics,
            )
        )

    def max_notification_id(self) -> int | None:
        """Return the position of the last event, as the stream's leader knows it, or None."""
        layout = self.layout
        last = self.bus.call(last_from_leader(self.bus.nc, layout.stream, layout.events_filter))
        return last.seq if last else None

    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> Subscription[ApplicationRecorder]:
        """Follow the log from `gt` on, as it grows."""
        return JetStreamSubscription(self, self.bus, self.layout, gt=gt, topics=topics)
