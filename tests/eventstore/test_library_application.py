"""The library's own tests for applications, unchanged, with this persistence module."""

import pytest
from eventsourcing.tests import application as cases
from eventsourcing.utils import Environment


@pytest.fixture(autouse=True)
def _persistence(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)


class TestExampleApplication(cases.ExampleApplicationTestCase):
    expected_factory_topic = "infra.eventstore.factory:JetStreamFactory"


class TestApplication(cases.ApplicationTestCase):
    pass
