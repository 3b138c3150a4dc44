"""The recorder of positions in other applications' logs."""

from eventsourcing.persistence import Tracking, TrackingRecorder

from infra.eventstore.bus import Bus
from infra.eventstore.layout import TrackingLayout
from infra.eventstore.recorder import JetStreamRecorder
from infra.jetstream.reads import last_from_leader


class JetStreamTrackingRecorder(JetStreamRecorder, TrackingRecorder):
    """Tracking records in the application's stream, one sequence for each tracked application."""

    def __init__(self, bus: Bus, layout: TrackingLayout) -> None:
        super().__init__(bus, layout)
        self.tracking_layout = layout

    def insert_tracking(self, tracking: Tracking) -> None:
        """Store a position, later than every other of that application.

        Raises:
            IntegrityError: that position, or a later one, is there already.
            OperationalError: no answer: unknown whether it was stored. Read before you repeat.
        """
        self.bus.call(self.writer.append([self.tracking_layout.encode_tracking(tracking)]))

    def max_tracking_id(self, application_name: str) -> int | None:
        """Return the last position, as the stream's leader knows it, or None."""
        sequence = self.tracking_layout.tracking_sequence_of(application_name)
        last = self.bus.call(last_from_leader(self.bus.nc, self.layout.stream, sequence))
        return self.layout.position_of(last).version if last else None
