"""The library's own tests for persistence modules, unchanged, on a real server."""

import unittest

import pytest
from eventsourcing.persistence import AggregateRecorder, ApplicationRecorder, TrackingRecorder
from eventsourcing.utils import Environment

from infra.eventstore import JetStreamFactory
from infra.eventstore.recorders import (
    JetStreamAggregateRecorder,
    JetStreamApplicationRecorder,
    JetStreamProcessRecorder,
    JetStreamTrackingRecorder,
)
from tests.eventstore.library_cases import HAS_CIPHER, NO_CIPHER, cases


class OnJetStream:
    """Gives a library's test case, which has no fixtures, a factory with separate streams."""

    factory: JetStreamFactory

    @pytest.fixture(autouse=True)
    def _factory(self, factory: JetStreamFactory) -> None:
        self.factory = factory


class TestAggregateRecorder(OnJetStream, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        return self.factory.aggregate_recorder()


class TestSnapshotRecorder(OnJetStream, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        return self.factory.aggregate_recorder("snapshots")


class TestAggregateRecorderWithTextIds(TestAggregateRecorder):
    def new_originator_id(self) -> str:
        return f"bücher/{super().new_originator_id()}.*> _x"


class TestApplicationRecorder(OnJetStream, cases.ApplicationRecorderTestCase):
    def create_recorder(self) -> ApplicationRecorder:
        return self.factory.application_recorder()

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestProcessRecorderAsApplicationRecorder(TestApplicationRecorder):
    def create_recorder(self) -> ApplicationRecorder:
        return self.factory.process_recorder()


class TestTrackingRecorder(OnJetStream, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        return self.factory.tracking_recorder()


class TestProcessRecorder(OnJetStream, cases.ProcessRecorderTestCase):
    def create_recorder(self) -> JetStreamProcessRecorder:
        recorder = self.factory.process_recorder()
        assert isinstance(recorder, JetStreamProcessRecorder)
        return recorder


class TestNonInterleaving(OnJetStream, cases.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> ApplicationRecorder:
        return self.factory.application_recorder()


class TrackingRecorderSubclass(JetStreamTrackingRecorder):
    pass


class TestFactory(cases.InfrastructureFactoryTestCase[JetStreamFactory]):
    @pytest.fixture(autouse=True)
    def _environment(self, environment: Environment) -> None:
        self.env = environment

    def expected_factory_class(self) -> type[JetStreamFactory]:
        return JetStreamFactory

    def expected_aggregate_recorder_class(self) -> type[AggregateRecorder]:
        return JetStreamAggregateRecorder

    def expected_application_recorder_class(self) -> type[ApplicationRecorder]:
        return JetStreamApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[TrackingRecorder]:
        return JetStreamTrackingRecorder

    def tracking_recorder_subclass(self) -> type[TrackingRecorder]:
        return TrackingRecorderSubclass

    def expected_process_recorder_class(self) -> type[JetStreamProcessRecorder]:
        return JetStreamProcessRecorder

    @unittest.skipUnless(HAS_CIPHER, NO_CIPHER)
    def test_mapper_with_cipher(self) -> None:
        super().test_mapper_with_cipher()

    @unittest.skipUnless(HAS_CIPHER, NO_CIPHER)
    def test_mapper_with_cipher_and_compressor(self) -> None:
        super().test_mapper_with_cipher_and_compressor()

    @unittest.skipUnless(HAS_CIPHER, NO_CIPHER)
    def test_mapper_with_wrong_cipher_key(self) -> None:
        super().test_mapper_with_wrong_cipher_key()
