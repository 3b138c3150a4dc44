"""Fixtures: the API of each case in its own process, a proxy in front of it, and providers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from events.provider_config import Limits, ProviderConfigSpec
from reconciler.provider import Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.http_faults import Proxy
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import Secrets
from tests.host_access import EVERYTHING
from tests.providers.cases import CASES, Case
from tests.providers.connect import Connect


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.fixtures.docker")
    config.pluginmanager.import_plugin("tests.fixtures.postgres")
    config.pluginmanager.import_plugin("tests.fixtures.caddy")
    config.pluginmanager.import_plugin("tests.fixtures.pebble")
    config.pluginmanager.import_plugin("tests.fixtures.disks")


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run providers on the event loop that roles use, and connection tests on both loops."""
    if sys.platform == "win32":
        return {"asyncio": asyncio.new_event_loop}
    import uvloop  # noqa: PLC0415 - not available on Windows

    if item.path.stem == "test_http":
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}


@contextmanager
def running_api(module: str, folder: Path) -> Generator[str]:
    # --exit-with-stdin: it exits with the tests, even if they are killed.
    command = [sys.executable, "-m", module, "--exit-with-stdin", "--port", "0"]
    command += ["--data", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        prefix = "listening on "
        assert line.startswith(prefix), f"{module} printed {line!r} instead of its address"
        yield line.removeprefix(prefix).strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session", params=CASES, ids=lambda case: case.kind.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(scope="session")
def api_url(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_api(case.api_module, tmp_path_factory.mktemp("api")) as url:
        yield url


@pytest.fixture
async def proxy(api_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(api_url) as running:
        yield running


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Build providers that are closed at the end of the test."""
    async with AsyncExitStack() as stack:

        def build(
            kind: Kind, endpoint: str, *, timeout_seconds: float = 10, secret: str | None = None
        ) -> Provider:
            assert kind.connect is not None
            config = ProviderConfigSpec(
                provider=kind.provider,
                endpoint=endpoint,
                limits=Limits(request_timeout_seconds=timeout_seconds),
                allow=EVERYTHING,
            )
            provider = kind.connect(config, Secrets(secret), CallPermit())
            stack.push_async_callback(provider.close)
            return provider

        yield build


@pytest.fixture
def provider(case: Case, api_url: str, connect: Connect) -> Provider:
    """The provider, connected to its API."""
    return connect(case.kind, api_url + case.endpoint_path)


@pytest.fixture
def proxied(case: Case, proxy: Proxy, connect: Connect) -> Provider:
    """The provider, connected to its API through the proxy."""
    return connect(case.kind, proxy.url + case.endpoint_path)


@pytest.fixture
def name() -> str:
    """A name that no other test uses, and with which no other name starts."""
    return f"t{uuid4().hex[:12]}"
