"""The servers that `up` starts on this machine: NATS, the example API and components."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Never, Protocol

import msgspec
import structlog

from infra.components import Component
from infra.components.ports import is_free
from infra.jetstream.connection import redact_url
from reconciler.cli import components
from reconciler.cli.connection import UP_FILE, UP_LOCK, UpFile, read_up_file
from reconciler.cli.errors import DISK_FULL_ERRNOS, StackError, UsageError
from reconciler.cli.local_configs import LocalApi, build_example_api
from reconciler.cli.supervision import supervise

if TYPE_CHECKING:
    from infra.embedded.full_disk import FullDiskWatch
    from infra.embedded.server import EmbeddedServer

DEFAULT_PORT: Final = 4222
DEFAULT_API_PORT: Final = 8080

EXAMPLE_API: Final = "shapes_api"
"""Package of the example API, which is an optional, separate distribution."""

EXAMPLE_API_DIRECTORY: Final = "example-api"

EXAMPLE_API_MISSING: Final = (
    "the example API and its kinds are not installed; to install them, run `pip install "
    "./examples/shapes_api` in a clone of Reconciler"
)

_PORTS_FILE: Final = "ports.json"
_LOCK_TIMEOUT_SECONDS: Final = 0.5  # a command that checks for `up` holds the lock briefly
_ORPHAN_TIMEOUT_SECONDS: Final = 15.0  # the server of a killed `up` takes a while to exit
_POLL_SECONDS: Final = 0.02
_logger = structlog.get_logger(__name__)
_WATCH_INTERVAL_SECONDS: Final = 0.5
_DISK_CHECK_SECONDS: Final = 2.0


class ExampleApi(Protocol):
    """The server of the example API, which is a separate distribution."""

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether the server's process is running."""
        ...

    async def start(self, data_dir: Path, *, port: int, latency_ms: float) -> str:
        """Start the server, and return its URL once it listens."""
        ...

    async def stop(self) -> None:
        """Stop the server gracefully."""
        ...


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The servers to start, with their directory and ports."""

    data: Path
    port: int | None
    api_port: int | None
    latency_ms: float
    nats_url: str | None
    with_api: bool
    components: tuple[str, ...] = ()


class _Ports(msgspec.Struct):
    """The ports that replaced the default ports; the next start uses them again."""

    nats: int | None = None
    api: int | None = None


@dataclass(slots=True)
class Stack:
    """The started servers, with their URLs and notes for the user."""

    data: Path
    nats_url: str
    latency_ms: float = 0
    api_url: str | None = None
    server: EmbeddedServer | None = None
    api: ExampleApi | None = None
    components: dict[str, Component] = field(default_factory=dict[str, Component])
    bus_apis: tuple[str, ...] = ()
    """Names of the ``BUS_APIS`` for which to declare a ProviderConfig."""
    notes: list[str] = field(default_factory=list[str])
    failure: StackError | None = None
    is_serving: bool = False

    @property
    def local_apis(self) -> list[LocalApi]:
        """The APIs on this machine, each with the ProviderConfig that must point to it."""
        apis = [] if self.api_url is None else [build_example_api(self.api_url)]
        apis += [components.build_bus_api(name, self.nats_url) for name in self.bus_apis]
        return apis + [components.build_local_api(*each) for each in self.components.items()]

    @property
    def display_url(self) -> str:
        """The URL of the bus, without secrets."""
        return redact_url(self.nats_url)

    async def watch(self) -> None:
        """Wait indefinitely; raises ``StackError`` if the embedded server exits unexpectedly.

        If the embedded server's disk was full, restart the server once there is space, and the
        roles reconnect. This check begins only after the roles have started, because a server
        reports the same error while it recovers its streams.
        """
        disk = None if self.server is None else _full_disk_watch(self.server)
        next_check = 0.0
        while True:
            self._check_running()
            is_due = self.is_serving and time.monotonic() >= next_check
            if disk is not None and self.server is not None and is_due:
                if await disk.needs_restart():
                    _logger.warning("the disk has space again; restarting nats-server")
                    await self.server.restart()
                next_check = time.monotonic() + _DISK_CHECK_SECONDS
            await asyncio.sleep(_WATCH_INTERVAL_SECONDS)

    def supervise(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return one coroutine for each other server, which restarts it whenever it exits."""
        coroutines = [self._supervise_component(*each) for each in self.components.items()]
        if self.api is not None:
            coroutines.append(self._supervise_api(self.api))
        return coroutines

    async def _supervise_component(self, name: str, component: Component) -> None:
        endpoint = component.endpoint

        async def restart() -> None:
            await component.kill()  # ends the processes that outlived the one that exited
            await component.start(self.data / name)
            if component.endpoint != endpoint:
                self._fail(
                    f"{name}: the address {endpoint} is in use since it exited; restart "
                    f"`reconciler up`, which declares the new address {component.endpoint}"
                )

        await supervise(name, component.log, lambda: component.is_running, restart)

    async def _supervise_api(self, api: ExampleApi) -> None:
        directory = self.data / EXAMPLE_API_DIRECTORY

        async def restart() -> None:
            await api.start(directory, port=api.port, latency_ms=self.latency_ms)

        log = directory / f"{EXAMPLE_API_DIRECTORY}.log"
        await supervise("the example API", log, lambda: api.is_running, restart)

    def _check_running(self) -> None:
        if self.server is not None and not self.server.is_running:
            log = self.server.data_dir / "nats.log"
            self._fail(f"nats-server exited unexpectedly; its log is {log}")

    def _fail(self, message: str) -> Never:
        self.failure = StackError(message)
        raise self.failure


