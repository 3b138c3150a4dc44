"""What all recorders have: the bus, a layout, and a writer."""

from eventsourcing.persistence import Recorder

from infra.eventstore.bus import Bus
from infra.eventstore.layout import EventLayout
from infra.eventstore.sequence_writer import SequenceWriter
from infra.jetstream.topology import ensure_stream


class JetStreamRecorder(Recorder):
    """Base of the recorders; subclasses keep its constructor's arguments."""

    writer_class: type[SequenceWriter] = SequenceWriter

    def __init__(self, bus: Bus, layout: EventLayout) -> None:
        self.bus = bus
        self.layout = layout
        self.writer = self.writer_class(
            bus.nc,
            layout.stream,
            position_of=layout.position_of,
            gapless=layout.gapless,
            timeout=bus.timeout,
        )

    def create_stream(self, replicas: int = 1) -> None:
        """Create the stream, or bring its configuration up to date.

        Raises:
            OperationalError: it exists and can't be changed in place, or the bus does not answer.
            ProgrammingError: the layout's stream is not this module's to create.
        """
        self.bus.call(ensure_stream(self.bus.nc, self.layout.stream_config(replicas)))
