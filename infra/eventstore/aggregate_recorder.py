"""The recorder of aggregates' events."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from eventsourcing.persistence import AggregateRecorder, StoredEvent

from infra.eventstore.layout import Entry
from infra.eventstore.recorder import JetStreamRecorder
from infra.eventstore.selection import history, last_event, pick


class JetStreamAggregateRecorder(JetStreamRecorder, AggregateRecorder):
    """Events of aggregates, each aggregate a sequence with compare-and-set."""

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Store all events or none; always returns None.

        Raises:
            IntegrityError: a version of an aggregate is there already.
            DataError: over 1,000 events, or one that is too large or does not fit the layout.
            OperationalError: no answer: unknown whether they were stored. Read before you repeat.
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
        """Write what one insert appends: the events first. Subclasses may add to it."""
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
        """Read an aggregate's events by version.

        Raises:
            OperationalError: no answer.
            InternalError: the log has a hole, where the layout allows none.
        """
        return self.bus.call(self._select(originator_id, gt, lte, desc, limit))

    async def _select(
        self,
        originator_id: UUID | str,
        gt: int | None,
        lte: int | None,
        desc: bool,
        limit: int | None,
    ) -> list[StoredEvent]:
        sequence = self.layout.sequence_of(originator_id)
        if desc and limit == 1:
            message = await last_event(self.bus.nc, self.layout, sequence)
            if message is None:
                return []
            last = self.layout.decode(message)
            version = self.layout.position_of(message).version
            if last.originator_version == version and (lte is None or version <= lte):
                return pick([last], gt=gt, lte=lte, desc=desc, limit=limit)
        events = await history(self.bus.nc, self.layout, self.writer.heads, sequence, gt)
        return pick(events, gt=gt, lte=lte, desc=desc, limit=limit)