@asynccontextmanager
async def start_stack(options: StackOptions) -> AsyncGenerator[Stack]:
    """Start the servers, and at the end stop components first, then the API, then NATS."""
    to_start = {
        each: components.create_component(each)
        for each in options.components
        if each in components.COMPONENTS
    }
    async with AsyncExitStack() as closing:
        closing.enter_context(_lock_directory(options.data))
        with _naming_full_disk(options.data):
            stack = Stack(options.data, options.nats_url or "", options.latency_ms)
            if not options.nats_url:
                from infra.embedded.server import EmbeddedServer  # noqa: PLC0415 - slow to import

                stack.server = EmbeddedServer()
                closing.push_async_callback(stack.server.stop)
                stack.nats_url = await _start_server(stack.server, options, stack.notes)
            if options.with_api:
                stack.api = _find_example_api()
                if stack.api is None:
                    stack.notes.append(EXAMPLE_API_MISSING)
                else:
                    closing.push_async_callback(stack.api.stop)
                    stack.api_url = await _start_api(stack.api, options, stack.notes)
            stack.bus_apis = tuple(n for n in options.components if n in components.BUS_APIS)
            for name, component in to_start.items():
                closing.push_async_callback(component.stop)
                await component.start(options.data / name)
                stack.components[name] = component
        yield stack


def _full_disk_watch(server: EmbeddedServer) -> FullDiskWatch:
    from infra.embedded.full_disk import FullDiskWatch  # noqa: PLC0415 - slow to import

    return FullDiskWatch(server)


