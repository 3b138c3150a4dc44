"""Fixtures for all tests: a real server for the session, a connection, and unique names."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from infra.embedded import EmbeddedServer
from tests.accounts import Accounts
from tests.needs import skip_unless_needs_are_met

if TYPE_CHECKING:
    from nats.aio.client import Client

# If Python may not write bytecode, pytest does not cache the assertions that it rewrites, and each
# process of a run spends 9 s of CPU on rewriting them again.
sys.dont_write_bytecode = False

pytest.register_assert_rewrite("reconciler.provider.contract", "reconciler.provider.http_faults")


def pytest_configure() -> None:
    """Let processes that tests start receive SIGINT, even if pytest runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_unless_needs_are_met(item)


@pytest.fixture(scope="session")
def accounts() -> Accounts:
    """The accounts of this process's server, each of them a separate bus."""
    return Accounts()


@pytest.fixture(scope="session")
def nats_server(
    tmp_path_factory: pytest.TempPathFactory, accounts: Accounts
) -> Iterator[EmbeddedServer]:
    """A server with JetStream, started once; use streams with unique names."""
    server = EmbeddedServer()
    folder = tmp_path_factory.mktemp("nats")
    asyncio.run(server.start(folder, extra_config=accounts.configuration(folder)))
    yield server
    asyncio.run(
        server.kill()
    )  # no test needs its data; closing hundreds of streams takes a long time


@pytest.fixture
def fresh_bus_url(nats_server: EmbeddedServer, accounts: Accounts) -> str:
    """The URL of an empty bus on the shared server; the product's streams can be created there.

    Do not kill, restart or reconfigure that server: start a separate one for that.
    """
    return accounts.next_url(nats_server)


@pytest.fixture(scope="module")
def module_bus_url(nats_server: EmbeddedServer, accounts: Accounts) -> str:
    """The URL of a bus that the tests of a module share; otherwise like ``fresh_bus_url``."""
    return accounts.next_url(nats_server)


@pytest.fixture
async def nc(nats_server: EmbeddedServer) -> AsyncIterator[Client]:
    from infra.jetstream.connection import connect  # noqa: PLC0415 - 0.15 s, for the tests on it

    client = await connect(nats_server.url, name="test")
    yield client
    await client.close()


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """Undo a test's logging setup, so that a later test can read the warnings that it expects."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    if (structlog := sys.modules.get("structlog")) is not None:
        structlog.reset_defaults()
        # Like the command line, because rich takes two minutes to highlight a traceback of 100 kB.
        plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
    yield
    if (structlog := sys.modules.get("structlog")) is not None:
        structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def unique() -> str:
    """A token that no other test uses, for names of streams and first tokens of subjects."""
    return f"T{uuid.uuid4().hex[:12]}"
