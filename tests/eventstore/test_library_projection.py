"""The library's own tests for projections, unchanged: subscriptions, views and positions."""

import pytest
from eventsourcing.persistence import StoredEvent, Tracking
from eventsourcing.tests import projection as cases
from eventsourcing.utils import Environment

from infra.eventstore import JetStreamFactory
from infra.eventstore.recorders import JetStreamTrackingRecorder
from infra.jetstream.reads import last_from_leader


@pytest.fixture(autouse=True)
def _persistence(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)


class CountersOnJetStream(JetStreamTrackingRecorder, cases.EventCountersView):
    """A view in which each count is a message, stored in one batch with the position."""

    def get_created_event_counter(self) -> int:
        return self._count("created")

    def get_subsequent_event_counter(self) -> int:
        return self._count("subsequent")

    def incr_created_event_counter(self, tracking: Tracking) -> None:
        self._increment("created", tracking)

    def incr_subsequent_event_counter(self, tracking: Tracking) -> None:
        self._increment("subsequent", tracking)

    def _count(self, name: str) -> int:
        sequence = self.layout.sequence_of(name)
        last = self.bus.call(last_from_leader(self.bus.nc, self.layout.stream, sequence))
        return self.layout.version_of(last) if last else 0

    def _increment(self, name: str, tracking: Tracking) -> None:
        count = StoredEvent(name, self._count(name) + 1, "Counted", b"")
        entries = [self.layout.encode(count), self.tracking_layout.encode_tracking(tracking)]
        self.bus.call(self.writer.append(entries))


class TestEventSourcedProjection(cases.EventSourcedProjectionTestCase):
    pass


class TestEventCountersProjection(cases.AggregateEventCountersProjectionTestCase):
    view_class = CountersOnJetStream


class TestEventCountersView(cases.EventCountersViewTestCase):
    @pytest.fixture(autouse=True)
    def _factory(self, factory: JetStreamFactory) -> None:
        self.factory = factory

    def construct_event_counters_view(self) -> cases.EventCountersView:
        view = self.factory.tracking_recorder(CountersOnJetStream)
        assert isinstance(view, CountersOnJetStream)
        return view