@contextmanager
def _naming_full_disk(data: Path) -> Generator[None]:
    """Add the data directory to a full-disk error."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        raise StackError(
            f"data directory {data}: {error.strerror}; free disk space, or use another directory "
            "with --data"
        ) from error


def write_up_file(stack: Stack) -> None:
    """Write the URL of the bus to a file, for other commands in the same directory."""
    monitoring_url = stack.server.monitoring_url if stack.server is not None else ""
    content = UpFile(stack.display_url, stack.api_url, os.getpid(), monitoring_url)
    new = stack.data / f"{UP_FILE}.new"
    with _naming_full_disk(stack.data):
        new.write_bytes(msgspec.json.encode(content) + b"\n")
        new.replace(stack.data / UP_FILE)


def _lock_directory(data: Path) -> BinaryIO:
    """Lock the data directory for this process until the returned file is closed."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / UP_LOCK).open("ab")
    except OSError as error:
        raise StackError(
            f"data directory {data} is not usable: {error.strerror}; use another directory with "
            "--data"
        ) from error
    if not _acquire_lock(lock):
        lock.close()
        running = read_up_file(data)
        owner = "" if running is None else f" (pid {running.pid}, {running.nats_url})"
        raise StackError(
            f"data directory {data} is in use by another `reconciler up`{owner}; stop that "
            "process, or use another directory with --data"
        )
    (data / UP_FILE).unlink(missing_ok=True)
    return lock


def _acquire_lock(lock: BinaryIO) -> bool:
    deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        else:
            return True


async def _start_server(server: EmbeddedServer, options: StackOptions, notes: list[str]) -> str:
    directory = options.data / "nats"
    await _wait_for_orphan(directory / "nats.lock")
    ports = _read_ports(options.data)
    port = _choose_port(options.port, DEFAULT_PORT, ports.nats)
    url = await server.start(directory, port=port, http_port=0)
    if options.port is None and server.port != DEFAULT_PORT:
        notes.append(f"{_explain_port(port, DEFAULT_PORT)}; NATS listens on {server.port}")
        ports.nats = server.port
        _write_ports(options.data, ports)
    return url


def _find_example_api() -> ExampleApi | None:
    try:
        return import_module(EXAMPLE_API).ExampleApi()
    except ModuleNotFoundError as error:
        if error.name != EXAMPLE_API:
            raise
        return None


async def _start_api(api: ExampleApi, options: StackOptions, notes: list[str]) -> str:
    ports = _read_ports(options.data)
    port = _choose_port(options.api_port, DEFAULT_API_PORT, ports.api)
    directory = options.data / EXAMPLE_API_DIRECTORY
    try:
        url = await api.start(directory, port=port, latency_ms=options.latency_ms)
    except import_module(EXAMPLE_API).ExampleApiError as error:
        raise StackError(str(error)) from None
    if options.api_port is None and api.port != DEFAULT_API_PORT:
        notes.append(
            f"{_explain_port(port, DEFAULT_API_PORT)}; the example API listens on {api.port}"
        )
        ports.api = api.port
        _write_ports(options.data, ports)
    return url


def _explain_port(port: int, default: int) -> str:
    """Explain why the port differs from the default; 0 means any free port."""
    if port == 0:
        return f"port {default} is in use"
    return f"port {default} was in use at an earlier startup"


def _read_ports(data: Path) -> _Ports:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((data / _PORTS_FILE).read_bytes(), type=_Ports)
    return _Ports()


def _write_ports(data: Path, ports: _Ports) -> None:
    new = data / f"{_PORTS_FILE}.new"
    new.write_bytes(msgspec.json.encode(ports) + b"\n")
    new.replace(data / _PORTS_FILE)


async def _wait_for_orphan(lock_file: Path) -> None:
    """Wait until the server of a killed `up` releases the data directory."""
    deadline = time.monotonic() + _ORPHAN_TIMEOUT_SECONDS
    with suppress(FileNotFoundError), lock_file.open("rb") as lock:
        while time.monotonic() < deadline:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            await asyncio.sleep(_POLL_SECONDS)


def _choose_port(requested: int | None, default: int, previous: int | None) -> int:
    """Return the requested port, the previous one, or the default; 0 means any free port."""
    if requested is not None:
        if not 0 <= requested < 2**16:
            raise UsageError(f"{requested} is not a port; use 0 (any free port) to 65535")
        return requested
    return next((each for each in (previous, default) if each and is_free(each)), 0)
