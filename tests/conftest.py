"""What every test may use: a real server for the session, a connection and names of its own."""

import asyncio
import logging
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from nats.aio.client import Client

from infra.components import caddy, certificates, postgres
from infra.components.caddy import Caddy
from infra.components.certificates import Certificates
from infra.components.postgres import Postgres
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import connect
from tests import disks
from tests.accounts import Accounts
from tests.docker.engine import engine_problem
from tests.engines import (
    TestEngine,
    an_engine,
    dockerd_problem,
    own_dockerd_problem,
    short_folder,
)
from tests.needs import faketime_problem, skip_unless_in_ci
from tests.nftables import nftables_problem

pytest.register_assert_rewrite("reconciler.provider.contract", "reconciler.provider.http_faults")

_NEEDED = {
    "docker": engine_problem,
    "dockerd": dockerd_problem,
    "own_dockerd": own_dockerd_problem,
    "faketime": faketime_problem,
    "postgres": postgres.problem,
    "disks": disks.problem,
    "nftables": nftables_problem,
    "caddy": caddy.problem,
    "pebble": certificates.problem,
}


_LONGEST = ("tests/simulation/", "tests/site/", "tests/shop/", "tests/composites/test_kills.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: one process has each, and all others would wait."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))


def pytest_configure() -> None:
    """Have SIGINT heard in what tests start, also where the tests run in a shell's background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def accounts() -> Accounts:
    """The accounts of this process's server, each of them a bus of its own."""
    return Accounts()


@pytest.fixture(scope="session")
def nats_server(
    tmp_path_factory: pytest.TempPathFactory, accounts: Accounts
) -> Iterator[EmbeddedServer]:
    """A server with JetStream, started once; use streams with names of your own."""
    server = EmbeddedServer()
    folder = tmp_path_factory.mktemp("nats")
    asyncio.run(server.start(folder, extra_config=accounts.configuration(folder)))
    yield server
    asyncio.run(server.stop())


@pytest.fixture
def fresh_bus_url(nats_server: EmbeddedServer, accounts: Accounts) -> str:
    """The URL of an empty bus on the shared server; the product's streams can be made there.

    Do not kill, restart or reconfigure that server: start one of your own for that.
    """
    return accounts.next_url(nats_server)


@pytest.fixture(scope="module")
def module_bus_url(nats_server: EmbeddedServer, accounts: Accounts) -> str:
    """The URL of a bus that the tests of a module share, as ``fresh_bus_url``."""
    return accounts.next_url(nats_server)


@pytest.fixture(scope="session")
def engine() -> Iterator[TestEngine]:
    """A Docker Engine for the session; use names of your own. Mark the test `dockerd`."""
    with an_engine() as one:
        yield one


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL server for the session; use names of your own. Mark the test `postgres`."""
    with short_folder() as folder:
        folder.chmod(0o755)  # as root it runs as another user
        # Its log has all that it is sent; nobody needs its data after a crash of the machine.
        server = Postgres("log_statement=all", "fsync=off")
        asyncio.run(server.start(folder / "postgres"))
        yield server
        asyncio.run(server.stop())


@pytest.fixture(scope="session")
def no_disk_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """See in the end that nothing of this session is mounted or attached."""
    yield
    folder = tmp_path_factory.getbasetemp()
    found = disks.left(folder)
    disks.clean(folder)
    assert found == ([], [])


@pytest.fixture
def disk_root(tmp_path: Path, no_disk_left: None) -> Iterator[Path]:
    """A folder for disks. Mark the test `disks`."""
    with disks.disk_folder(tmp_path / "disks") as folder:
        yield folder


@pytest.fixture(scope="session")
def caddy_server() -> Iterator[Caddy]:
    """A Caddy server for the session; use names and hosts of your own. Mark the test `caddy`."""
    with short_folder() as folder:
        server = Caddy(over_tcp=True)
        asyncio.run(server.start(folder / "caddy"))
        yield server
        asyncio.run(server.stop())


@pytest.fixture(scope="session")
def pebble() -> Iterator[Certificates]:
    """An ACME authority for the session; use names of your own. Mark the test `pebble`."""
    with short_folder() as folder:
        authority = Certificates(beside_others=True)
        asyncio.run(authority.start(folder / "certificates"))
        yield authority
        asyncio.run(authority.stop())


@pytest.fixture
async def nc(nats_server: EmbeddedServer) -> AsyncIterator[Client]:
    client = await connect(nats_server.url, name="test")
    yield client
    await client.close()


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Undo what a test says about logs: a later one would wait for a warning that nobody sees."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    structlog.reset_defaults()
    # As the command line does: rich takes two minutes to highlight a traceback of 100 kB.
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def unique() -> str:
    """A token that no other test uses: for names of streams and first tokens of subjects."""
    return f"T{uuid.uuid4().hex[:12]}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs what is not here; in CI, which installs it, that is a failure."""
    for marker, problem_of in _NEEDED.items():
        if item.get_closest_marker(marker) is not None:
            problem = problem_of()
            if problem is not None:
                skip_unless_in_ci(problem)
