"""The recorder of events together with the position that led to them."""

from collections.abc import Sequence
from typing import Any

from eventsourcing.persistence import ProcessRecorder, StoredEvent, Tracking

from infra.eventstore.application_recorder import JetStreamApplicationRecorder
from infra.eventstore.layout import Entry
from infra.eventstore.tracking_recorder import JetStreamTrackingRecorder


class JetStreamProcessRecorder(
    JetStreamTrackingRecorder, JetStreamApplicationRecorder, ProcessRecorder
):
    """Events and a tracking record in one atomic batch.

    A tracking record takes a position of the stream, so notification ids rise with gaps.
    """

    def entries(
        self, stored_events: Sequence[StoredEvent], *, tracking: Tracking | None = None, **_: Any
    ) -> list[Entry]:
        """Write the events, and the tracking record last."""
        entries = super().entries(stored_events)
        if tracking is not None:
            entries.append(self.tracking_layout.encode_tracking(tracking))
        return entries
