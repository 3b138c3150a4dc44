import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventsourcing.utils import Environment

from infra.embedded import EmbeddedServer
from infra.eventstore import JetStreamFactory
from tests.eventstore.helpers import new_environment


@pytest.fixture
def environment(nats_server: EmbeddedServer) -> Environment:
    return new_environment(nats_server.url)


@pytest.fixture
def factory(environment: Environment) -> Iterator[JetStreamFactory]:
    factory = JetStreamFactory(environment)
    yield factory
    factory.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that a test may stop, or on which it may create the product's streams."""
    server = EmbeddedServer()
    asyncio.run(server.start(tmp_path))
    yield server
    asyncio.run(server.kill())
